# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""`explain`: what a call would run, and why, without running it."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_flux import _checks, _dispatch, _ffi, _plan, _tuning, errors, reference
from jax_flux._config import Config
from jax_flux._plan import Plan


@dataclasses.dataclass(frozen=True)
class Explanation:
    """``implementation`` ("fused" or "xla"), the ``reason`` in words, and the fused ``plan``.

    ``source`` says where they come from: the cost model's figures of a device kind, or the tuning
    file whose record of exactly this call decided; "" where nothing had to be weighed. ``epilogue``
    says who adds the bias and applies the activation; "" where there is neither.
    """

    implementation: str
    reason: str
    plan: Plan | None
    source: str = ""
    epilogue: str = ""


def explain(
    op: str,
    x_shape: Sequence[int],
    w_shape: Sequence[int] | Sequence[Sequence[int]],
    dtype: Any,
    world: int,
    *,
    gather_axis: int = -2,
    scatter_axis: int = -2,
    transpose_w: bool = False,
    bias: Any = None,
    activation: str | None = None,
    out_dtype: Any = None,
    return_gathered: bool = False,
    implementation: str | None = None,
    config: Config | None = None,
    channel: int = 0,
    platform: str = "cuda",
    device_kind: str | None = None,
) -> Explanation:
    """Says what ``op`` would run on given shapes and why; runs nothing and looks at no device.

    Args:
      op: "ag_matmul", "matmul_rs" or "matmul_ar".
      x_shape: shape of x per device, as inside shard_map.
      w_shape: shape of w per device, or a sequence of shapes for several weights.
      dtype: dtype of x and w; where they differ, their promoted dtype.
      world: W, the size of the op's axis.
      gather_axis: as in `ag_matmul`.
      scatter_axis: as in `matmul_rs`.
      transpose_w: as in the op.
      bias: as in the op, or True or False; for several weights a tuple of them.
      activation: as in `ag_matmul`.
      out_dtype: as in the op.
      return_gathered: as in `ag_matmul`.
      implementation: as in the op.
      config: as in the op.
      channel: as in the op.
      platform: "cuda" unless told otherwise; "gpu" is JAX's other name for it.
      device_kind: such as "NVIDIA H200"; None stands for a supported GPU that nobody tuned.

    Returns:
      An `Explanation`. A pure function of its arguments, the installed native library and the
      tuning file (docs/tuning.md).

    Raises:
      OptionError, ShapeError, DtypeError, TuningError: as the op itself would.

    Example:
      >>> from jax_flux import explain
      >>> explain("ag_matmul", (512, 4096), (4096, 1024), "float32", 8).reason
      'dtype float32 is not one of bfloat16, float16'
      >>> explain("ag_matmul", (512, 4096), (4096, 1024), "bfloat16", 1).implementation
      'xla'
    """
    if op not in ("ag_matmul", "matmul_rs", "matmul_ar"):
        raise errors.OptionError(
            errors.message(
                "explain",
                f"op = {op!r}",
                "The ops are 'ag_matmul', 'matmul_rs' and 'matmul_ar'",
                "Name one of them",
            )
        )
    _checks.check_options(
        op, activation=activation, implementation=implementation, config=config, channel=channel
    )
    _check_keywords(op, activation, return_gathered)
    _check_machine(world, platform, device_kind)
    if platform == "gpu" and device_kind is None:
        platform = "cuda"
    several, w_shapes = _weight_shapes(op, w_shape)
    problem = _fold(
        op,
        _shape("x_shape", x_shape),
        w_shapes,
        _dtype(dtype),
        world,
        axis=gather_axis if op == "ag_matmul" else scatter_axis,
        transpose_w=transpose_w,
        out_dtype=out_dtype,
        return_gathered=return_gathered,
    )
    problem = dataclasses.replace(
        problem, biases=_has_biases(problem, bias, several), activation=activation
    )
    on_cuda = _plan.is_cuda(platform, device_kind)
    decision = _plan.plan(
        problem,
        implementation=implementation,
        config=config,
        platform=platform,
        device_kind=device_kind,
        installed=_ffi.compiled() if on_cuda else None,
        tuning=_tuning.active() if on_cuda else _tuning.NONE,
    )
    return Explanation(
        decision.implementation,
        decision.reason,
        decision.plan,
        decision.source,
        _epilogue(decision, problem),
    )


def _fold(
    op: str,
    x_shape: tuple[int, ...],
    w_shapes: tuple[tuple[int, ...], ...],
    dtype: Any,
    world: int,
    *,
    axis: int,
    transpose_w: bool,
    out_dtype: Any,
    return_gathered: bool,
) -> _plan.Problem:
    """Shapes as the op takes them -> canonical sizes; raises as the op would."""
    x = jax.ShapeDtypeStruct(x_shape, dtype)
    ws = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape in w_shapes)
    _checks.check_operands(op, x, ws, transpose_w, min_ndim=1 if op == "matmul_ar" else 2)
    out = _checks.resolve_out_dtype(op, out_dtype, x, ws)
    kwargs: dict[str, Any] = dict(world=world, transpose_w=transpose_w, out_dtype=jnp.dtype(out))
    if op == "ag_matmul":
        at = _checks.check_axis(op, "gather_axis", axis, x)
        folded = jax.ShapeDtypeStruct(_dispatch.fold_rows(x.shape, at), dtype)
        return _dispatch.ag_problem(folded, ws, return_gathered=return_gathered, **kwargs)
    if op == "matmul_rs":
        at = _checks.check_axis(op, "scatter_axis", axis, x)
        _checks.check_scatter(op, at, x, world, "given")
        folded = jax.ShapeDtypeStruct(_dispatch.fold_segments(x.shape, at, world), dtype)
        return _dispatch.rs_problem((folded,), ws, **kwargs)
    return _dispatch.ar_problem(x, ws[0], **kwargs)


