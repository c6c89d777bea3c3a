# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The plans that `tune` tries: kernels, and numbers that change their speed but not their result.

Pure: which values are worth a trial follows from the sizes alone. A number that is absent from a
candidate is the library's own choice (DefaultPlan in cuda/kernels/gemm.cc).
"""

from __future__ import annotations

import dataclasses

from jax_flux import _cost, _plan
from jax_flux._config import TRANSPORTS, Config
from jax_flux._plan import Instance, Problem


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One plan: a kernel, and the numbers that are not left to the library."""

    instance: str
    numbers: tuple[tuple[str, int | str], ...] = ()

    def but(self, name: str, value: int | str) -> Candidate:
        """This plan with one number (or its transport) changed."""
        numbers = dict(self.numbers) | {name: value}
        return Candidate(self.instance, tuple(sorted(numbers.items())))

    def config(self) -> Config:
        """What forces this plan on a call."""
        numbers: dict[str, int | str | bool] = dict(self.numbers)
        if "depth_outer" in numbers:
            numbers["depth_outer"] = bool(numbers["depth_outer"])
        return Config(instance=self.instance, **numbers)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return " ".join([self.instance, *(f"{name}={value}" for name, value in self.numbers)])


def starts(problem: Problem, instances: tuple[Instance, ...], on: _cost.Device) -> list[Candidate]:
    """Every kernel for the call with the library's own numbers, the most promising first."""
    rows = _plan.matching_instances(problem, instances, None)
    rows.sort(key=lambda row: (_cost.fused_ns(problem, row, 0, on), row.name))
    return [Candidate(row.name) for row in rows]


Move = tuple[str, tuple[int, ...] | tuple[str, ...]]


def coordinates(problem: Problem, instances: tuple[Instance, ...]) -> list[Move]:
    """(number, values worth a trial), the ones that matter most first."""
    moves: list[Move] = []
    if problem.op == "ag_matmul":
        depth = _up(problem.k[0], 256)
        # The unit of a push: small for many busy CTAs and an early start, large for few flags. All
        # of k at once makes whole rows the unit.
        moves += [
            ("chunk_depth", _fitting((512, 1024, 2048, 4096, depth), depth)),
            ("chunk_rows", _fitting((64, 128, 256), _up(problem.m, 64))),
            ("push_ctas", (32, 64, 132)),
            ("depth_outer", (0, 1)),
            ("push_peers", _fitting((1, 2, problem.world - 1), problem.world - 1)),
        ]
    row_tiles = -(-problem.m // 128) * problem.world * problem.batch
    moves.append(("raster_group", _fitting((4, 8, 16, 32), row_tiles)))
    moves.append(("sweep_segments", _fitting((1, 2, 4, problem.world - 1), problem.world - 1)))
    carriers = {c for r in _plan.matching_instances(problem, instances, None) for c in r.transports}
    moves.append(("transport", tuple(name for name in TRANSPORTS if name in carriers)))
    moves.append(("sm_margin", (0, 4)))
    return [(name, values) for name, values in moves if len(values) > 1]


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _fitting(values: tuple[int, ...], most: int) -> tuple[int, ...]:
    return tuple(sorted({value for value in values if value <= most}))
