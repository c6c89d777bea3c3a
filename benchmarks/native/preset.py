# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

"""Preset mode: one rank of the fused kernels alone on one GPU, checked and timed against cuBLAS.

Peers' workspaces lie in local memory, entries and flags are set to the call's epoch, peers' shards
or partials are filled in. So the kernel runs its whole path, pushes included, and never waits.
No link is involved: times say what the kernel costs, not what overlap gains.

    python preset.py LIBRARY check [INSTANCE ...]   each instance in a process of its own
    python preset.py LIBRARY waits [INSTANCE ...]   the same with peers that come late, or never
    python preset.py LIBRARY time [--json FILE]     medians beside torch.mm in the same run
"""

import argparse
import json
import sys

import torch
from preset_check import cases, check, check_deadline, in_child, late_cases
from preset_rank import Library, Rank

SHAPES = [  # m over all ranks, n, k
    (1024, 6144, 12288), (8192, 6144, 12288), (1024, 12288, 6144), (8192, 12288, 6144),
    (8192, 4096, 8192), (8192, 8192, 4096),
]  # fmt: skip


DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


def measure(runs, repetitions=9, inner=3):
    """Medians in us of every entry, interleaved."""
    for run in runs.values():
        run()
    torch.cuda.synchronize()
    samples = {key: [] for key in runs}
    for _ in range(repetitions):
        for key, run in runs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
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


def time_shape(library, names, shape, worlds, plans):
    m, n, k = shape
    runs = {}
    for dtype in DTYPES:
        if any(f"_{dtype}_" in name for name in names):
            runs |= unfused(dtype, shape)
    for name in names:
        op = name.rsplit("_", 1)[1]
        for world in [1] if op == "plain" else worlds:
            state = Rank(library, name, world, min(1, world - 1), 1, m // world, n, k)
            state.endless()
            label = f"{name.removeprefix('sm90_')} W{world}"
            for plan in plans or [{}]:
                choice = " ".join(f"{key}={value}" for key, value in plan.items())
                runs[f"{label} {choice}".strip()] = state.launcher(**plan)
    return measure(runs)


def plan_fields(text):
    return {key: int(value) for key, value in (part.split("=") for part in text.split(","))}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("mode", choices=["check", "waits", "time"])
    parser.add_argument("names", nargs="*", help="parts of instance names; all by default")
    parser.add_argument("--json")
    parser.add_argument("--worlds", type=int, nargs="*", default=[2, 8])
    parser.add_argument(
        "--plan",
        type=plan_fields,
        nargs="*",
        metavar="FIELD=N[,FIELD=N]",
        help="variants of the default plan; fields that do not move flags",
    )
    parser.add_argument("--rows", type=int, nargs="*", help="only shapes of these m")
    parser.add_argument("--seconds", type=float, default=25)
    arguments = parser.parse_args()
    if arguments.mode == "check":
        sys.exit(bool(check(arguments.library, arguments.names, arguments.seconds, cases)))
    if arguments.mode == "waits":
        failed = check(arguments.library, arguments.names, arguments.seconds, late_cases)
        sys.exit(bool(failed + check_deadline(arguments.library)))

    results = []

    def body(shape):
        library = Library(arguments.library)
        names = [n for n in library.instances()
                 if not arguments.names or any(w in n for w in arguments.names)]  # fmt: skip
        medians = time_shape(library, names, shape, arguments.worlds, arguments.plan)
        print(f"m, n, k = {shape}")
        for key, value in medians.items():
            layout = "_".join(key.removeprefix("cublas ").split("_")[:2])
            base = medians[f"cublas {layout}"]
            print(f"  {key:45s} {value:8.1f} us  {base / value:.3f} of cuBLAS")
        if arguments.json:
            with open(arguments.json, "a") as file:
                file.write(json.dumps({"shape": shape, "us": medians}) + "\n")

    for shape in [s for s in SHAPES if not arguments.rows or s[0] in arguments.rows]:
        results.append(in_child(arguments.seconds, lambda shape=shape: body(shape)))
    sys.exit(any(results))


if __name__ == "__main__":
    main()
