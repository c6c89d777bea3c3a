# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

"""Preset mode: one rank of the fused kernels alone on one GPU, checked and timed against cuBLAS.

Peers' workspaces lie in local memory, entries and flags are set to the call's epoch, peers' shards
or partials are filled in. So the kernel runs its whole path, pushes included, and never waits.
No link is involved: times say what the kernel costs, not what overlap gains.

    python preset.py LIBRARY check [INSTANCE ...]   each instance in a process of its own
    python preset.py LIBRARY waits [INSTANCE ...]   the same with peers that come late, or never
    python preset.py LIBRARY time [PART ...]        medians beside torch.mm in the same run

time writes a record with --json FILE; benchmarks/README.md has the commands of those that are kept.

With --link GB_PER_S the peers' flags come at the pace of an emulated link (preset_link.py): check
and time measure overlap then, and `search` tries a grid of plans:

    python preset.py LIBRARY time --link 350 --json FILE --worlds 2 4 8
    python preset.py LIBRARY search _ag --link 350 --rows 1024 --grid chunk_rows=64,128 push_ctas=32
    python preset.py LIBRARY trace _ag --link 350 --rows 1024 --worlds 4 --json STEM
"""

import functools
import itertools
import sys

import preset_flags
import preset_link
import preset_record
import torch
from preset_check import cases, check, check_deadline, in_child, late_cases
from preset_rank import Library, Rank

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


