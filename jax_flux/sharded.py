# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The ops on global arrays, for pjit scripts: one fully manual shard_map around ops.py.

Specs: given, or read from the operands' types on Explicit meshes, or (Auto meshes, whose tracers
do not show their sharding) the first leading dimension of x over all other mesh axes and the rest
over ``axis`` alone. `_specs.py` derives and checks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jax_flux import _calls, _checks, _specs, ops
from jax_flux._topology import AxisName

Mesh = jax.sharding.Mesh | jax.sharding.AbstractMesh


def ag_matmul_sharded(
    x: jax.Array,
    w: Any,
    *,
    mesh: Mesh,
    axis: AxisName,
    x_spec: P | None = None,
    w_spec: P | Sequence[P | None] | None = None,
    gather_axis: int = -2,
    bias: Any = None,
    transpose_w: bool = False,
    return_gathered: bool = False,
    **keywords: Any,
) -> Any:
    """Computes ``x @ w`` for x sharded by rows and w by columns over ``axis``.

    Args:
      x: global [..., M, ..., k], sharded over ``axis`` along ``gather_axis``.
      w: global [k, N], sharded over ``axis`` along N; or a tuple of weights.
      mesh: the mesh; every axis of it becomes manual.
      axis: the tensor-parallel axis (or a tuple of them).
      x_spec: sharding of x. None: from x's type on an Explicit mesh; else the first dimension
        beside ``gather_axis`` and k, where x has one, over all other axes, ``gather_axis`` over
        ``axis``.
      w_spec: sharding of w, or one for each weight. None: from its type, else N over ``axis``. If
        N is not sharded over ``axis``, neither is the result.
      gather_axis: the axis of x that is sharded, any but the last.
      bias: global [N], sharded as w's columns; a tuple of them for a tuple of weights.
      transpose_w: w is given as [N, k].
      return_gathered: also return x with its rows no longer sharded over ``axis``.
      **keywords: activation, out_dtype, implementation, config, channel of `jax_flux.ag_matmul`.

    Returns:
      Global [..., M, ..., N], N sharded over ``axis``, M no longer.

    Raises:
      AxisError, ShapeError, ...: as `jax_flux.ag_matmul`; also where a spec does not fit the op.

    Example:
      >>> import jax, jax.numpy as jnp, jax_flux
      >>> mesh = jax.make_mesh((2, 4), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
      >>> x, w = jnp.ones((2, 8, 4)), jnp.ones((4, 8))
      >>> y = jax.jit(lambda x, w: jax_flux.ag_matmul_sharded(x, w, mesh=mesh, axis="tp"))(x, w)
      >>> y.shape, y.addressable_shards[0].data.shape
      ((2, 8, 8), (1, 8, 2))
    """
    op = "ag_matmul"
    several = isinstance(w, (tuple, list))
    ws = tuple(map(jnp.asarray, w)) if several else (jnp.asarray(w),)
    x = jnp.asarray(x)
    names = _specs.check_mesh(op, mesh, axis)
    specs = _specs.ag_specs(
        op, mesh, names, x, ws, x_spec, w_spec, gather_axis=gather_axis, transpose_w=transpose_w
    )
    biases = _calls.check_biases(op, bias, ws, transpose_w, several)
    y_specs: Any = specs.y if several else specs.y[0]

    def body(x: jax.Array, ws: Any, biases: Any) -> Any:
        return ops.ag_matmul(
            x,
            ws if several else ws[0],
            axis_name=axis,
            gather_axis=gather_axis,
            bias=(None if bias is None else biases if several else biases[0]),
            transpose_w=transpose_w,
            return_gathered=return_gathered,
            **keywords,
        )

    bias_specs = tuple(
        _specs.bias_spec(op, mesh, b, y) for b, y in zip(biases, specs.y, strict=True)
    )
    # A gathered array counts as varying, though all ranks hold the same: so does x itself, and so
    # does a result whose columns are not sharded.
    check_vma = not return_gathered and all(_specs.shards(y, names) for y in specs.y)
    return jax.shard_map(
        body,
        mesh=mesh,
        in_specs=(specs.x, specs.w, bias_specs),
        out_specs=(y_specs, specs.gathered) if return_gathered else y_specs,
        check_vma=check_vma,
    )(x, ws, biases)


