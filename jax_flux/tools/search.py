# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""How `tune` looks for a plan: halving among the kernels, then one number at a time.

Pure: times come from a function, so that made-up surfaces test it. Every process of a group runs it
on the same times, and so takes the same decisions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

from jax_flux.tools.space import Candidate, Move

GAIN = 0.01  # a number moves only for more than this share of the time: less is noise
FIRST_REPEATS, MOST_REPEATS = 3, 12
MAX_ROUNDS = 2

# Seconds of each candidate, measured in turns; None for one that cannot run, is wrong, or for which
# no time was left.
Times = Callable[[Sequence[Candidate], int], Sequence[float | None]]


@dataclasses.dataclass(frozen=True)
class Found:
    """``best`` plan; ``default``: the fastest of those it started from.

    ``complete``: the search came to its end, not the budget.
    """

    best: Candidate
    default: Candidate
    complete: bool


def search(
    starts: Sequence[Candidate],
    coordinates: Iterable[Move],
    times: Times,
    left: Callable[[], bool],
) -> Found | None:
    """The fastest plan found while ``left()``; None where no kernel ran and was right."""
    default = _halve(starts, times, left)
    if default is None:
        return None
    best, moves = default, list(coordinates)
    for _ in range(MAX_ROUNDS):
        before = best
        for name, values in moves:
            if not left():
                return Found(best, default, complete=False)
            best = _move(best, name, values, times)
        if best == before:
            break
    return Found(best, default, complete=left())


def _halve(starts: Sequence[Candidate], times: Times, left: Callable[[], bool]) -> Candidate | None:
    """Successive halving: the better half goes on to twice the repetitions."""
    alive, repeats = list(starts), FIRST_REPEATS
    while True:
        ranked = _ranked(alive, times(alive, repeats))
        if len(ranked) <= 1 or repeats >= MOST_REPEATS or not left():
            return ranked[0] if ranked else None
        alive, repeats = ranked[: math.ceil(len(ranked) / 2)], 2 * repeats
        if len(alive) == 1:
            return alive[0]


def _move(best: Candidate, name: str, values: Sequence[int | str], times: Times) -> Candidate:
    """``best``, or its neighbour along one number where that is faster by more than noise."""
    current = dict(best.numbers).get(name)
    tried = [best, *(best.but(name, value) for value in values if value != current)]
    took = times(tried, 2 * FIRST_REPEATS)
    ranked = _ranked(tried, took)
    if not ranked or took[0] is None:
        return best
    fastest = took[tried.index(ranked[0])]
    assert fastest is not None
    return ranked[0] if fastest < took[0] * (1 - GAIN) else best


def _ranked(candidates: Sequence[Candidate], took: Sequence[float | None]) -> list[Candidate]:
    """Those that have a time, the fastest first."""
    pairs = zip(candidates, took, strict=True)
    good = [(seconds, at) for at, (_, seconds) in enumerate(pairs) if seconds is not None]
    return [candidates[at] for _, at in sorted(good)]