def measure(runs, repetitions, inner=preset_record.LAUNCHES):
    """Medians in us of every entry, interleaved. A spin ahead lets the host enqueue them all."""
    for run in runs.values():
        run()
    torch.cuda.synchronize()
    samples = {key: [] for key in runs}
    for _ in range(repetitions):
        for key, run in runs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(300_000)
            start.record()
            for _ in range(inner):
                run()
            end.record()
            end.synchronize()
            samples[key].append(start.elapsed_time(end) * 1000 / inner)
    return {key: sorted(values)[len(values) // 2] for key, values in samples.items()}


def unfused(dtype, shape):
    """cuBLAS on the whole product in both layouts."""
    m, n, k = shape
    options = {"dtype": DTYPES[dtype], "device": "cuda"}
    x, w, wt = (torch.randn(size, **options) for size in ((m, k), (k, n), (n, k)))
    y = torch.empty(m, n, **options)
    return {
        f"cublas {dtype}_nn": lambda: torch.mm(x, w, out=y),
        f"cublas {dtype}_nt": lambda: torch.mm(x, wt.T, out=y),
    }


def time_shape(library, names, shape, arguments):
    """Medians in us by label, of cuBLAS too."""
    m, n, k = shape
    runs = {}
    for dtype in DTYPES:
        if any(f"_{dtype}_" in name for name in names):
            runs |= unfused(dtype, shape)
    for name, world, label in preset_flags.calls(names, m, arguments.worlds):
        op = name.rsplit("_", 1)[1]
        states = {}
        for plan in arguments.plan or [{}]:
            who = {"transport": plan.get("transport", 0)}
            if who["transport"] and op != "ag":
                continue
            if who["transport"] not in states:
                states[who["transport"]] = state = Rank(
                    library, name, world, min(1, world - 1), 1, m // world, n, k, who
                )
                state.endless()
            choice = " ".join(f"{key}={value}" for key, value in plan.items())
            runs[f"{label} {choice}".strip()] = states[who["transport"]].launcher(**plan)
        for epilogue in arguments.epilogues if op != "rs" else arguments.epilogues[:1]:
            state = next(iter(states.values()))
            runs[f"{label} {epilogue}"] = state.launcher(**state.epilogue(epilogue))
    return measure(runs, arguments.repetitions)


def child(arguments):
    return lambda body: in_child(arguments.seconds, body)


def time_unlinked(arguments):
    """Every shape, world and instance without a link; the table, and a record of it."""

    def body(shape):
        library = Library(arguments.preset)
        names = preset_flags.instances(arguments, library.instances())
        medians = time_shape(library, names, shape, arguments)
        print(f"m, n, k = {shape}")
        for key, value in medians.items():
            layout = "_".join(key.removeprefix("cublas ").split("_")[:2])
            base = medians[f"cublas {layout}"]
            print(f"  {key:45s} {value:8.1f} us  {base / value:.3f} of cuBLAS")
        yield preset_record.row(shape, medians)

    bodies = {str(s): functools.partial(body, s) for s in preset_flags.shapes(arguments)}
    rows, failed = preset_record.gather(bodies, child(arguments))
    if arguments.json and rows:
        record = preset_record.unlinked(rows, arguments, torch, failed, preset_record.gpu())
        preset_record.write(arguments.json, record)
    return bool(failed)


def time_linked(arguments):
    """Every row, world and paced instance; the table, and a record of it."""
    wanted = preset_flags.linked_parts(arguments)

    def body(world):
        library = Library(arguments.preset)
        for op, row in preset_flags.linked_rows(arguments):
            yield preset_link.time_row(library, op, row, world, arguments.link, wanted,
                                       arguments.repetitions)  # fmt: skip

    bodies = {f"W {world}": functools.partial(body, world) for world in arguments.worlds}
    rows, failed = preset_record.gather(bodies, child(arguments))
    if not rows:
        return bool(failed)
    peak = max(2 * r["m"] * r["n"] * r["k"] / min(r["cublas_us"], r["plain_us"]) for r in rows)
    for row in rows:
        preset_link.judge(row, peak)
        print(*preset_link.lines(row), sep="\n")
    if arguments.json:
        record = preset_record.linked(rows, arguments, torch, failed, preset_record.gpu(), peak)
        preset_record.write(arguments.json, record)
    return bool(failed)


def search_linked(arguments):
    wanted = preset_flags.linked_parts(arguments)
    picked = list(preset_flags.linked_rows(arguments))
    grid = dict(arguments.grid or [])

    def body(world):
        library = Library(arguments.preset)
        share = arguments.budget / len(picked) / len(arguments.worlds)
        for op, row in picked:
            preset_link.search(library, op, row, world, arguments.link, wanted, grid, share)
            sys.stdout.flush()

    failed = [in_child(arguments.seconds, lambda world=world: body(world))
              for world in arguments.worlds]  # fmt: skip
    return any(failed)


def trace_linked(arguments):
    """Where the time of one call goes, with the instances that have timestamps."""

    def body():
        from preset_trace import trace_row  # needs jax_flux

        library = Library(arguments.preset)
        names = library.instances(paced=True, traced=True)
        wanted = preset_flags.linked_parts(arguments)
        plan = (arguments.plan or [{}])[0]
        picked = preset_flags.linked_rows(arguments)
        for (op, row), world in itertools.product(picked, arguments.worlds):
            for name in names:
                if name.endswith(f"_{op}") and (not wanted or any(w in name for w in wanted)):
                    trace_row(library, name, op, row, world, arguments.link, plan, arguments.json)

    return in_child(arguments.seconds, body) != 0


def main():
    parser = preset_flags.parser(__doc__)
    arguments = parser.parse_args()
    if arguments.mode in ("search", "trace") and not arguments.link:
        parser.error(f"{arguments.mode} wants --link GB_PER_S: without a link nothing waits")
    if arguments.without and (arguments.mode != "time" or arguments.link):
        parser.error("--without is for time without --link")
    if arguments.mode == "search":
        sys.exit(search_linked(arguments))
    if arguments.mode == "trace":
        sys.exit(trace_linked(arguments))
    if arguments.mode == "time":
        sys.exit((time_linked if arguments.link else time_unlinked)(arguments))
    if arguments.mode == "check" and arguments.link:

        def paced(op):
            # Copy engines send past the emulated link.
            pushed = (c for c in cases(op) if not c.get("plan", {}).get("transport"))
            return ({**case, "link": arguments.link} for case in pushed)

        sys.exit(bool(check(arguments.preset, arguments.names, arguments.seconds, paced, True)))
    if arguments.mode == "check":
        sys.exit(bool(check(arguments.preset, arguments.names, arguments.seconds, cases)))
    failed = check(arguments.preset, arguments.names, arguments.seconds, late_cases)  # waits
    sys.exit(bool(failed + check_deadline(arguments.preset)))


if __name__ == "__main__":
    main()
