# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The rows of a tuning run, one after the other: which plan won, in which record. Used by tune.py.

What it asks of the devices is `RowTrials`, so that tests answer with made-up times.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

from jax_flux import _cost, _plan, _records
from jax_flux.tools import measure, search, space, trials
from jax_flux.tools.cases import Case
from jax_flux.tools.space import Candidate

FINAL_REPEATS = 11
Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Call:
    """A row with the layout of its weight: "nn" as given, "nt" transposed (dx of the mirror op)."""

    case: Case
    layout: str

    @property
    def name(self) -> str:
        """Such as "ag-1024x6144x12288 nn"."""
        return f"{self.case.name} {self.layout}"


@dataclasses.dataclass(frozen=True)
class Place:
    """What is the same for all rows of a run."""

    world: int
    dtype: str
    batch: int
    device_kind: str
    installed: _plan.Installed
    shared: bool
    versions: tuple[tuple[str, str | None], ...]
    today: str

    def problem(self, call: Call) -> _plan.Problem:
        """The row's call as the planner sees it."""
        case = call.case
        return _plan.Problem(
            op=case.op,
            batch=self.batch,
            m=case.m // self.world,
            n=(case.n,),
            k=(case.k,),
            world=self.world,
            dtype=self.dtype,
            out_dtype=self.dtype,
            transpose_w=call.layout == "nt",
        )


class Stopped(Exception):
    """A row broke off, so the run did; ``done`` rows have a record."""

    def __init__(self, done: int) -> None:
        super().__init__(f"stopped after {done} rows")
        self.done = done


class RowTrials(Protocol):
    """What `tune_row` asks of the devices; `trials.Trials`, or made-up times in tests."""

    broken: dict[Candidate, str]
    tried: int

    def left(self) -> bool:
        """Whether the row's budget lasts."""
        ...

    def times(self, candidates: Sequence[Candidate], repeats: int) -> Sequence[float | None]:
        """Median seconds in turns."""
        ...

    def against_xla(
        self, candidates: Sequence[Candidate], repeats: int
    ) -> tuple[Sequence[float], float]:
        """(seconds of candidates, seconds of XLA), in turns."""
        ...


def tune_rows(
    calls: Sequence[Call],
    place: Place,
    row_trials: Callable[[Call], RowTrials],
    say: Say,
    save: Callable[[_records.Record], None],
) -> int:
    """Tunes row by row and saves each at once; returns how many have a record.

    Raises:
      Stopped: a row failed in a way that leaves the other processes where nobody knows.
    """
    done = 0
    for at, call in enumerate(calls, 1):
        head = f"[{at}/{len(calls)}] {call.name}"
        obstacle = _obstacle(call, place)
        if obstacle:
            say(f"{head}: not tuned, {obstacle}")
            continue
        try:
            record = tune_row(call, place, row_trials(call), say)
        except Exception as error:
            # Peers may be in another call now: nothing measured after it could be trusted.
            say(f"{head}: stopped. {measure.first_line(error)}")
            raise Stopped(done) from error
        if record is None:
            say(f"{head}: no kernel ran and was right")
            continue
        save(record)
        done += 1
        plan = Candidate(record.instance, record.numbers)
        say(f"{head}: {record.sentence().removeprefix('tuned: ').split(', record')[0]}; {plan}")
    return done


def tune_row(call: Call, place: Place, on: RowTrials, say: Say) -> _records.Record | None:
    """The record of one row; None where no kernel ran and was right."""
    problem = place.problem(call)
    device = _cost.device(place.device_kind) or _cost.REFERENCE
    starts = space.starts(problem, place.installed.instances, device)
    moves = space.coordinates(problem, place.installed.instances)
    found = search.search(starts, moves, on.times, on.left)
    for candidate, why in on.broken.items():
        if why != trials.NO_TIME:
            say(f"  {candidate}: {why}")
    if found is None:
        return None
    finalists = list(dict.fromkeys((found.best, found.default)))
    took, xla_s = on.against_xla(finalists, FINAL_REPEATS)
    fused_s, best = min(zip(took, finalists, strict=True), key=lambda pair: pair[0])
    say(f"  {on.tried} plans tried" + ("" if found.complete else ", until the budget was over"))
    return _records.Record(
        key=_records.Key.of(problem, place.device_kind),
        instance=best.instance,
        numbers=best.numbers,
        fused_us=1e6 * fused_s,
        xla_us=1e6 * xla_s,
        date=place.today,
        shared_gpus=place.shared,
        versions=place.versions,
    )


def _obstacle(call: Call, place: Place) -> str | None:
    """Why the row has no plan to measure, or None."""
    wrong = call.case.obstacle(place.world)
    if wrong:
        return wrong
    decision = _plan.plan(
        place.problem(call),
        implementation="fused",
        config=None,
        platform="cuda",
        device_kind=place.device_kind,
        installed=place.installed,
    )
    return None if decision.plan else decision.reason
