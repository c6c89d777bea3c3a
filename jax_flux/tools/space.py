# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The plans that `tune` tries: kernels, and numbers that change their speed but not their result.

Pure: which values are worth a trial follows from the sizes alone. A number that is absent from a
candidate is the library's own choice (DefaultPlan in cuda/kernels/gemm_plan.cc).
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
    """Every kernel for the call, the most promising first, with the library's own numbers.

    Kernels of a gather start from a second set too, because its numbers gain only together.
    """
    rows = _plan.matching_instances(problem, instances, None)
    rows.sort(key=lambda row: (_cost.fused_ns(problem, row, 0, on), row.name))
    found = [Candidate(row.name) for row in rows]
    if problem.op == "ag_matmul":
        found += [Candidate(row.name, _together(problem)) for row in rows]
    return found


def _together(problem: Problem) -> tuple[tuple[str, int], ...]:
    """Emulated (paced link, W = 2, 4, 8), up to 12 % faster where a rank has 128 to 512 rows.

    Half of the CTAs push small chunks to all peers in turn, whose segments share a walk.
    """
    peers = max(1, problem.world - 1)
    numbers = {"push_ctas": 64, "push_peers": peers, "sweep_segments": peers}
    return tuple(sorted((numbers | {"chunk_depth": 512, "depth_outer": 1}).items()))


Move = tuple[str, tuple[int, ...] | tuple[str, ...]]


def coordinates(problem: Problem, instances: tuple[Instance, ...]) -> list[Move]:
    """(number, values worth a trial), the ones that matter most first."""
    moves: list[Move] = []
    if problem.op == "ag_matmul":
        depth = _up(problem.k[0], 256)
        # The unit of a push: small for many busy CTAs and an early start, large for few flags. All
        # of k at once makes whole rows the unit.
        moves += [
            ("chunk_depth", _fitting((256, 512, 1024, 2048, 4096, depth), depth)),
            ("chunk_rows", _fitting((64, 128, 256), _up(problem.m, 64))),
            ("push_ctas", (32, 64, 96, 132)),
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
