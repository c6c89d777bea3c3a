# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The public ops, for use inside ``jax.shard_map``: validate -> plan -> core.

Route of one call: `ag_matmul` -> _checks.py, _topology.py (who, where) -> _calls.py, _dispatch.py
(what runs, why) -> reference.py, or folded to canonical shapes: _vjp.py -> _primitives.py.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp

from jax_flux import _calls, _checks
from jax_flux._config import Config
from jax_flux._topology import AxisName

Array = jax.Array
Many = tuple[Array, ...] | list[Array]
Weights = Array | Many
Yes = Literal[True]
No = Literal[False]


class Keywords(TypedDict, total=False):
    """Keywords of `ag_matmul` that do not change the type of its result."""

    gather_axis: int
    transpose_w: bool
    bias: Any
    activation: str | None
    out_dtype: Any
    implementation: str | None
    config: Config | None
    channel: int


@overload
def ag_matmul(
    x: Array, w: Array, *, axis_name: AxisName, return_gathered: No = ..., **rest: Unpack[Keywords]
) -> Array: ...
@overload
def ag_matmul(
    x: Array, w: Many, *, axis_name: AxisName, return_gathered: No = ..., **rest: Unpack[Keywords]
) -> tuple[Array, ...]: ...
@overload
def ag_matmul(
    x: Array, w: Array, *, axis_name: AxisName, return_gathered: Yes, **rest: Unpack[Keywords]
) -> tuple[Array, Array]: ...
@overload
def ag_matmul(
    x: Array, w: Many, *, axis_name: AxisName, return_gathered: Yes, **rest: Unpack[Keywords]
) -> tuple[tuple[Array, ...], Array]: ...
@overload
def ag_matmul(
    x: Array, w: Weights, *, axis_name: AxisName, return_gathered: bool, **rest: Unpack[Keywords]
) -> Any: ...


def ag_matmul(
    x: jax.Array,
    w: Weights,
    *,
    axis_name: AxisName,
    gather_axis: int = -2,
    transpose_w: bool = False,
    bias: Any = None,
    activation: str | None = None,
    out_dtype: Any = None,
    return_gathered: bool = False,
    implementation: str | None = None,
    config: Config | None = None,
    channel: int = 0,
) -> Any:
    """Computes ``lax.all_gather(x, axis_name, axis=gather_axis, tiled=True) @ w``.

    Where the fused kernel runs, shards move while tiles multiply; elsewhere XLA does one after the
    other. Sums are f32, rounded once.

    Args:
      x: [..., m, ..., k], this rank's rows, sharded over ``axis_name`` (W ranks) along
        ``gather_axis``. Any float dtype; integers and complex take XLA.
      w: [k, n], this rank's columns; or a tuple of weights that share one gather (Q, K, V).
      axis_name: a mesh axis, or a tuple of them. Every mesh axis larger than 1 must be manual.
      gather_axis: the sharded axis of x, any but the last.
      transpose_w: w is given as [n, k].
      bias: [n], added once to every row; for a tuple of weights a tuple of biases (or Nones).
      activation: None, "relu", "gelu" (tanh form) or "silu", applied after the bias. A fused
        kernel does both in f32 before the one rounding; XLA step by step in the result's dtype.
      out_dtype: dtype of the results; None takes the operands' promoted dtype.
      return_gathered: also return the gathered x.
      implementation: None (fused where supported, else XLA), "fused" (or raise), "xla".
      config: forces parts of the fused plan.
      channel: workspace to use, for code that annotates streams; 0 otherwise.

    Returns:
      [..., W * m, ..., n] (a tuple for a tuple of weights), varying over ``axis_name``. With
      ``return_gathered``, the pair of that and x[..., W * m, ..., k].

    Raises:
      AxisError: outside shard_map, unknown axis, or a mesh axis that is not manual.
      ShapeError: k differs, w is not a matrix, or ``gather_axis`` is k.
      OptionError: no such activation, implementation, config or channel.
      ImplementationError: "fused" where the kernel cannot run.
      ForwardModeError: differentiated in forward mode (``implementation="xla"`` allows it).

    Notes:
      Reverse mode: dx is one matmul_rs, dw XLA's dot on a gathered x; the forward keeps only x and
      what enters the activation, which XLA then applies.
      Empty shards give zeros (plus bias) without a collective.

    Example:
      >>> import jax, jax.numpy as jnp, jax_flux
      >>> from jax.sharding import AxisType, PartitionSpec as P
      >>> mesh = jax.make_mesh((8,), ("tp",), axis_types=(AxisType.Auto,))
      >>> x, w = jnp.ones((16, 4)), jnp.ones((4, 8))
      >>> f = jax.shard_map(lambda x, w: jax_flux.ag_matmul(x, w, axis_name="tp"), mesh=mesh,
      ...                   in_specs=(P("tp", None), P(None, "tp")), out_specs=P(None, "tp"))
      >>> bool((f(x, w) == x @ w).all())
      True
    """
    op = "ag_matmul"
    _checks.check_options(
        op, activation=activation, implementation=implementation, config=config, channel=channel
    )
    x = jnp.asarray(x)
    several = isinstance(w, (tuple, list))
    ws = tuple(jnp.asarray(a) for a in w) if several else (jnp.asarray(w),)
    _checks.check_operands(op, x, ws, transpose_w, min_ndim=2)
    at = _checks.check_axis(op, "gather_axis", gather_axis, x)
    biases = _calls.check_biases(op, bias, ws, transpose_w, several)
    spec, axis = _calls.make_spec(
        op,
        axis_name,
        out_dtype=_checks.resolve_out_dtype(op, out_dtype, x, ws),
        transpose_w=transpose_w,
        return_gathered=return_gathered,
        activation=activation,
        implementation=implementation,
        config=config,
        channel=channel,
    )
    ys, full = _calls.ag(spec, axis, x, ws, biases, at)
    result = ys if several else ys[0]
    return (result, full) if return_gathered else result


