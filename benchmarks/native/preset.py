# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

"""Preset mode: one rank of the fused kernels alone on one GPU, checked and timed against cuBLAS.

Peers' workspaces lie in local memory, entries and flags are set to the call's epoch, peers' shards
or partials are filled in. So the kernel runs its whole path, pushes included, and never waits.
No link is involved: times say what the kernel costs, not what overlap gains.

    python preset.py LIBRARY check [INSTANCE ...]   each instance in a process of its own
    python preset.py LIBRARY waits [INSTANCE ...]   the same with peers that come late, or never
    python preset.py LIBRARY time [--json FILE]     medians beside torch.mm in the same run

With --link GB_PER_S the peers' flags come at the pace of an emulated link (preset_link.py): check
and time measure overlap then, and `search` tries a grid of plans:

    python preset.py LIBRARY time --link 350 --json FILE --worlds 2 4 8
    python preset.py LIBRARY search _ag --link 350 --rows 1024 --grid chunk_rows=64,128 push_ctas=32
    python preset.py LIBRARY trace _ag --link 350 --rows 1024 --worlds 4 --json STEM
"""

import argparse
import datetime
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import preset_link
import torch
from preset_check import cases, check, check_deadline, in_child, late_cases
from preset_rank import Library, Rank

SHAPES = [  # m over all ranks, n, k
    *((m, n, k) for m in (16, 64, 128, 256, 512) for n, k in ((6144, 12288), (12288, 6144))),
    (1024, 6144, 12288), (8192, 6144, 12288), (1024, 12288, 6144), (8192, 12288, 6144),
    (8192, 4096, 8192), (8192, 8192, 4096),
]  # fmt: skip


EPILOGUES = ("bias", "bias+relu", "bias+gelu", "bias+silu")
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


def measure(runs, repetitions=9, inner=3):
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


def time_shape(library, names, shape, worlds, plans, epilogues):
    m, n, k = shape
    runs = {}
    for dtype in DTYPES:
        if any(f"_{dtype}_" in name for name in names):
            runs |= unfused(dtype, shape)
    for name in names:
        op = name.rsplit("_", 1)[1]
        for world in [1] if op == "plain" else worlds:
            if "_pack_" in name and not m // world <= 128:
                continue
            label = f"{name.removeprefix('sm90_')} W{world}"
            states = {}
            for plan in plans or [{}]:
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
            for epilogue in epilogues if op != "rs" else epilogues[:1]:
                state = next(iter(states.values()))
                runs[f"{label} {epilogue}"] = state.launcher(**state.epilogue(epilogue))
    return measure(runs)


def plan_fields(text):
    return {key: int(value) for key, value in (part.split("=") for part in text.split(","))}


def grid_field(text):
    key, values = text.split("=")
    return key, [int(value) for value in values.split(",")]


def linked_rows(arguments):
    """(op, row) of the paced tables that the flags pick."""
    for op, rows in preset_link.ROWS.items():
        if arguments.names and not any(f"_{op}" in name for name in arguments.names):
            continue
        for row in rows:
            if not arguments.rows or row[0] in arguments.rows:
                yield op, row


def time_linked(arguments):
    """Every row, world and paced instance; the table, and a record of it."""
    wanted = [name for name in arguments.names if name not in ("_ag", "_rs")]
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        part = pathlib.Path(folder, "rows.jsonl")

        def body(world):
            library = Library(arguments.preset)
            for op, row in linked_rows(arguments):
                record = preset_link.time_row(library, op, row, world, arguments.link, wanted,
                                              arguments.repetitions)  # fmt: skip
                with part.open("a") as file:
                    file.write(json.dumps(record) + "\n")

        for world in arguments.worlds:
            failed.append(in_child(arguments.seconds, lambda world=world: body(world)))
        records = [json.loads(line) for line in part.read_text().splitlines()]
    peak = max(2 * r["m"] * r["n"] * r["k"] / min(r["cublas_us"], r["plain_us"]) for r in records)
    for record in records:
        preset_link.judge(record, peak)
        print(*preset_link.lines(record), sep="\n")
    if arguments.json:
        pathlib.Path(arguments.json).write_text(
            json.dumps({**machine(arguments), "peak_tflops": peak / 1e6, "rows": records}, indent=1)
        )
    return any(failed)


def machine(arguments):
    query = "name,driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu"
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={query}", "--format=csv,noheader"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "label": "emulated: one rank alone, its peers by symmetry, one link of the given rate",
        "link_gb_per_s": arguments.link,
        "command": " ".join(["python", "benchmarks/native/preset.py", *sys.argv[1:]]),
        "gpu_after_the_run": dict(zip(query.split(","), said.split(", "), strict=False)),
        "torch": torch.__version__, "cuda": torch.version.cuda,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": arguments.commit,
        "times": f"medians in us of {arguments.repetitions} x 2 launches, all of a row in turns",
    }  # fmt: skip


