# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The ops in plain ``jax.lax``: CPU lowering, ``implementation="xla"``, and the baseline.

Each function is what a user would write by hand: the dot in the operands' dtype with f32
accumulation, then (or before it) the lax collective in the output dtype. They differentiate in
both modes and validate nothing: ``jax_flux.ops`` does. The ``*_canonical`` twins take the folded
shapes of the primitives: x[b, m, k] (ag) or x[b, W, m, k] (rs).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_flux import _epilogue

AxisName = str | tuple[str, ...]
Precision = Any


def dot(
    x: jax.Array,
    w: jax.Array,
    *,
    transpose_w: bool = False,
    out_dtype: Any = None,
    precision: Precision = None,
) -> jax.Array:
    """``x[..., k] @ w[k, n]`` (or ``w[n, k]``) with at least f32 accumulation, one rounding.

    Args:
      x: [..., k].
      w: [k, n].
      transpose_w: w is given as [n, k].
      out_dtype: dtype of the result; None takes the promoted dtype of the operands.
      precision: as in ``lax.dot_general``.

    Returns:
      [..., n] in ``out_dtype``.

    Example:
      >>> import jax.numpy as jnp
      >>> dot(jnp.ones((2, 3)), jnp.ones((5, 3)), transpose_w=True).shape
      (2, 5)
    """
    return _contract(x, w, x.ndim - 1, 1 if transpose_w else 0, out_dtype, precision)


def dot_over_rows(
    x: jax.Array, y: jax.Array, *, out_dtype: Any = None, precision: Precision = None
) -> jax.Array:
    """``x[r, p].T @ y[r, q]`` -> [p, q], accumulated and rounded as in `dot`.

    Example:
      >>> import jax.numpy as jnp
      >>> dot_over_rows(jnp.ones((2, 3)), jnp.ones((2, 5))).shape
      (3, 5)
    """
    return _contract(x, y, 0, 0, out_dtype, precision)


def _contract(
    x: jax.Array, y: jax.Array, x_axis: int, y_axis: int, out_dtype: Any, precision: Precision
) -> jax.Array:
    common = common_dtype(x.dtype, y.dtype)
    out = jnp.dtype(out_dtype if out_dtype is not None else common)
    result = lax.dot_general(
        x.astype(common),
        y.astype(common),
        (((x_axis,), (y_axis,)), ((), ())),
        precision=precision,
        preferred_element_type=_accumulator(common, out),
    )
    return result.astype(out)


def _accumulator(operands: Any, out: Any) -> Any:
    """Result dtype to ask of the dot.

    A 16-bit float result of 16-bit operands is asked for directly: XLA's dots accumulate it in
    f32 and round once (tests/cpu/test_semantics.py holds it to that), without an f32 temporary.
    """
    if not jnp.issubdtype(operands, jnp.floating) or not jnp.issubdtype(out, jnp.floating):
        return jnp.promote_types(operands, out) if operands != out else out
    if out.itemsize >= max(2, operands.itemsize):
        return out
    return jnp.dtype(jnp.float32) if operands.itemsize < 4 else operands


def common_dtype(a: Any, b: Any) -> Any:
    """dtype in which two operands multiply: JAX's promotion, also for 8-bit floats.

    JAX promotes those to nothing, but their gradients meet wider cotangents: here the wider dtype
    is taken, or float32 for two different ones of 8 bits.

    Example:
      >>> common_dtype("float8_e4m3fn", "bfloat16"), common_dtype("float8_e4m3fn", "float8_e5m2")
      (dtype(bfloat16), dtype('float32'))
    """
    a, b = jnp.dtype(a), jnp.dtype(b)
    floats = jnp.issubdtype(a, jnp.floating) and jnp.issubdtype(b, jnp.floating)
    if a == b or not floats or min(a.itemsize, b.itemsize) > 1:
        return jnp.promote_types(a, b)
    if a.itemsize == b.itemsize:
        return jnp.dtype(jnp.float32)
    return a if a.itemsize > b.itemsize else b


def gather(x: jax.Array, axis_name: AxisName, axis: int) -> jax.Array:
    """``lax.all_gather(..., tiled=True)``; x itself where no axis is named."""
    return lax.all_gather(x, axis_name, axis=axis, tiled=True) if axis_name else x


def scatter(y: jax.Array, axis_name: AxisName, axis: int) -> jax.Array:
    """``lax.psum_scatter(..., tiled=True)``; y itself where no axis is named."""
    if not axis_name:
        return y
    return lax.psum_scatter(y, axis_name, scatter_dimension=axis, tiled=True)


def gather_segments(x: jax.Array, axis_name: AxisName) -> jax.Array:
    """x[b, m, k] -> [b, W, m, k]."""
    batch, m, k = x.shape
    return gather(x, axis_name, 1).reshape(batch, -1, m, k)


def scatter_segments(y: jax.Array, axis_name: AxisName) -> jax.Array:
    """y[b, W, m, n] -> [b, m, n].

    Tiled on purpose: vmap of an untiled psum_scatter fails inside jax 0.11.2.
    """
    batch, world, m, n = y.shape
    return scatter(y.reshape(batch, world * m, n), axis_name, 1)