def matmul_rs(
    x: jax.Array,
    w: jax.Array,
    *,
    axis_name: AxisName,
    scatter_axis: int = -2,
    transpose_w: bool = False,
    bias: jax.Array | None = None,
    out_dtype: Any = None,
    implementation: str | None = None,
    config: Config | None = None,
    channel: int = 0,
) -> jax.Array:
    """Computes ``lax.psum_scatter(x @ w, axis_name, scatter_dimension=scatter_axis, tiled=True)``.

    Where the fused kernel runs, finished tiles leave for their owner while others multiply, and
    the owner adds the partials in f32 in a fixed order.

    Args:
      x: [..., W * m, ..., k], all rows of this rank's slice of the contraction.
      w: [k, n], this rank's slice of the rows of the full weight.
      axis_name: a mesh axis, or a tuple of them. Every mesh axis larger than 1 must be manual.
      scatter_axis: the axis of x whose rows are shared out, any but the last.
      transpose_w: w is given as [n, k].
      bias: [n], the same on all ranks, added once to the sum.
      out_dtype: dtype of the result; None takes the operands' promoted dtype.
      implementation: None (fused where supported, else XLA), "fused" (or raise), "xla".
      config: forces parts of the fused plan.
      channel: workspace to use, for code that annotates streams; 0 otherwise.

    Returns:
      [..., m, ..., n], this rank's rows of the sum, varying over ``axis_name``.

    Raises:
      AxisError, ShapeError, OptionError, ImplementationError, ForwardModeError: as `ag_matmul`;
        also ShapeError where W does not divide the rows.

    Notes:
      Reverse mode: dx is one ag_matmul, dw XLA's dot on the gathered cotangent.
      Empty shards give zeros (plus bias) without a collective.

    Example:
      >>> import jax, jax.numpy as jnp, jax_flux
      >>> from jax.sharding import AxisType, PartitionSpec as P
      >>> mesh = jax.make_mesh((8,), ("tp",), axis_types=(AxisType.Auto,))
      >>> x, w = jnp.ones((16, 8)), jnp.ones((8, 4))
      >>> f = jax.shard_map(lambda x, w: jax_flux.matmul_rs(x, w, axis_name="tp"), mesh=mesh,
      ...                   in_specs=(P(None, "tp"), P("tp", None)), out_specs=P("tp", None))
      >>> bool((f(x, w) == x @ w).all())
      True
    """
    op = "matmul_rs"
    x, w = _calls.one_weight(op, x, w, transpose_w, 2, implementation, config, channel)
    at = _checks.check_axis(op, "scatter_axis", scatter_axis, x)
    _checks.check_bias(op, bias, w.shape[0 if transpose_w else 1])
    spec, axis = _calls.make_spec(
        op,
        axis_name,
        out_dtype=_checks.resolve_out_dtype(op, out_dtype, x, (w,)),
        transpose_w=transpose_w,
        implementation=implementation,
        config=config,
        channel=channel,
    )
    _checks.check_scatter(op, at, x, axis.world, axis_name)
    return _calls.rs(spec, axis, x, w, bias, at)


def matmul_ar(
    x: jax.Array,
    w: jax.Array,
    *,
    axis_name: AxisName,
    transpose_w: bool = False,
    bias: jax.Array | None = None,
    out_dtype: Any = None,
    implementation: str | None = None,
    config: Config | None = None,
    channel: int = 0,
) -> jax.Array:
    """Computes ``lax.psum(x @ w, axis_name)``.

    Args:
      x: [..., k], this rank's slice of the contraction.
      w: [k, n], this rank's slice of the rows of the full weight.
      axis_name: a mesh axis, or a tuple of them. Every mesh axis larger than 1 must be manual.
      transpose_w: w is given as [n, k].
      bias: [n], the same on all ranks, added once to the sum.
      out_dtype: dtype of the result; None takes the operands' promoted dtype.
      implementation: None (fused where supported, else XLA), "fused" (or raise), "xla".
      config: forces parts of the fused plan.
      channel: workspace to use, for code that annotates streams; 0 otherwise.

    Returns:
      [..., n], the same on all ranks: it does not vary over ``axis_name``.

    Raises:
      AxisError, ShapeError, OptionError, ImplementationError, ForwardModeError: as `ag_matmul`.

    Notes:
      No fused kernel yet: XLA runs it everywhere. Empty shards give zeros (plus bias).

    Example:
      >>> import jax, jax.numpy as jnp, jax_flux
      >>> from jax.sharding import AxisType, PartitionSpec as P
      >>> mesh = jax.make_mesh((8,), ("tp",), axis_types=(AxisType.Auto,))
      >>> x, w = jnp.ones((2, 8)), jnp.ones((8, 4))
      >>> f = jax.shard_map(lambda x, w: jax_flux.matmul_ar(x, w, axis_name="tp"), mesh=mesh,
      ...                   in_specs=(P(None, "tp"), P("tp", None)), out_specs=P())
      >>> bool((f(x, w) == x @ w).all())
      True
    """
    op = "matmul_ar"
    x, w = _calls.one_weight(op, x, w, transpose_w, 1, implementation, config, channel)
    _checks.check_bias(op, bias, w.shape[0 if transpose_w else 1])
    spec, axis = _calls.make_spec(
        op,
        axis_name,
        out_dtype=_checks.resolve_out_dtype(op, out_dtype, x, (w,)),
        transpose_w=transpose_w,
        implementation=implementation,
        config=config,
        channel=channel,
    )
    return _calls.add_bias(_calls.ar(spec, axis, x, w), bias, op)
