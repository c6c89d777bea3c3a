# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

"""preset.py's modes time, search and trace: tables of times, and records of them."""

import functools
import itertools
import sys

import preset_flags
import preset_link
import preset_record
import torch
from preset_check import in_child
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
