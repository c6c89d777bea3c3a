# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""``make gpu-report``: everything that GPUs can show of this checkout, as one JSON and one page.

Route: parts.py (what there is to run here) -> runner.py (one part after the other) -> state.py
(what is done, so that the next run goes on) -> record.py (the JSON), page.py and pictures.py.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from collections.abc import Sequence

from benchmarks.gpu_report import compare, page, parts, pictures, record, runner, state
from jax_flux.tools import paths

ROOT = pathlib.Path(__file__).resolve().parents[2]
LEAST_S = 20.0  # a part is not started for less than this


def main(
    argv: Sequence[str] | None = None,
    machine: parts.Machine | None = None,
    plan: Sequence[parts.Part] | None = None,
) -> int:
    """0 where every part held, 1 where one failed or is missing, 2 for bad flags.

    ``machine`` and ``plan`` stand for what is found here and planned for it.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    if options.compare:
        return compare.main(*options.compare)
    if options.page:
        print(page.front_page(record.read(options.page)))
        return 0
    machine = machine or parts.look()
    if not machine.gpus:
        if not options.list:
            print(_NO_GPU, file=sys.stderr)
            return 1
        print(_NO_GPU_LIST, file=sys.stderr)
        machine = parts.Machine(("NVIDIA H200",) * 2)
    try:
        wanted = parts.chosen(plan or parts.plan(machine, options.quick), options.only)
    except ValueError as error:
        parser.error(f"--only: {error}")
    if options.list:
        print("\n".join(f"{part.name:28s} {part.limit_s:4.0f} s  {part.title}" for part in wanted))
        return 0
    if not machine.real:
        print(_ONE_GPU if machine.sharing_nccl else _ONE_GPU + _NO_SHARING, file=sys.stderr)
    code = state.digest(ROOT)
    kept = f"{machine.stem}-{code}{'-quick' * options.quick}" + f"-{options.run}" * bool(
        options.run
    )
    known = state.State(options.work / kept, code)
    try:
        _run(wanted, known, machine, options)
    except runner.Stopped as signal:
        print(f"gpu-report: {signal}; the next run goes on from here.", file=sys.stderr)
    made = record.build(known, machine, wanted, options.quick)
    folder = options.out or _results(machine, options.quick, known)
    stem = f"{machine.stem}_{made['date']}" + (f"_{options.run}" if options.run else "")
    files = page.write(made, folder, stem, pictures.write(made, folder, stem))
    print(page.summary(made))
    print(f"wrote {', '.join(str(path) for path in files)}")
    return 0 if record.complete(made) else 1


def _run(
    wanted: Sequence[parts.Part],
    known: state.State,
    machine: parts.Machine,
    options: argparse.Namespace,
) -> None:
    runner.adopt_orphans()
    runner.stop_on_signals()
    end = time.monotonic() + options.seconds
    due = known.due(wanted)
    for number, part in enumerate(due):
        left = end - time.monotonic()
        if left < min(LEAST_S, part.limit_s):
            print(f"gpu-report: time is over, {len(due) - number} parts left", file=sys.stderr)
            return
        print(f"[{number + 1}/{len(due)}] {part.name}: {part.title}", file=sys.stderr, flush=True)
        _one(part, known, machine, min(part.limit_s, left), options)


def _one(
    part: parts.Part,
    known: state.State,
    machine: parts.Machine,
    limit_s: float,
    options: argparse.Namespace,
) -> None:
    """Runs one part and notes how it ended."""
    known.note(
        part, status="running", attempts=1 + known.parts.get(part.name, {}).get("attempts", 0)
    )
    out, logs = known.output(part), known.folder / part.name
    start = time.monotonic()
    try:
        status, code = runner.run(
            part.commands(out, runner.free_port()), part.environment(machine), logs, ROOT, limit_s
        )
    except runner.Stopped:
        known.note(part, status="killed", note="the run was told to end")
        raise
    seconds = round(time.monotonic() - start, 1)
    note = f"ended by its limit of {limit_s:.0f} s" if status == "killed" else ""
    known.note(part, status=status, code=code, seconds=seconds, note=note)
    print(f"    {status} in {seconds:.0f} s", file=sys.stderr, flush=True)
    if status != "held":
        print(record.tail(logs / "0.log", 12), file=sys.stderr, flush=True)


def _results(machine: parts.Machine, quick: bool, known: state.State) -> pathlib.Path:
    """Records go to benchmarks/results; what times nothing stays with its parts."""
    if machine.real and not quick:
        return ROOT / "benchmarks" / "results"
    return known.folder


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make gpu-report REPORT_ARGS=", description=_DESCRIPTION)
    parser.add_argument(
        "--seconds", type=float, default=7 * 86400.0, help="start nothing that ends after this"
    )
    parser.add_argument("--only", metavar="WORDS", help="parts whose names hold one of these words")
    parser.add_argument("--list", action="store_true", help="list the parts; needs no GPU")
    parser.add_argument("--quick", action="store_true", help="shorter loops, for a trial")
    parser.add_argument(
        "--work",
        type=paths.path,
        default=ROOT / "out" / "gpu_report",
        help="keeps what is done, per code and machine (default out/gpu_report)",
    )
    parser.add_argument(
        "--run", metavar="NAME", help="a further run on the same code, kept apart: for --compare"
    )
    parser.add_argument("--out", type=paths.path, help="folder of JSON, page and pictures")
    parser.add_argument(
        "--compare",
        nargs=2,
        type=paths.path,
        metavar=("A.json", "B.json"),
        help="how far two reports of the same code are apart; measures nothing",
    )
    parser.add_argument(
        "--page", type=paths.path, metavar="F.json", help="print the front page's table of F"
    )
    return parser


_DESCRIPTION = (
    "Runs the GPU tests, loops of random calls, benchmarks and a transformer block in every "
    "process model that the machine allows, part by part, and writes one JSON and one page. "
    "Started again it goes on where it was ended. Needs no network."
)
_NO_GPU = (
    "gpu-report: no NVIDIA GPU is visible here (nvidia-smi names none), and there is nothing else "
    "to report. Run it on a machine with two or more GPUs; on one GPU it runs what ranks can show "
    "that share it. Without any, `make test` and `python -m jax_flux bench` run on CPU devices."
)
_NO_GPU_LIST = (
    "gpu-report: no NVIDIA GPU is visible here: the parts of a machine with two. Four or eight add "
    "groups that are parts of the mesh."
)
_ONE_GPU = (
    "gpu-report: one GPU. Ranks take turns on it: what is right shows, no figure of speed does. "
)
_NO_SHARING = (
    "Sharing needs NCCL 2.30 or newer: install nvidia-nccl-cu13 2.30.7 or set JAX_FLUX_TEST_NCCL "
    "to its libnccl.so.2; without it only the tests of one rank run."
)

if __name__ == "__main__":
    sys.exit(main())
