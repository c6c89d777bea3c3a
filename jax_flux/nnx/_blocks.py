# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""MLP and self-attention: one gather in, one scatter out. Route: _linear.py makes the weights."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes

from jax_flux._layers import bodies, weights
from jax_flux._layers.mesh import on_mesh
from jax_flux._layers.place import Parallel, Place
from jax_flux._topology import AxisName
from jax_flux.nnx._linear import Weights, lecun_normal, zeros


class ParallelMLP(nnx.Module):
    """Computes ``act(x @ up) @ down``, or gated ``(act(x @ gate) * (x @ up)) @ down``.

    Gate and up share one gather. Submodules ``gate_proj``, ``up_proj`` and ``down_proj`` have the
    parameters of ``nnx.Linear``. x and the result are [..., s, features], s sharded over ``axis``
    (inside ``jax.shard_map``: [..., s/W, features]).

    Args:
      features: width of x and of the result.
      hidden_features: width between, sharded over ``axis``.
      gated: whether there is a gate.
      activation: "relu", "gelu" (tanh form), "silu", None, or a function.
      use_bias, dtype, param_dtype, precision, kernel_init, bias_init, promote_dtype, rngs: as in
        ``nnx.Linear``, for all projections.
      mesh, axis, implementation, batch_axes: as in `ColumnParallelLinear`.
      sequence_parallel: False: x and the result are whole on every rank; one sum, no gather.

    Raises:
      AxisError, ShapeError, OptionError: as `ColumnParallelLinear`; also for an unknown activation.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from flax import nnx
      >>> from jax_flux.nnx import ParallelMLP
      >>> mesh = jax.make_mesh((2, 4), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
      >>> mlp = ParallelMLP(4, 16, gated=True, activation="silu", mesh=mesh, rngs=nnx.Rngs(0))
      >>> y = nnx.jit(lambda mlp, x: mlp(x))(mlp, jnp.ones((2, 8, 4)))
      >>> y.shape, y.addressable_shards[0].data.shape
      ((2, 8, 4), (1, 2, 4))
    """

    def __init__(
        self,
        features: int,
        hidden_features: int,
        *,
        gated: bool = False,
        activation: Any = "gelu",
        use_bias: bool = True,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        precision: Any = None,
        kernel_init: Any = lecun_normal,
        bias_init: Any = zeros,
        promote_dtype: Any = dtypes.promote_dtype,
        mesh: Any = None,
        axis: AxisName = "tp",
        sequence_parallel: bool = True,
        implementation: str | None = None,
        batch_axes: tuple[str, ...] | None = None,
        rngs: nnx.Rngs,
    ):
        self.parallel = Parallel(
            type(self).__name__,
            mesh,
            axis,
            sequence_parallel,
            implementation,
            batch_axes,
            precision,
        )
        self.hidden_features, self.gated = hidden_features, gated
        self.activation = activation
        bodies.activation(self.parallel.layer, activation)
        self._divide(self.parallel.world_if_known())
        keywords: dict[str, Any] = dict(
            use_bias=use_bias,
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init,
            bias_init=bias_init,
            promote_dtype=promote_dtype,
            rngs=rngs,
        )
        up = weights.column_weights(features, hidden_features, self.parallel.axis)
        down = weights.row_weights(hidden_features, features, self.parallel.axis)
        if gated:
            self.gate_proj = Weights(self.parallel, *up, **keywords)
        self.up_proj = Weights(self.parallel, *up, **keywords)
        self.down_proj = Weights(self.parallel, *down, **keywords)

    def _divide(self, place: Place | None) -> None:
        if place:
            place.divide("hidden_features", self.hidden_features)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        place = self.parallel.place()
        self._divide(place)
        act = bodies.activation(self.parallel.layer, self.activation)
        first = (self.gate_proj, self.up_proj) if self.gated else (self.up_proj,)
        x, ups, down, specs = promote_all(place, inputs, first, self.down_proj)
        result: jax.Array = on_mesh(
            place,
            lambda x, ups, down: bodies.mlp(place, x, ups, down, act),
            (x, ups, down),
            (place.rows(x), *specs),
            place.rows(x),
        )
        return result