def _weight_shapes(op: str, given: Any) -> tuple[bool, tuple[tuple[int, ...], ...]]:
    """(whether they are several weights', the shapes)."""
    entries = tuple(given) if hasattr(given, "__iter__") else ()
    if not any(hasattr(e, "__len__") and getattr(e, "ndim", 1) for e in entries):
        return False, (_shape("w_shape", entries or given),)
    if op != "ag_matmul":
        raise errors.ShapeError(
            errors.message(
                op,
                f"{len(entries)} shapes of weights",
                "Only ag_matmul takes several weights",
                "Pass one shape",
            )
        )
    return True, tuple(_shape("a shape in w_shape", e) for e in entries)


def _shape(what: str, given: Any) -> tuple[int, ...]:
    try:
        sizes = tuple(map(operator.index, given))
        if min(sizes, default=0) >= 0:
            return sizes
    except TypeError:
        pass
    raise errors.ShapeError(
        errors.message(
            "explain",
            f"{what} = {given!r}",
            "A shape is a sequence of ints of at least 0, those of one device",
            "Pass the array's shape as it is inside shard_map, for example (512, 4096)",
        )
    )


def _dtype(given: Any) -> Any:
    rule, remedy = "x and w have a dtype that NumPy or JAX knows", "Name it, such as 'bfloat16'"
    if isinstance(given, tuple | list):
        rule = "explain takes one dtype, the promoted dtype of x and w, as the op multiplies in it"
        remedy = "Pass jnp.promote_types(x.dtype, w.dtype)"
    try:
        if isinstance(given, tuple | list):
            remedy = f"Pass {functools.reduce(reference.common_dtype, map(_dtype, given)).name!r}"
        elif given is not None:  # NumPy's float64
            return jnp.dtype(given)
    except (TypeError, ValueError):
        pass
    raise errors.DtypeError(errors.message("explain", f"dtype = {given!r}", rule, remedy))


def _has_biases(problem: _plan.Problem, bias: Any, several_w: bool) -> tuple[bool, ...]:
    op, num_w = problem.op, len(problem.n)
    several = isinstance(bias, tuple | list)
    if several and (len(bias) != num_w or not several_w):
        raise errors.ShapeError(
            errors.message(
                op,
                f"{num_w} shape(s) of weights and a tuple of {len(bias)} biases",
                "A tuple of weights takes a tuple of as many biases, one weight takes one bias",
                "Pass as many, with None where a weight has no bias; or True: all have one",
            )
        )
    each = zip(bias if several else [bias] * num_w, problem.n, strict=True)
    given = tuple(_has_bias(op, b, n, problem.out_dtype) for b, n in each)
    return given if any(given) else ()


def _has_bias(op: str, bias: Any, n: int, out_dtype: str) -> bool:
    if bias is None or isinstance(bias, bool | np.bool_):
        return bool(bias)
    if not hasattr(bias, "shape") or not hasattr(bias, "dtype"):
        raise errors.OptionError(
            errors.message(
                "explain",
                f"bias = {bias!r}",
                "It says whether there is one",
                "Pass True, False, None or the array; for several weights a tuple of them",
            )
        )
    _checks.check_bias(op, bias, n)
    _checks.check_bias_dtype(op, bias, jnp.dtype(out_dtype))
    return True


def _check_machine(world: Any, platform: Any, device_kind: Any) -> None:
    if not isinstance(world, int) or isinstance(world, bool) or world < 1:
        raise errors.OptionError(
            errors.message(
                "explain",
                f"world = {world!r}",
                "W is the number of ranks that the op's axis joins",
                "Pass the size of the axis, an int of at least 1",
            )
        )
    if not isinstance(platform, str | None) or not isinstance(device_kind, str | None):
        raise errors.OptionError(
            errors.message(
                "explain",
                f"platform = {platform!r}, device_kind = {device_kind!r}",
                "JAX names both by strings, such as 'cuda' and 'NVIDIA H200'",
                "Pass device.platform and device.device_kind of a device, or leave them out",
            )
        )


def _check_keywords(op: str, activation: str | None, return_gathered: bool) -> None:
    if op != "ag_matmul" and (activation is not None or return_gathered):
        raise errors.OptionError(
            errors.message(
                op,
                f"activation = {activation!r}, return_gathered = {return_gathered}",
                "Only ag_matmul has these keywords",
                "Leave them out",
            )
        )


def _epilogue(decision: _plan.Decision, problem: _plan.Problem) -> str:
    steps = ["bias"] if any(problem.biases) else []
    steps += [problem.activation] if problem.activation else []
    if not steps:
        return ""
    text = " and ".join(steps)
    if decision.implementation == "xla":
        return f"{text} by XLA, in the result's dtype"
    if problem.activation is None:
        return f"{text} in the kernel, in f32"
    return f"{text} in the kernel, in f32; under differentiation XLA applies {problem.activation}"