def matmul_rs_sharded(
    x: jax.Array,
    w: jax.Array,
    *,
    mesh: Mesh,
    axis: AxisName,
    x_spec: P | None = None,
    w_spec: P | None = None,
    scatter_axis: int = -2,
    bias: jax.Array | None = None,
    transpose_w: bool = False,
    **keywords: Any,
) -> jax.Array:
    """Computes ``x @ w`` for x and w sharded over ``axis`` along k; rows end up sharded.

    Args:
      x: global [..., M, ..., K], sharded over ``axis`` along K.
      w: global [K, n], sharded over ``axis`` along K.
      mesh: the mesh; every axis of it becomes manual.
      axis: the tensor-parallel axis (or a tuple of them).
      x_spec: sharding of x. None: from x's type on an Explicit mesh; else the first dimension
        beside ``scatter_axis`` and K, where x has one, over all other axes, K over ``axis``.
      w_spec: sharding of w. None: from its type, else K over ``axis``.
      scatter_axis: the axis of x that the result is sharded along.
      bias: [n], replicated.
      transpose_w: w is given as [n, K].
      **keywords: out_dtype, implementation, config, channel of `jax_flux.matmul_rs`.

    Returns:
      Global [..., M, ..., n], sharded over ``axis`` along ``scatter_axis``.

    Raises:
      AxisError, ShapeError, ...: as `jax_flux.matmul_rs`; also where a spec does not fit the op.

    Example:
      >>> import jax, jax.numpy as jnp, jax_flux
      >>> mesh = jax.make_mesh((2, 4), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
      >>> x, w = jnp.ones((2, 8, 4)), jnp.ones((4, 8))
      >>> y = jax.jit(lambda x, w: jax_flux.matmul_rs_sharded(x, w, mesh=mesh, axis="tp"))(x, w)
      >>> y.shape, y.addressable_shards[0].data.shape
      ((2, 8, 8), (1, 2, 8))
    """
    op = "matmul_rs"
    x, w = jnp.asarray(x), jnp.asarray(w)
    names = _specs.check_mesh(op, mesh, axis)
    specs = _specs.contraction_specs(
        op, mesh, names, x, w, x_spec, w_spec, scatter_axis=scatter_axis, transpose_w=transpose_w
    )

    def body(x: jax.Array, w: jax.Array, bias: jax.Array | None) -> jax.Array:
        return ops.matmul_rs(
            x,
            w,
            axis_name=axis,
            scatter_axis=scatter_axis,
            bias=bias,
            transpose_w=transpose_w,
            **keywords,
        )

    _checks.check_bias(op, bias, w.shape[0 if transpose_w else 1])
    in_specs = (specs.x, specs.w[0], _specs.bias_spec(op, mesh, bias, specs.y[0]))
    return jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=specs.y[0])(x, w, bias)


def matmul_ar_sharded(
    x: jax.Array,
    w: jax.Array,
    *,
    mesh: Mesh,
    axis: AxisName,
    x_spec: P | None = None,
    w_spec: P | None = None,
    bias: jax.Array | None = None,
    transpose_w: bool = False,
    **keywords: Any,
) -> jax.Array:
    """Computes ``x @ w`` for x and w sharded over ``axis`` along k; the result is not sharded.

    Args:
      x: global [..., K], sharded over ``axis`` along K.
      w: global [K, n], sharded over ``axis`` along K.
      mesh: the mesh; every axis of it becomes manual.
      axis: the tensor-parallel axis (or a tuple of them).
      x_spec: sharding of x. None: from x's type on an Explicit mesh; else dimension 0 over all
        other axes where x has three dimensions or more, K over ``axis``.
      w_spec: sharding of w. None: from its type, else K over ``axis``.
      bias: [n], replicated.
      transpose_w: w is given as [n, K].
      **keywords: out_dtype, implementation, config, channel of `jax_flux.matmul_ar`.

    Returns:
      Global [..., n], not sharded over ``axis``.

    Raises:
      AxisError, ShapeError, ...: as `jax_flux.matmul_ar`; also where a spec does not fit the op.

    Example:
      >>> import jax, jax.numpy as jnp, jax_flux
      >>> mesh = jax.make_mesh((2, 4), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
      >>> x, w = jnp.ones((2, 8, 4)), jnp.ones((4, 8))
      >>> y = jax.jit(lambda x, w: jax_flux.matmul_ar_sharded(x, w, mesh=mesh, axis="tp"))(x, w)
      >>> y.shape, y.addressable_shards[0].data.shape
      ((2, 8, 8), (1, 8, 8))
    """
    op = "matmul_ar"
    x, w = jnp.asarray(x), jnp.asarray(w)
    names = _specs.check_mesh(op, mesh, axis)
    specs = _specs.contraction_specs(
        op, mesh, names, x, w, x_spec, w_spec, scatter_axis=None, transpose_w=transpose_w
    )

    def body(x: jax.Array, w: jax.Array, bias: jax.Array | None) -> jax.Array:
        return ops.matmul_ar(x, w, axis_name=axis, bias=bias, transpose_w=transpose_w, **keywords)

    _checks.check_bias(op, bias, w.shape[0 if transpose_w else 1])
    in_specs = (specs.x, specs.w[0], _specs.bias_spec(op, mesh, bias, specs.y[0]))
    return jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=specs.y[0])(x, w, bias)
