# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""One traced call's decision: ask the planner, count it, warn or raise. Used by ops.py and _vjp.py.

`Spec` is what a call carries from its keywords down to the lowering.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from jax_flux import _ffi, _plan, _stats, _tuning
from jax_flux._config import Config


@dataclasses.dataclass(frozen=True)
class Spec:
    """Static part of a call. ``out_dtype`` and ``precision`` are resolved, never None by default.

    ``precision`` is ``jax.default_matmul_precision`` at the call: the lowering runs later, when
    the context manager that set it may be gone.
    """

    op: str
    axis_name: tuple[str, ...]
    world: int
    out_dtype: Any
    transpose_w: bool = False
    return_gathered: bool = False
    activation: str | None = None
    precision: Any = None
    implementation: str | None = None
    config: Config | None = None
    channel: int = 0
    platform: str | None = None
    device_kind: str | None = None
    obstacle: str | None = None  # why the axis itself rules the kernels out

    def mirrored(self, out_dtype: Any, *, return_gathered: bool = False) -> Spec:
        """The spec of the op that computes this one's dx: w is read the other way around.

        A forced plan and a demand for "fused" bind the forward only, as dx may have other sizes:
        there the kernel runs wherever it can, whatever is expected to be faster. ``precision``
        stays the forward's, as in the transpose of any lax dot.
        """
        return dataclasses.replace(
            self,
            op=self.op if self.op.endswith("_backward") else f"{self.op}_backward",
            out_dtype=out_dtype,
            transpose_w=not self.transpose_w,
            return_gathered=return_gathered,
            activation=None,
            implementation=(
                _plan.PREFER if self.implementation == "fused" else self.implementation
            ),
            config=None,
        )


def fold_rows(shape: tuple[int, ...], at: int) -> tuple[int, int, int]:
    """[..., m at ``at``, ..., k] -> (b, m, k): what precedes the axis is batch, the rest rows."""
    return math.prod(shape[:at]), math.prod(shape[at:-1]), shape[-1]


def fold_segments(shape: tuple[int, ...], at: int, world: int) -> tuple[int, int, int, int]:
    """[..., W * m at ``at``, ..., k] -> (b, W, m, k)."""
    return math.prod(shape[:at]), world, math.prod(shape[at:-1]) // world, shape[-1]


def ag_problem(
    x: Any,
    ws: Sequence[Any],
    *,
    world: int,
    transpose_w: bool,
    out_dtype: Any,
    return_gathered: bool,
    biases: Sequence[bool] = (),
    activation: str | None = None,
) -> _plan.Problem:
    """Problem of ag_matmul on x[b, m, k]; works on arrays and on avals."""
    batch, m, k = x.shape
    n = tuple(w.shape[0 if transpose_w else 1] for w in ws)
    return _plan.Problem(
        op="ag_matmul",
        batch=batch,
        m=m,
        n=n,
        k=(k,),
        world=world,
        dtype=_dtypes(x, *ws),
        out_dtype=jnp.dtype(out_dtype).name,
        transpose_w=transpose_w,
        return_gathered=return_gathered,
        biases=_flags(biases),
        activation=activation,
    )


def rs_problem(
    xs: Sequence[Any],
    ws: Sequence[Any],
    *,
    world: int,
    transpose_w: bool,
    out_dtype: Any,
    biases: Sequence[bool] = (),
) -> _plan.Problem:
    """Problem of matmul_rs on pairs x_i[b, W, m, k_i], w_i."""
    batch, _, m, _ = xs[0].shape
    return _plan.Problem(
        op="matmul_rs",
        batch=batch,
        m=m,
        n=(ws[0].shape[0 if transpose_w else 1],),
        k=tuple(x.shape[-1] for x in xs),
        world=world,
        dtype=_dtypes(*xs, *ws),
        out_dtype=jnp.dtype(out_dtype).name,
        transpose_w=transpose_w,
        biases=_flags(biases),
    )


def ar_problem(x: Any, w: Any, *, world: int, transpose_w: bool, out_dtype: Any) -> _plan.Problem:
    """Problem of matmul_ar on x[..., k]."""
    return _plan.Problem(
        op="matmul_ar",
        batch=1,
        m=math.prod(x.shape[:-1]),
        n=(w.shape[0 if transpose_w else 1],),
        k=(x.shape[-1],),
        world=world,
        dtype=_dtypes(x, w),
        out_dtype=jnp.dtype(out_dtype).name,
        transpose_w=transpose_w,
    )


def _flags(biases: Sequence[bool]) -> tuple[bool, ...]:
    return tuple(biases) if any(biases) else ()


def _dtypes(*operands: Any) -> str:
    """The operands' common dtype, or all of them joined where they differ (never fused)."""
    names = sorted({jnp.dtype(a.dtype).name for a in operands})
    return " and ".join(names)


def decide(problem: _plan.Problem, spec: Spec) -> _plan.Decision:
    """Plans for the device that ``spec`` names; looks at the native library only on NVIDIA GPUs."""
    if spec.obstacle is not None and spec.implementation != "xla":
        return _plan.Decision("xla", spec.obstacle)
    on_cuda = _plan.is_cuda(spec.platform, spec.device_kind)
    return _plan.plan(
        problem,
        implementation=spec.implementation,
        config=spec.config,
        platform=spec.platform,
        device_kind=spec.device_kind,
        installed=_ffi.installed() if on_cuda else None,
        tuning=_tuning.active() if on_cuda else _tuning.NONE,
    )


def announce(spec: Spec, decision: _plan.Decision, given: str) -> None:
    """Counts the decision; raises where "fused" was demanded in vain; warns once on a GPU.

    On a mesh that does not say its platform only dtypes and shapes are judged here, the rest at
    lowering.
    """
    known = spec.platform is not None or decision.unsupported or spec.obstacle is not None
    if spec.implementation == "fused" and known:
        _plan.require_fused(spec.op, decision, given)
    _stats.record(spec.op, decision.implementation, decision.reason)
    if decision.plan is not None:
        _log_plan(spec.op, spec.world, decision.plan)
    if decision.unsupported and _plan.is_cuda(spec.platform, spec.device_kind):
        _stats.warn_once(spec.op, decision.reason)


@functools.cache
def _log_plan(op: str, world: int, plan: _plan.Plan) -> None:
    """Logs each chosen plan once per process."""
    logging.getLogger("jax_flux").info("%s over %d ranks runs fused: %s", op, world, plan)
