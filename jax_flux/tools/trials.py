# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trials of `tune` on the devices: each plan of one row is checked against XLA, then timed.

The method is that of `bench` (measure.py): dependent ops in one call, candidates in turns, the
slowest process's time. What may differ between processes (a clock, a compiler's failure) is
exchanged first, so that all go on with the same plans.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import jax_flux
from jax_flux.tools import figures, measure
from jax_flux.tools.cases import Case
from jax_flux.tools.group import AXIS, Group, gather
from jax_flux.tools.space import Candidate

NO_TIME = "no time was left to try it"


def flux(case: Case, transpose_w: bool, candidate: Candidate | None) -> measure.Op:
    """The row's op with exactly this plan; XLA's for None."""
    ops: dict[str, Any] = {"ag": jax_flux.ag_matmul, "rs": jax_flux.matmul_rs}
    return functools.partial(
        ops[case.kind],
        axis_name=AXIS,
        transpose_w=transpose_w,
        implementation="fused" if candidate else "xla",
        config=candidate.config() if candidate else None,
    )


class Trials:
    """The plans of one row on a group. ``broken`` says why a plan did not run or was wrong.

    ``clock`` and ``op_of`` (a plan's op, XLA's for None) are seams for tests.
    """

    def __init__(
        self,
        case: Case,
        group: Group,
        *,
        dtype: str,
        transpose_w: bool,
        batch: int,
        budget_s: float,
        clock: Callable[[], float] = time.monotonic,
        op_of: Callable[[Candidate | None], measure.Op] | None = None,
    ) -> None:
        self._end, self._clock = clock() + budget_s, clock
        self._group = group
        self._op = op_of or functools.partial(flux, case, transpose_w)
        self.broken: dict[Candidate, str] = {}
        self.tried = 0
        rows, depth = case.x_shape(group.world)
        x_shape = (batch, rows, depth) if batch > 1 else (rows, depth)
        w_shape = case.w_shape[::-1] if transpose_w else case.w_shape
        self._x, self._w = measure.operands(group, dtype, x_shape, w_shape)
        itemsize = jnp.dtype(dtype).itemsize
        self._length = figures.chain_length(case, group.world, itemsize, small=not group.on_gpu)
        self._limit = measure.WRONG[dtype]
        self._programs: dict[Candidate | None, measure.Program] = {}
        self._expected = self._mapped(self._op(None), (P(group.axes),) * 2, P(group.axes))(
            self._x, self._w
        )

    def left(self) -> bool:
        """Whether the budget lasts, by process 0's clock."""
        return bool(gather(np.asarray(self._clock() < self._end))[0])

    def times(self, candidates: Sequence[Candidate], repeats: int) -> list[float | None]:
        """Median seconds of each candidate, in turns."""
        for candidate in candidates:
            self._prepare(candidate)
        ready = {str(c): self._programs[c] for c in candidates if c in self._programs}
        if not ready:
            return [None] * len(candidates)
        took = measure.interleaved(ready, repeats)
        return [
            figures.median(took[str(c)]) if str(c) in took else None  # no time, broken or wrong
            for c in candidates
        ]

    def against_xla(
        self, candidates: Sequence[Candidate], repeats: int
    ) -> tuple[list[float], float]:
        """(median seconds of candidates that have run, XLA's), all in turns."""
        self._keep(candidates)
        if None not in self._programs:
            self._programs[None] = self._timed(None)
            measure.interleaved({"warm": self._programs[None]}, 1)
        programs = {str(c): self._programs[c] for c in candidates}
        took = measure.interleaved(programs | {"xla": self._programs[None]}, repeats)
        return [figures.median(took[str(c)]) for c in candidates], figures.median(took["xla"])

    def _keep(self, candidates: Sequence[Candidate]) -> None:
        """Drops the other programs and their operands."""
        wanted = {None, *candidates}
        self._programs = {c: p for c, p in self._programs.items() if c in wanted}

    def _prepare(self, candidate: Candidate) -> None:
        """Compiles, checks and warms a plan that is new, while there is time."""
        known = candidate in self._programs or self.broken.get(candidate, NO_TIME) != NO_TIME
        if known:
            return
        if self.tried and not self.left():
            self.broken[candidate] = NO_TIME
            return
        self.broken.pop(candidate, None)
        self.tried += 1
        made = self._agreed(candidate, lambda: (self._check(candidate), self._timed(candidate)))
        if made is None:
            return
        check, program = made
        sums = self._agreed(candidate, lambda: np.asarray(check(self._x, self._w, self._expected)))
        if sums is None:
            return
        wrong, whole = map(float, sums)
        error = (wrong / whole) ** 0.5 if whole > 0 else float("nan")
        if not error <= self._limit:
            self.broken[candidate] = f"WRONG RESULT: relative error {error:.2e} against XLA"
            return
        measure.interleaved({"warm": program}, 1)
        self._programs[candidate] = program

    def _agreed(self, candidate: Candidate, make: Callable[[], Any]) -> Any:
        """What ``make`` returns, or None where it failed in any process, which ``broken`` says."""
        made, why = None, ""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", jax_flux.errors.FallbackWarning)
                made = make()
        except Exception as error:  # whatever a compiler or a handler's check raises
            why = measure.first_line(error)
        if gather(np.asarray(not why)).all():
            return made
        self.broken[candidate] = why or "it failed in another process"
        return None

    def _timed(self, candidate: Candidate | None) -> measure.Program:
        op = self._op(candidate)
        return measure.compiled(self._group, op, self._x, self._w, self._length)

    def _check(self, candidate: Candidate) -> Any:
        """(squared difference to XLA's result, its squared norm) over all ranks, compiled."""
        op = self._op(candidate)

        def squares(x: jax.Array, w: jax.Array, expected: jax.Array) -> jax.Array:
            ours, theirs = (a.astype(jnp.float32) for a in (op(x, w), expected))
            sums = jnp.stack([jnp.sum((ours - theirs) ** 2), jnp.sum(theirs**2)])
            return lax.psum(sums, self._group.axes)

        mapped = self._mapped(squares, (P(self._group.axes),) * 3, P())
        return mapped.lower(self._x, self._w, self._expected).compile()

    def _mapped(self, fn: Callable[..., Any], in_specs: Any, out_specs: Any) -> Any:
        mapped = jax.shard_map(
            fn, mesh=self._group.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )
        return jax.jit(mapped)
