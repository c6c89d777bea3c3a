# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""``python -m jax_flux bench``: the ops against XLA (and Pallas), and how much is left to hide.

Route: group.py (which devices) -> cases.py (which rows) -> measure.py (times of contenders.py's
functions) -> figures.py (ECT, E, limit) -> report.py (table, JSON, picture).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from jax_flux.tools import (
    about,
    cases,
    contenders,
    figures,
    group,
    machine,
    measure,
    paths,
    patience,
    report,
    targets,
)

DTYPES = tuple(measure.WRONG)
MIN_REPEATS = 7
Step = Callable[[str], None]


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and reports; 0 where every row ran and is right, 1 where not, 2 for bad flags.

    Rows that would take hours on CPU devices are bad flags without ``--slow``.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    options = parser.parse_args(arguments)
    settings = _settings(parser, options)
    if options.show is not None:
        return _show_again(options)
    try:
        ranks = group.join(options)
    except group.GroupError as error:
        print(f"jax_flux bench: {error}.", file=sys.stderr)
        return error.status
    speaks = jax.process_index() == 0
    rows = options.rows or cases.select(cases.DEFAULT_GPU if ranks.on_gpu else cases.DEFAULT_CPU)
    what = f"{len(rows)} rows" if len(rows) > 1 else rows[0].name
    instead = f"Give --rows {cases.DEFAULT_CPU}, which shows that everything works"
    long = patience.refusal(ranks, measure.flop(rows, ranks, settings), what, instead)
    if long and not options.slow:
        if speaks:
            print(f"jax_flux bench: {long}", file=sys.stderr)
        return 2
    start = about.run(arguments, ranks, settings)
    before = machine.read()

    def record(
        measured: list[dict[str, Any]], ceilings: dict[str, Any], stopped: str | None
    ) -> Any:
        result = dict(ceilings=ceilings, stopped=stopped, rows=measured)
        return start | dict(machine=about.machines(before, machine.read())) | result

    def save(measured: list[dict[str, Any]], ceilings: dict[str, Any]) -> None:
        if speaks and options.json is not None:
            so_far, file = record(measured, ceilings, "not finished"), options.json
            paths.told("bench", {f"--json {file}": lambda: report.write_json(so_far, file)})

    with _progress(len(rows) + 1, options.plain, speaks) as step:
        measured, ceilings, stopped = _measure(rows, ranks, settings, step, save)
    kept = not speaks or _give(record(measured, ceilings, stopped), options)
    good = _good(measured, stopped) and kept
    return group.leave(0 if good else 1, broken=stopped is not None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m jax_flux bench", description=_DESCRIPTION)
    parser.add_argument(
        "--rows",
        type=_rows,
        help="tags, sizes, or all: gpt3+ag,rs-4096x2048x1024 "
        f"(default {cases.DEFAULT_GPU} on GPUs, {cases.DEFAULT_CPU} on the CPU)",
    )
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument(
        "--against",
        default="xla",
        help="xla, xla-lhs (XLA with its latency-hiding scheduler), pallas, joined by commas",
    )
    parser.add_argument(
        "--implementation",
        choices=("auto", "fused"),
        default="auto",
        help="auto: what a program gets (XLA where that is expected to be faster); fused: force it",
    )
    parser.add_argument("--repeats", type=int, default=9, help=f"at least {MIN_REPEATS}")
    parser.add_argument("--json", type=paths.path, metavar="F", help="write the record here")
    parser.add_argument("--plot", type=paths.path, metavar="F.png", help="draw it here")
    parser.add_argument(
        "--show",
        type=paths.path,
        metavar="F",
        help="show and draw an old record, measure nothing",
    )
    parser.add_argument("--plain", action="store_true", help="plain text on a terminal too")
    patience.add_flag(parser)
    group.add_flags(parser)
    return parser


def _rows(text: str) -> tuple[cases.Case, ...]:
    try:
        return cases.select(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _settings(parser: argparse.ArgumentParser, options: argparse.Namespace) -> measure.Settings:
    """Judges the flags before any device is touched; leaves through ``parser.error``."""
    against = tuple(dict.fromkeys(filter(None, options.against.split(","))))
    unknown = [name for name in against if name not in contenders.RIVALS]
    if unknown or not against:
        told = ", ".join(map(repr, unknown)) or "nothing"
        parser.error(f"--against names {told}; it takes {', '.join(contenders.RIVALS)}")
    if options.repeats < MIN_REPEATS:
        parser.error(f"--repeats {options.repeats}: a median wants {MIN_REPEATS} or more")
    for flag, path in (("--json", options.json), ("--plot", options.plot)):
        if no_file := paths.complaint(flag, path, writes=group.may_write(options)):
            parser.error(no_file)
    if options.plot is not None:
        if options.plot.suffix != ".png":
            parser.error(f"--plot {options.plot}: the picture is a PNG, so end the name in .png")
        if importlib.util.find_spec("matplotlib") is None:
            parser.error("--plot draws with matplotlib, which is missing: pip install matplotlib")
    wrong = group.complaint(options)
    if wrong:
        parser.error(wrong)
    forced = None if options.implementation == "auto" else str(options.implementation)
    return measure.Settings(options.dtype, options.repeats, against, forced)


def _measure(
    rows: Sequence[cases.Case],
    ranks: group.Group,
    settings: measure.Settings,
    step: Step,
    save: Callable[[list[dict[str, Any]], dict[str, Any]], None],
) -> tuple[list[dict[str, Any]], dict[str, Any], str | None]:
    """(rows with figures, ceilings, why it stopped early); what was measured is never lost."""
    real = ranks.label == group.REAL
    measured: list[dict[str, Any]] = []
    stopped: str | None = None
    dot, rate, at = 0.0, None, "peak and link"
    try:
        step(at)
        dot, rate = measure.ceilings(ranks, settings.dtype)
        for case in rows:
            at = case.name
            step(at)
            measured.append(measure.row(case, ranks, settings))
            save(measured, _finished(measured, dot, rate, real))
    except Exception as error:
        # A failed collective may leave peers in different calls: nothing after it can be trusted.
        stopped = f"{at}: {type(error).__name__}: {error}"
    if not measured or not dot:
        return measured, {}, stopped
    return measured, _finished(measured, dot, rate, real), stopped


def _finished(
    measured: list[dict[str, Any]], dot: float, rate: float | None, real: bool
) -> dict[str, Any]:
    """Adds figures and, on real links, what the goals say of them; the ceilings."""
    top = figures.finish(measured, dot, rate, real=real)
    if real:
        for row in measured:
            row["goals"] = [dataclasses.asdict(verdict) for verdict in targets.judge(row)]
    return top


def _good(measured: Sequence[dict[str, Any]], stopped: str | None) -> bool:
    """Every asked row ran in the package's own op, with the right result."""
    ours = [row["implementations"].get("jax_flux", {}) for row in measured]
    return not stopped and all("samples_s" in o and not o.get("wrong") for o in ours)


@contextlib.contextmanager
def _progress(total: int, plain: bool, speaks: bool) -> Iterator[Step]:
    """A step per row: rich's bar on a terminal, else a line on stderr."""
    if not speaks:
        yield lambda _: None
        return
    if not plain and sys.stdout.isatty() and importlib.util.find_spec("rich"):
        from rich.progress import Progress

        with Progress(transient=True) as bar:
            task = bar.add_task("starting", total=total)
            done = -1

            def advance(name: str) -> None:
                nonlocal done
                done += 1
                bar.update(task, description=name, completed=done)

            yield advance
        return
    count = 0

    def line(name: str) -> None:
        nonlocal count
        count += 1
        print(f"[{count}/{total}] {name}", file=sys.stderr, flush=True)

    yield line


def _show_again(options: argparse.Namespace) -> int:
    try:
        record = report.read_json(options.show)
    except (OSError, ValueError) as error:
        what = f"is no record of bench: {error}"
        if isinstance(error, FileNotFoundError):
            what = "there is no such file"
        elif isinstance(error, OSError):
            what = f"it cannot be read: {error.strerror}"
        print(
            f"jax_flux bench: --show {options.show}: {what}. Name a file that bench --json wrote.",
            file=sys.stderr,
        )
        return 1
    options.json = None
    return 0 if _give(record, options) else 1


def _give(record: dict[str, Any], options: argparse.Namespace) -> bool:
    """Prints the table and then writes the files; whether all of them came out."""
    outputs: dict[str, Callable[[], object]] = {"the table": lambda: _show(record, options.plain)}
    if options.json is not None:
        outputs[f"--json {options.json}"] = lambda: report.write_json(record, options.json)
    if options.plot is not None:
        outputs[f"--plot {options.plot}"] = lambda: report.draw(record, options.plot)
    return paths.told("bench", outputs)


def _show(record: dict[str, Any], plain: bool) -> None:
    if not plain and sys.stdout.isatty():
        try:
            return report.show_rich(record)
        except ImportError:
            print("(pip install rich for a table with colours and a progress bar)")
    print(report.as_text(record), flush=True)


_DESCRIPTION = (
    "Times ag_matmul, matmul_rs and matmul_ar against XLA's collectives (and Pallas' collective "
    "matmul), in turns and in one run: exposed communication, E = 1 - exposed here / exposed in "
    "XLA, and the fraction of the limit that this machine's measured peak and link allow. Exit "
    "status 1 where a row did not run, its result is not XLA's or a file was not written, 2 "
    "for bad flags."
)
