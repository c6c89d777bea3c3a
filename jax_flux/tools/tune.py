# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""``python -m jax_flux tune``: measures plans and writes the file that dispatch obeys.

Route: group.py (which devices) -> cases.py (which rows) -> tuner.py (row by row) -> space.py and
search.py (which plans, in which order) -> trials.py (right? how fast?) -> jax_flux/_records.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import pathlib
import sys
from collections.abc import Sequence

import jax

from jax_flux import _ffi, _plan, _records, _tuning, errors
from jax_flux.tools import about, cases, group, paths, trials
from jax_flux.tools.cases import Case
from jax_flux.tools.tuner import Call, Place, RowTrials, Say, Stopped, tune_rows

DEFAULT_ROWS = "gpt3+ag,gpt3+rs,layers"
LAYOUTS = ("nn", "nt")


def main(argv: Sequence[str] | None = None) -> int:
    """Tunes and writes; 0 where every row has a record, 1 where not, 2 for bad flags."""
    parser = _parser()
    options = parser.parse_args(sys.argv[1:] if argv is None else argv)
    calls = _judged(parser, options)
    out: pathlib.Path = options.out
    try:
        old = [] if options.fresh or options.process else _old(out)
    except errors.TuningError as error:
        print(f"jax_flux tune: {error} Or start over with --fresh.", file=sys.stderr)
        return 1
    # What was tuned before must not steer what is measured now, here or in another process.
    _tuning.use(_tuning.NONE)
    try:
        ranks = group.join(options)
    except group.GroupError as error:
        return _stop(f"{error}.", error.status)
    if not ranks.on_gpu:
        return _stop(
            "JAX runs on CPU devices, where every call takes XLA: there is no plan to measure. "
            "Run on two or more GPUs."
        )
    place = _place(ranks, options)
    speaks = jax.process_index() == 0
    say: Say = (lambda text: print(text, file=sys.stderr, flush=True)) if speaks else lambda _: None
    if place.shared:
        say(f"ranks share a GPU: dispatch obeys such records only with {_tuning.SHARED_VARIABLE}=1")
    file = _File(out, {record.key: record for record in old}, speaks)

    def row_trials(call: Call) -> RowTrials:
        return trials.Trials(
            call.case,
            ranks,
            dtype=place.dtype,
            transpose_w=call.layout == "nt",
            batch=place.batch,
            budget_s=options.budget,
        )

    broken = False
    try:
        done = tune_rows(calls, place, row_trials, say, file.save)
    except Stopped as stopped:
        done, broken = stopped.done, True
    if not file.whole:
        file.write()  # there may be room by now
    if speaks and not file.whole:
        print(f"{done} of {len(calls)} rows measured. What {out} should hold:")
        print(_records.dumps(list(file.records.values())), flush=True)
    elif speaks:
        print(f"{done} of {len(calls)} rows recorded in {out}")
        if jax.process_count() > 1:
            print("Every host of a job must have the same file: copy it to the others.")
    return group.leave(0 if done == len(calls) and file.whole else 1, broken=broken)


@dataclasses.dataclass
class _File:
    """The records that ``path`` shall hold; ``whole`` while it holds them all."""

    path: pathlib.Path
    records: dict[_records.Key, _records.Record]
    speaks: bool  # whether this process writes
    whole: bool = True

    def save(self, record: _records.Record) -> None:
        self.records[record.key] = record
        self.write()

    def write(self) -> None:
        put = lambda: write(self.path, list(self.records.values()))
        self.whole = not self.speaks or paths.told("tune", {f"--out {self.path}": put})