def ag_matmul(
    x: jax.Array,
    ws: Sequence[jax.Array],
    *,
    axis_name: AxisName,
    gather_axis: int,
    transpose_w: bool = False,
    out_dtype: Any = None,
    precision: Precision = None,
) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """``lax.all_gather(x, axis_name, axis=gather_axis, tiled=True) @ w`` for each w; the gather.

    Args:
      x: [..., m, ..., k], sharded along ``gather_axis``.
      ws: weights [k, n_i] (or [n_i, k]).
      axis_name: a mesh axis, a tuple of them, or () for none.
      gather_axis: non-negative axis of x before the last.
      transpose_w: w is given as [n, k].
      out_dtype: dtype of the result; None takes the operands' promoted dtype.
      precision: as in ``lax.dot_general``.

    Returns:
      (results [..., W * m, ..., n_i], gathered x).

    Example:
      >>> import jax.numpy as jnp
      >>> ys, _ = ag_matmul(jnp.ones((2, 3)), [jnp.ones((3, 4))], axis_name=(), gather_axis=0)
      >>> ys[0].shape
      (2, 4)
    """
    full = gather(x, axis_name, gather_axis)
    kwargs = dict(transpose_w=transpose_w, out_dtype=out_dtype, precision=precision)
    return tuple(dot(full, w, **kwargs) for w in ws), full


def matmul_rs(
    x: jax.Array,
    w: jax.Array,
    *,
    axis_name: AxisName,
    scatter_axis: int,
    transpose_w: bool = False,
    out_dtype: Any = None,
    precision: Precision = None,
) -> jax.Array:
    """``lax.psum_scatter(x @ w, axis_name, scatter_dimension=scatter_axis, tiled=True)``.

    Args:
      x: [..., W * m, ..., k], this rank's slice of the contraction.
      w: [k, n] (or [n, k]).
      axis_name: a mesh axis, a tuple of them, or () for none.
      scatter_axis: non-negative axis of x before the last.
      transpose_w: w is given as [n, k].
      out_dtype: dtype of the result; None takes the operands' promoted dtype.
      precision: as in ``lax.dot_general``.

    Returns:
      [..., m, ..., n].

    Example:
      >>> import jax.numpy as jnp
      >>> matmul_rs(jnp.ones((2, 3)), jnp.ones((3, 4)), axis_name=(), scatter_axis=0).shape
      (2, 4)
    """
    y = dot(x, w, transpose_w=transpose_w, out_dtype=out_dtype, precision=precision)
    return scatter(y, axis_name, scatter_axis)


def matmul_ar(
    x: jax.Array,
    w: jax.Array,
    *,
    axis_name: AxisName,
    transpose_w: bool = False,
    out_dtype: Any = None,
    precision: Precision = None,
) -> jax.Array:
    """``lax.psum(x @ w, axis_name)``.

    Args:
      x: [..., k], this rank's slice of the contraction.
      w: [k, n] (or [n, k]).
      axis_name: a mesh axis, a tuple of them, or () for none.
      transpose_w: w is given as [n, k].
      out_dtype: dtype of the result; None takes the operands' promoted dtype.
      precision: as in ``lax.dot_general``.

    Returns:
      [..., n].

    Example:
      >>> import jax.numpy as jnp
      >>> matmul_ar(jnp.ones((2, 3)), jnp.ones((3, 4)), axis_name=()).shape
      (2, 4)
    """
    y = dot(x, w, transpose_w=transpose_w, out_dtype=out_dtype, precision=precision)
    return lax.psum(y, axis_name) if axis_name else y


def ag_matmul_canonical(
    x: jax.Array,
    *ws: jax.Array,
    biases: Sequence[jax.Array | None],
    activation: str | None,
    axis_name: AxisName,
    transpose_w: bool,
    out_dtype: Any,
    return_gathered: bool,
    precision: Precision,
) -> list[jax.Array]:
    """x[b, m, k], w_i[k, n_i] -> [y_i[b, W, m, n_i] ..., x[b, W, m, k] if ``return_gathered``].

    ``y_i = activation(x @ w_i + biases[i])``.
    """
    full = gather_segments(x, axis_name)
    kwargs = dict(transpose_w=transpose_w, out_dtype=out_dtype, precision=precision)
    ys = [
        _epilogue.finish(dot(full, w, **kwargs), bias, activation)
        for w, bias in zip(ws, biases, strict=True)
    ]
    return [*ys, full] if return_gathered else ys


def matmul_rs_canonical(
    *operands: jax.Array,
    bias: jax.Array | None,
    axis_name: AxisName,
    transpose_w: bool,
    out_dtype: Any,
    precision: Precision,
) -> list[jax.Array]:
    """x_i[b, W, m, k_i] ..., w_i[k_i, n] ... -> [y[b, m, n]], the scattered sum of products.

    The bias is added once, to the sum.
    """
    y = sum_of_dots(operands, transpose_w=transpose_w, out_dtype=out_dtype, precision=precision)
    return [_epilogue.finish(scatter_segments(y, axis_name), bias, None)]


def sum_of_dots(
    operands: Sequence[jax.Array], *, transpose_w: bool, out_dtype: Any, precision: Precision
) -> jax.Array:
    """``sum_i x_i @ w_i``, summed in at least f32 and rounded once."""
    pairs = len(operands) // 2
    xs, ws = operands[:pairs], operands[pairs:]
    kwargs = dict(transpose_w=transpose_w, precision=precision)
    if pairs == 1:
        return dot(xs[0], ws[0], out_dtype=out_dtype, **kwargs)
    wide = jnp.promote_types(out_dtype, jnp.float32)
    terms = [dot(x, w, out_dtype=wide, **kwargs) for x, w in zip(xs, ws, strict=True)]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total.astype(out_dtype)