class ParallelSelfAttention(nnx.Module):
    """Multi-head self-attention: heads sharded over ``axis``, Q, K and V by one gather.

    Submodules ``query``, ``key``, ``value`` and ``out`` have the parameters of
    ``nnx.MultiHeadAttention``: kernels [in_features, heads, head_dim] and [heads, head_dim,
    out_features]. Attention itself is ``jax.nn.dot_product_attention``. x is [b, s, in_features]
    or [s, in_features], s sharded over ``axis`` (inside ``jax.shard_map``: s/W of it).

    Args:
      num_heads: query heads.
      in_features: width of x.
      qkv_features: num_heads * head_dim; None: in_features.
      out_features: width of the result; None: in_features.
      num_kv_heads: heads of key and value (grouped-query attention); None: num_heads.
      is_causal: a position sees none after it.
      rope_base: rotate queries and keys with this base (10000.0, say); None does not.
      attention_implementation: ``implementation`` of ``jax.nn.dot_product_attention``.
      use_bias, dtype, param_dtype, precision, kernel_init, bias_init, promote_dtype, rngs: as in
        ``nnx.Linear``, for all projections.
      mesh, axis, implementation, batch_axes: as in `ColumnParallelLinear`.
      sequence_parallel: False: x and the result are whole on every rank; one sum, no gather.

    Raises:
      AxisError, ShapeError, OptionError: as `ColumnParallelLinear`; also ShapeError where heads do
        not divide.

    Notes:
      No cache, no dropout, no normalisation of queries and keys.
    """

    def __init__(
        self,
        num_heads: int,
        in_features: int,
        qkv_features: int | None = None,
        out_features: int | None = None,
        num_kv_heads: int | None = None,
        *,
        is_causal: bool = False,
        rope_base: float | None = None,
        attention_implementation: str | None = None,
        use_bias: bool = True,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        precision: Any = None,
        kernel_init: Any = lecun_normal,
        bias_init: Any = zeros,
        promote_dtype: Any = dtypes.promote_dtype,
        mesh: Any = None,
        axis: AxisName = "tp",
        sequence_parallel: bool = True,
        implementation: str | None = None,
        batch_axes: tuple[str, ...] | None = None,
        rngs: nnx.Rngs,
    ):
        self.parallel = Parallel(
            type(self).__name__,
            mesh,
            axis,
            sequence_parallel,
            implementation,
            batch_axes,
            precision,
        )
        self.heads = weights.Heads.of(
            self.parallel, num_heads, num_kv_heads, qkv_features or in_features, rope_base
        )
        self.heads.divide(self.parallel.world_if_known())
        self.is_causal, self.attention_implementation = is_causal, attention_implementation
        keywords: dict[str, Any] = dict(
            use_bias=use_bias,
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init,
            bias_init=bias_init,
            promote_dtype=promote_dtype,
            rngs=rngs,
        )
        tables = self.heads.tables(in_features, out_features or in_features, self.parallel.axis)
        self.query = Weights(self.parallel, *tables["query"], **keywords)
        self.key = Weights(self.parallel, *tables["key"], **keywords)
        self.value = Weights(self.parallel, *tables["value"], **keywords)
        self.out = Weights(self.parallel, *tables["out"], **keywords)

    def __call__(
        self,
        inputs: jax.Array,
        *,
        mask: jax.Array | None = None,
        positions: jax.Array | None = None,
    ) -> jax.Array:
        """Attends over the whole sequence.

        Args:
          inputs: [b, s, in_features] or [s, in_features], see the class.
          mask: bool [b or 1, num_heads or 1, s, s], True where a query (third) may see a key; its
            heads are sharded like the layer's where there is more than one.
          positions: int [s] or [b, s], of the whole sequence, for ``rope_base``; None counts.
        """
        place = self.parallel.place()
        self.heads.divide(place)
        x, qkv, out, specs = promote_all(
            place, inputs, (self.query, self.key, self.value), self.out
        )
        extra = self.heads.extra_specs(place, x, mask, positions)
        result: jax.Array = on_mesh(
            place,
            lambda *operands: bodies.attention(
                place,
                *operands,
                is_causal=self.is_causal,
                rope_base=self.heads.rope_base,
                attention_implementation=self.attention_implementation,
            ),
            (x, qkv, out, mask, positions),
            (place.rows(x), *specs, *extra),
            place.rows(x),
        )
        return result


def promote_all(
    place: Place, inputs: jax.Array, first: tuple[Weights, ...], last: Weights
) -> tuple[jax.Array, tuple[Any, ...], Any, tuple[Any, Any]]:
    """(x, affines of the columns, affine of the row, specs of both) in the computation's dtype.

    The row's own operand has x's dtype, so x stands in for it.
    """
    x, affine = first[0].promoted(place, inputs)
    affines = (affine, *(w.promoted(place, inputs)[1] for w in first[1:]))
    specs = tuple(w.specs() for w in first), last.specs()
    return x, affines, last.promoted(place, x)[1], specs