def write(path: pathlib.Path, records: Sequence[_records.Record]) -> None:
    """Replaces the file in one step: a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    paths.write_text(path, _records.dumps(records))


def _old(path: pathlib.Path) -> list[_records.Record]:
    """Records that stay beside the new ones."""
    if not path.exists():
        return []
    return _records.parse(_tuning.text_of(path), str(path))


def _place(ranks: group.Group, options: argparse.Namespace) -> Place:
    return Place(
        world=ranks.world,
        dtype=options.dtype,
        batch=options.batch,
        device_kind=str(jax.devices()[0].device_kind),
        installed=_ffi.installed(),
        shared=ranks.label == group.SHARED,
        versions=tuple(sorted(about.versions().items())),
        today=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )


def _stop(text: str, status: int = 1) -> int:
    print(f"jax_flux tune: {text}", file=sys.stderr)
    return status


# ---- flags ---------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m jax_flux tune", description=_DESCRIPTION)
    parser.add_argument(
        "--rows",
        "--shapes",
        nargs="+",
        default=[DEFAULT_ROWS],
        help="rows as bench names them: tags, or sizes such as ag-1024x6144x12288 "
        f"(m of all ranks, n and k per GPU); default {DEFAULT_ROWS}",
    )
    parser.add_argument("--dtype", choices=_plan.FUSED_DTYPES, default=_plan.FUSED_DTYPES[0])
    parser.add_argument(
        "--layouts", default="nn", help="nn (w[k, n]), nt (transpose_w), or both with a comma"
    )
    parser.add_argument(
        "--backward", action="store_true", help="tune the dx of every row too: its mirror op, nt"
    )
    parser.add_argument("--batch", type=int, default=1, help="x of B batches of m rows (default 1)")
    parser.add_argument(
        "--budget", type=float, default=60.0, metavar="S", help="seconds per row (default 60)"
    )
    parser.add_argument(
        "--out",
        type=paths.path,
        default=_tuning.user_file(),
        metavar="F.json",
        help=f"file to add to (default {_tuning.user_file() or f'none: {_records.VARIABLE}=off'})",
    )
    parser.add_argument("--fresh", action="store_true", help="replace the file, keep no old record")
    group.add_flags(parser)
    return parser


def _judged(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[Call]:
    """Judges the flags before any device is touched; leaves through ``parser.error``."""
    if options.out is None:
        parser.error(f"--out: {_records.VARIABLE} switches the user's file off, so name one")
    own = group.may_write(options)
    if no_file := paths.complaint("--out", options.out, writes=own, makes_folders=True):
        parser.error(no_file)
    if not options.budget > 0:
        parser.error(f"--budget {options.budget}: seconds, more than 0")
    if options.batch < 1:
        parser.error(f"--batch {options.batch}: at least 1")
    layouts = tuple(dict.fromkeys(filter(None, options.layouts.split(","))))
    if not layouts or not set(layouts) <= set(LAYOUTS):
        parser.error(f"--layouts {options.layouts!r}: nn, nt, or nn,nt")
    wrong = group.complaint(options)
    if wrong:
        parser.error(wrong)
    try:
        rows = cases.select(",".join(options.rows))
    except ValueError as error:
        parser.error(str(error))
    calls = [Call(row, layout) for row in rows for layout in layouts]
    if options.backward:
        calls += [Call(_mirror(call.case), _other(call.layout)) for call in calls]
    return list(dict.fromkeys(calls))


def _mirror(case: Case) -> Case:
    """The op that computes dx: gather and scatter, n and k change places."""
    kind = {"ag": "rs", "rs": "ag"}.get(case.kind, case.kind)
    return Case(kind, case.m, case.k, case.n)


def _other(layout: str) -> str:
    return LAYOUTS[1 - LAYOUTS.index(layout)]


_DESCRIPTION = (
    "Measures plans of ag_matmul and matmul_rs (kernel, sizes of pushed chunks, order of tiles) on "
    "all devices, against XLA and in turns with it, checks every plan's result, and writes the "
    "fastest with both times into a file. Calls of exactly these shapes then run by it: the plan, "
    "or XLA where that was faster. With several processes the slowest one's time counts and "
    "process 0 writes. Exit status 1 where a row has no record or the file was not written, 2 "
    "for bad flags."
)
