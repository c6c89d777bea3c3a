# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the ops ought to reach on GPUs with links: goals as data, and whether a row met them.

Goals, not promises: `judge` compares a measured row of `bench` with each goal that speaks of it. A
row whose ranks have no GPU each is never judged.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

Row = Mapping[str, Any]
XLA = ("xla", "xla-lhs")


@dataclasses.dataclass(frozen=True)
class Goal:
    """A bound for rows of ``kinds`` on W in ``worlds`` ranks with m in ``rows``.

    ``measure`` is "E", "speed_up" (over the faster of XLA's programs), "us" (microseconds) or
    "of_link" (time over the link's); ``bound`` is the least of the first two, the most of the
    others. ``limited_by`` is the resource that limits the row, None for any; ``name`` one row's.
    """

    measure: str
    bound: float
    kinds: tuple[str, ...] = ("ag", "rs", "ar")
    worlds: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8)
    rows: tuple[float, float] = (1, math.inf)
    limited_by: str | None = None
    name: str | None = None

    @property
    def words(self) -> str:
        """Such as "E >= 0.95"."""
        unit = {"us": " us", "of_link": " x link", "speed_up": " x XLA"}.get(self.measure, "")
        sign = "<=" if self.measure in ("us", "of_link") else ">="
        measure = {"us": "time", "of_link": "time", "speed_up": "speed"}.get(
            self.measure, self.measure
        )
        return f"{measure} {sign} {self.bound:g}{unit}"

    def speaks_of(self, row: Row) -> bool:
        """Whether the goal is one for this row."""
        kind = row["name"].split("-")[0]
        return (
            (self.name is None or self.name == row["name"])
            and kind in self.kinds
            and row["world"] in self.worlds
            and self.rows[0] <= row["m"] <= self.rows[1]
            and self.limited_by in (None, row.get("bound"))
        )

    def met_by(self, value: float) -> bool:
        """Whether a measured value is within the bound."""
        return value <= self.bound if self.measure in ("us", "of_link") else value >= self.bound


def _hidden(least: dict[str, tuple[float, float]], worlds: tuple[int, ...]) -> tuple[Goal, ...]:
    """E of each kind at m = 1024 and from 2048 on, where the matmul outlasts the wire."""
    goals = []
    for kind, (at_1024, above) in least.items():
        for bound, rows in ((at_1024, (1024, 2047)), (above, (2048, math.inf))):
            goals.append(Goal("E", bound, (kind,), worlds, rows, "gemm"))
    return tuple(goals)


MORE = (3, 4, 5, 6, 7, 8)
GOALS: tuple[Goal, ...] = (
    Goal("speed_up", 1.0),
    Goal("speed_up", 1.15, rows=(256, 512)),
    Goal("of_link", 1.08, rows=(1024, math.inf), limited_by="link"),
    *_hidden({"ag": (0.85, 0.95), "rs": (0.80, 0.93)}, (2,)),
    *_hidden({"ag": (0.70, 0.90), "rs": (0.70, 0.85)}, MORE),
    Goal("us", 187, worlds=(4,), name="ag-4096x4096x4096"),
    Goal("us", 375, worlds=(8,), name="ag-8192x4096x4096"),
    Goal("us", 115, worlds=(4,), name="rs-4096x4096x2048"),
    Goal("us", 1430, worlds=(4,), name="rs-8192x8192x7392"),
    Goal("us", 110, worlds=(8,), name="rs-4096x4096x1024"),
    Goal("us", 720, worlds=(8,), name="rs-8192x8192x3696"),
)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One goal and what the row measured; ``met`` is None where there is nothing to judge."""

    goal: str
    value: float | None
    met: bool | None
    note: str = ""


def judge(row: Row, goals: Iterable[Goal] = GOALS) -> list[Verdict]:
    """A verdict for each goal that speaks of a row measured on a GPU per rank.

    Where the op took XLA itself, it is as fast as XLA by construction (its ratio is noise) and
    hides nothing (E = 0).

    Example:
      >>> entries = {"gemm": {"median_s": 200e-6}, "xla": {"median_s": 281e-6, "ect_s": 81e-6},
      ...            "jax_flux": {"median_s": 204e-6, "ran": "fused", "E": 0.951}}
      >>> row = dict(name="ag-2048x8x8", m=2048, world=2, bound="gemm", implementations=entries)
      >>> [(v.goal, v.met) for v in judge(row)]
      [('speed >= 1 x XLA', True), ('E >= 0.95', True)]
    """
    return [_verdict(goal, row) for goal in goals if goal.speaks_of(row)]


def _verdict(goal: Goal, row: Row) -> Verdict:
    entries = row["implementations"]
    ours = entries.get("jax_flux", {})
    if "median_s" not in ours:
        return Verdict(goal.words, None, None, "not measured")
    if ours.get("wrong"):
        return Verdict(goal.words, None, False, "wrong result")
    took_xla = ours.get("ran") == "xla"
    note = "took XLA" if took_xla else ""
    if goal.measure == "speed_up" and took_xla and goal.bound <= 1:
        return Verdict(goal.words, 1.0, True, note)
    value = _value(goal.measure, row, took_xla)
    if value is None:
        return Verdict(goal.words, None, None, note or "not measured")
    return Verdict(goal.words, value, goal.met_by(value), note)


def _value(measure: str, row: Row, took_xla: bool) -> float | None:
    entries = row["implementations"]
    t = float(entries["jax_flux"]["median_s"])
    if measure == "us":
        return 1e6 * t
    if measure == "of_link":
        return t / float(row["limit_s"])
    if measure == "speed_up":
        rival = fastest_xla(entries)
        return None if rival is None else rival / t
    efficiency = 0.0 if took_xla else entries["jax_flux"].get("E")
    return None if efficiency is None else float(efficiency)


def fastest_xla(entries: Mapping[str, Any]) -> float | None:
    """Seconds of the faster of XLA's programs: default flags, latency-hiding scheduler."""
    times = [entries[name]["median_s"] for name in XLA if "median_s" in entries.get(name, {})]
    return min(times, default=None)