def search_linked(arguments):
    wanted = [name for name in arguments.names if name not in ("_ag", "_rs")]
    picked = list(linked_rows(arguments))
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
        wanted = [name for name in arguments.names if name not in ("_ag", "_rs")]
        plan = (arguments.plan or [{}])[0]
        for (op, row), world in itertools.product(linked_rows(arguments), arguments.worlds):
            for name in names:
                if name.endswith(f"_{op}") and (not wanted or any(w in name for w in wanted)):
                    trace_row(library, name, op, row, world, arguments.link, plan, arguments.json)

    return in_child(arguments.seconds, body) != 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", metavar="library", help="libpreset.so, built by Bazel")
    parser.add_argument("mode", choices=["check", "waits", "time", "search", "trace"])
    parser.add_argument("names", nargs="*", help="parts of instance names; all by default")
    parser.add_argument("--json", type=os.path.expanduser)
    parser.add_argument("--worlds", type=int, nargs="*", default=[2, 8])
    parser.add_argument(
        "--plan",
        type=plan_fields,
        nargs="*",
        metavar="FIELD=N[,FIELD=N]",
        help="variants of the default plan: fields that do not move flags, and transport "
        "(0 tma, 1 copy), copies (1: of the own shard too, before the GEMM)",
    )
    parser.add_argument(
        "--epilogues",
        choices=EPILOGUES,
        nargs="*",
        default=[],
        help="also time with a bias and maybe an activation (rs: the first of these)",
    )
    parser.add_argument("--rows", type=int, nargs="*", help="only shapes of these m")
    parser.add_argument("--columns", type=int, nargs="*", help="only shapes of these n")
    parser.add_argument("--seconds", type=float, default=25)
    parser.add_argument("--link", type=float, metavar="GB_PER_S", help="pace of an emulated link")
    parser.add_argument("--grid", type=grid_field, nargs="*", metavar="FIELD=N,N,...",
                        help="search: plan fields and their values")  # fmt: skip
    parser.add_argument("--budget", type=float, default=60, help="search: seconds for all rows")
    parser.add_argument("--repetitions", type=int, default=9, help="time --link")
    parser.add_argument("--commit", default="unknown", help="for the record of time --link")
    arguments = parser.parse_args()
    if arguments.mode in ("search", "trace") and not arguments.link:
        parser.error(f"{arguments.mode} wants --link GB_PER_S: without a link nothing waits")
    if arguments.mode == "search":
        sys.exit(search_linked(arguments))
    if arguments.mode == "trace":
        sys.exit(trace_linked(arguments))
    if arguments.mode == "time" and arguments.link:
        sys.exit(time_linked(arguments))
    if arguments.mode == "check" and arguments.link:

        def paced(op):
            # Copy engines send past the emulated link.
            pushed = (c for c in cases(op) if not c.get("plan", {}).get("transport"))
            return ({**case, "link": arguments.link} for case in pushed)

        sys.exit(bool(check(arguments.preset, arguments.names, arguments.seconds, paced, True)))
    if arguments.mode == "check":
        sys.exit(bool(check(arguments.preset, arguments.names, arguments.seconds, cases)))
    if arguments.mode == "waits":
        failed = check(arguments.preset, arguments.names, arguments.seconds, late_cases)
        sys.exit(bool(failed + check_deadline(arguments.preset)))

    results = []

    def body(shape):
        library = Library(arguments.preset)
        names = [n for n in library.instances()
                 if not arguments.names or any(w in n for w in arguments.names)]  # fmt: skip
        medians = time_shape(
            library, names, shape, arguments.worlds, arguments.plan, arguments.epilogues
        )
        print(f"m, n, k = {shape}")
        for key, value in medians.items():
            layout = "_".join(key.removeprefix("cublas ").split("_")[:2])
            base = medians[f"cublas {layout}"]
            print(f"  {key:45s} {value:8.1f} us  {base / value:.3f} of cuBLAS")
        if arguments.json:
            with open(arguments.json, "a") as file:
                file.write(json.dumps({"shape": shape, "us": medians}) + "\n")

    wanted = [s for s in SHAPES
              if (not arguments.rows or s[0] in arguments.rows)
              and (not arguments.columns or s[1] in arguments.columns)]  # fmt: skip
    for shape in wanted:
        results.append(in_child(arguments.seconds, lambda shape=shape: body(shape)))
    sys.exit(any(results))


if __name__ == "__main__":
    main()
