# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""``python -m jax_flux stress``: randomly mixed calls with late ranks, every result checked.

A round makes one new program of random calls (random_calls.py, random_programs.py), judges its
results on three data sets against f32 and XLA, and then runs a burst of executions of all programs
that are alive, in random order, one rank being late, each compared with the judged results. All of
it follows from the seed and the number of the round, so a failure can be run again alone.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import jax_flux
from jax_flux.tools import group, paths, random_calls, random_programs, report

SIZES = {"full": (random_calls.FULL, 1 << 25), "small": (random_calls.SMALL, 1 << 17)}
ALIVE = 6  # programs that a burst draws from
DATA_SETS = 3
DAWDLE = (0, 0, 30, 300)  # steps of the late rank, about 10 us each on a GPU
PAUSE_S = 0.02  # at most, of the late rank's host


class StressError(Exception):
    """A result is wrong, or an execution failed; the text has seed, round and calls."""


@dataclasses.dataclass
class Alive:
    """A judged program, and what its results are on each data set."""

    number: int
    program: random_programs.Program
    kept: list[tuple[int, random_programs.Arrays]]


class Loop:
    """The state of a run. Every rank holds the same but for ``data``'s shards."""

    def __init__(self, devices: Sequence[Any], seed: int, sizes: str, burst: int) -> None:
        self.devices, self.seed, self.burst = devices, seed, burst
        self.sizes, self.values = SIZES[sizes]
        self.layouts = random_programs.layouts(len(devices))
        self.data: dict[random_programs.Layout, random_programs.Data] = {}
        self.alive: collections.deque[Alive] = collections.deque(maxlen=ALIVE)
        self.counts: collections.Counter[str] = collections.Counter()
        self.worst = 0.0

    def round(self, number: int) -> None:
        """Makes program ``number`` and runs a burst; raises StressError."""
        program = self.make(number)
        told = f"seed {self.seed}, round {number}, {program.words()}"
        try:
            self.alive.append(self.admit(number, program, told))
            self.run_burst(number)
        except jax.errors.JaxRuntimeError as error:
            record = jax_flux.last_failure()
            raise StressError(f"{told}: {error}" + (f"\n{record}" if record else "")) from error
        self.counts["rounds"] += 1

    def make(self, number: int) -> random_programs.Program:
        """Program ``number``: it follows from the seed alone."""
        rng = np.random.default_rng([self.seed, number])
        layout = self.layouts[int(rng.integers(len(self.layouts)))]
        if layout not in self.data:
            self.data[layout] = random_programs.Data(self.devices, layout, self.values)
        calls = [
            random_calls.draw(rng, layout.world, self.sizes) for _ in range(1 + rng.integers(3))
        ]
        return random_programs.Program(calls, self.data[layout], check_vma=bool(rng.random() < 0.5))

    def admit(self, number: int, program: random_programs.Program, told: str) -> Alive:
        """Runs and judges each data set once."""
        rng = np.random.default_rng([self.seed, number, 1])
        kept = []
        for offset in rng.integers(0, self.values, DATA_SETS).tolist():
            results = program.run(offset)
            for at, row in enumerate(program.judged(offset, results)):
                if row["broken"] or not row["error"] <= row["allowed"]:
                    raise StressError(f"{told}: result {at} at offset {offset} is wrong: {row}")
                if row["xla"] > 0:
                    self.worst = max(self.worst, row["error"] / row["allowed"])
            kept.append((offset, results))
            self.counts["judged"] += len(program.shapes)
        self.counts["fused call sites"] += program.fused
        self.counts["call sites"] += program.sites
        self.counts.update(call.op for call in program.calls)
        self.counts.update(f"{call.dtype} calls" for call in program.calls)
        self.counts["calls with a forced plan"] += sum(c.config is not None for c in program.calls)
        self.counts["calls with gradients"] += sum(call.gradient for call in program.calls)
        self.counts[f"mesh {program.data.layout.words()}"] += 1
        return Alive(number, program, kept)

    def run_burst(self, number: int) -> None:
        """Executions of programs that are alive, none awaited before all are on their way."""
        rng = np.random.default_rng([self.seed, number, 2])
        told, counts = [], []
        for execution in range(self.burst):
            one = self.alive[int(rng.integers(len(self.alive)))]
            offset, kept = one.kept[int(rng.integers(DATA_SETS))]
            late, amount = int(rng.integers(len(self.devices))), int(rng.choice(DAWDLE))
            pause = rng.uniform(0, PAUSE_S) if rng.random() < 0.2 else 0.0
            flat = one.program.data.mesh.devices.flat
            if pause and flat[late].process_index == jax.process_index():
                time.sleep(pause)
            results = one.program.run(offset, late, amount)
            counts.append(one.program.differing(results, kept))
            told.append(
                f"seed {self.seed}, round {number}, execution {execution}, offset {offset}, device "
                f"{late} late by {amount} steps and {pause:.3f} s: program {one.number}, "
                f"{one.program.words()}"
            )
        width = max(map(len, counts))
        own = np.zeros((len(counts), width), np.int32)
        for row, line in enumerate(counts):
            for column, count in enumerate(line):
                own[row, column] = sum(int(s.data[0]) for s in count.addressable_shards)
        wrong = group.gather(own).sum(axis=0)
        if wrong.any():
            row, column = (int(at[0]) for at in np.nonzero(wrong))
            text = f"{wrong[row, column]} values of result {column} differ from the judged ones"
            raise StressError(f"{told[row]}: {text} ({np.count_nonzero(wrong)} results in all)")
        self.counts["executions"] += len(counts)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until time or rounds are over; 0 where all held, 1 where not, 2 for bad flags."""
    parser = _parser()
    options = parser.parse_args(list(sys.argv[1:] if argv is None else argv))
    wrong = group.complaint(options)
    if wrong:
        parser.error(wrong)
    least = min(options.burst, 1 if options.rounds is None else options.rounds)
    if min(options.seed, options.seconds, options.round or 0) < 0 or least < 1:
        parser.error("--seed, --seconds and --round count from 0, --burst and --rounds from 1")
    if no_file := paths.complaint("--json", options.json, writes=group.may_write(options)):
        parser.error(no_file)
    try:
        ranks = group.join(options)
    except group.GroupError as error:
        print(f"jax_flux stress: {error}.", file=sys.stderr)
        return error.status
    speaks = jax.process_index() == 0
    sizes = options.sizes or ("full" if ranks.on_gpu else "small")
    loop = Loop(list(ranks.mesh.devices.flat), options.seed, sizes, options.burst)
    if options.mesh:
        shape = tuple(options.mesh.values())
        loop.layouts = [random_programs.Layout(shape, tuple(options.mesh), (group.AXIS,))]
    failure, written, start = None, True, time.monotonic()
    numbers = _numbers(options)
    for number in numbers:
        try:
            loop.round(number)
        except StressError as error:
            failure = str(error)
            print(f"jax_flux stress, process {jax.process_index()}: {failure}", file=sys.stderr)
        seconds = time.monotonic() - start
        if speaks:
            _tell(loop, number, seconds)
            _write(loop, options, ranks, seconds, failure, done=False)
        if failure is not None:
            break
        # All ranks must stop after the same round: process 0's clock decides.
        if options.seconds and group.gather(np.float32(seconds))[0] >= options.seconds:
            break
    if speaks:
        line = f"{'FAILED' if failure else 'held'}: {_sums(loop)}"
        printed = paths.told("stress", {"the last line": lambda: print(line, flush=True)})
        seconds = time.monotonic() - start
        done = failure is None
        written = _write(loop, options, ranks, seconds, failure, done) and printed
    return group.leave(0 if failure is None and written else 1, broken=failure is not None)


def _numbers(options: argparse.Namespace) -> Sequence[int]:
    if options.round is not None:
        return [options.round]
    return range(options.rounds or sys.maxsize)


def _tell(loop: Loop, number: int, seconds: float) -> None:
    print(f"[{seconds:.0f} s] round {number}: {_sums(loop)}", file=sys.stderr, flush=True)


def _sums(loop: Loop) -> str:
    c = loop.counts
    return (
        f"{c['rounds']} programs, {c['judged']} results judged, {c['executions']} executions, "
        f"{c['fused call sites']} of {c['call sites']} call sites fused"
    )


def _write(
    loop: Loop,
    options: argparse.Namespace,
    ranks: group.Group,
    seconds: float,
    failure: str | None,
    done: bool,
) -> bool:
    if options.json is None:
        return True
    record = dict(
        what="randomly mixed calls, each result checked; jax_flux/tools/stress.py",
        group=dict(devices=len(loop.devices), processes=jax.process_count(), label=ranks.label),
        device_kind=loop.devices[0].device_kind,
        seed=loop.seed,
        seconds=round(seconds, 1),
        done=done,
        failure=failure,
        worst_error_over_allowed=round(loop.worst, 3),
        counts=dict(sorted(loop.counts.items())),
    )
    put = lambda: report.write_json(record, options.json)
    return paths.told("stress", {f"--json {options.json}": put})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m jax_flux stress", description=_DESCRIPTION)
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="stop after this time (120); 0: never"
    )
    parser.add_argument("--rounds", type=int, help="stop after so many programs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--round", type=int, metavar="R", help="only this program, alone")
    parser.add_argument("--burst", type=int, default=40, help="executions per round")
    parser.add_argument("--sizes", choices=SIZES, help="default: full on GPUs, small on the CPU")
    parser.add_argument("--json", type=paths.path, metavar="F", help="write what held here")
    group.add_flags(parser)
    return parser


_DESCRIPTION = (
    "Runs programs of randomly mixed ag_matmul, matmul_rs and matmul_ar calls (sizes, dtypes, "
    "layouts, several weights, gradients, meshes), one rank being late, and checks every result. "
    "Exit status 1 with seed, round and calls where one is wrong, or where the file was not "
    "written; 2 for bad flags."
)
