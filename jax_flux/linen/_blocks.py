# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""MLP and self-attention: one gather in, one scatter out. Route: _linear.py makes the weights."""

from __future__ import annotations

from typing import Any

import jax
from flax import linen as nn

from jax_flux._layers import bodies, weights
from jax_flux._layers.mesh import on_mesh
from jax_flux._layers.place import Place
from jax_flux.linen._linear import AffineModule


class BlockModule(AffineModule, kw_only=True):
    """Some projections of x by one gather, something between, one projection back."""

    def read_all(
        self, place: Place, inputs: jax.Array, tables: dict[str, weights.Table], last: str
    ) -> tuple[jax.Array, tuple[Any, ...], Any, tuple[Any, Any]]:
        """(x, affines of the columns, affine of the row, specs of both), in ``tables``' order.

        The row's own operand has x's dtype, so x stands in for it.
        """
        read = {name: self.read(name, table, place, inputs) for name, table in tables.items()}
        first = [name for name in tables if name != last]
        x = read[first[0]][0]
        specs = tuple(self.specs(tables[name]) for name in first), self.specs(tables[last])
        return x, tuple(read[name][1] for name in first), read[last][1], specs


class ParallelMLP(BlockModule):
    """Computes ``act(x @ up) @ down``, or gated ``(act(x @ gate) * (x @ up)) @ down``.

    Gate and up share one gather. Submodules ``gate_proj``, ``up_proj`` and ``down_proj`` have the
    parameters of ``nn.Dense``. x and the result are [..., s, d], s sharded over ``axis`` (inside
    ``jax.shard_map``: [..., s/W, d]).

    Attributes:
      hidden_features: width between, sharded over ``axis``.
      gated: whether there is a gate.
      activation: "relu", "gelu" (tanh form), "silu", None, or a function.
      use_bias, dtype, param_dtype, precision, kernel_init, bias_init, promote_dtype: as in
        ``nn.Dense``, for all projections.
      mesh, axis, implementation, batch_axes: as in `jax_flux.nnx.ColumnParallelLinear`.
      sequence_parallel: False: x and the result are whole on every rank; one sum, no gather.

    Raises:
      AxisError, ShapeError, OptionError: as `jax_flux.nnx.ColumnParallelLinear`; also for an
        unknown activation.
    """

    hidden_features: int
    gated: bool = False
    activation: Any = "gelu"

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        place = self.place()
        act = bodies.activation(place.parallel.layer, self.activation)
        place.divide("hidden_features", self.hidden_features)
        width = inputs.shape[-1]
        up = weights.column_weights(width, self.hidden_features, self.axis)
        tables = {"gate_proj": up} if self.gated else {}
        tables["up_proj"] = up
        tables["down_proj"] = weights.row_weights(self.hidden_features, width, self.axis)
        x, ups, down, specs = self.read_all(place, inputs, tables, "down_proj")
        result: jax.Array = on_mesh(
            place,
            lambda x, ups, down: bodies.mlp(place, x, ups, down, act),
            (x, ups, down),
            (place.rows(x), *specs),
            place.rows(x),
        )
        return result


class ParallelSelfAttention(BlockModule):
    """Multi-head self-attention: heads sharded over ``axis``, Q, K and V by one gather.

    Submodules ``query``, ``key``, ``value`` and ``out`` have the parameters of
    ``nn.MultiHeadDotProductAttention``: kernels [d, heads, head_dim] and [heads, head_dim,
    out_features]. Attention itself is ``jax.nn.dot_product_attention``. x is [b, s, d] or [s, d],
    s sharded over ``axis`` (inside ``jax.shard_map``: s/W of it).

    Attributes:
      num_heads: query heads.
      qkv_features: num_heads * head_dim; None: the width of x.
      out_features: width of the result; None: the width of x.
      num_kv_heads: heads of key and value (grouped-query attention); None: num_heads.
      is_causal: a position sees none after it.
      rope_base: rotate queries and keys with this base (10000.0, say); None does not.
      attention_implementation: ``implementation`` of ``jax.nn.dot_product_attention``.
      use_bias, dtype, param_dtype, precision, kernel_init, bias_init, promote_dtype: as in
        ``nn.Dense``, for all projections.
      mesh, axis, implementation, batch_axes: as in `jax_flux.nnx.ColumnParallelLinear`.
      sequence_parallel: False: x and the result are whole on every rank; one sum, no gather.

    Raises:
      AxisError, ShapeError, OptionError: as `jax_flux.nnx.ParallelSelfAttention`.

    Notes:
      No cache, no dropout, no normalisation of queries and keys.
    """

    num_heads: int
    qkv_features: int | None = None
    out_features: int | None = None
    num_kv_heads: int | None = None
    is_causal: bool = False
    rope_base: float | None = None
    attention_implementation: Any = None

    @nn.compact
    def __call__(
        self,
        inputs: jax.Array,
        *,
        mask: jax.Array | None = None,
        positions: jax.Array | None = None,
    ) -> jax.Array:
        """Attends over the whole sequence.

        Args:
          inputs: [b, s, d] or [s, d], see the class.
          mask: bool [b or 1, num_heads or 1, s, s], True where a query (third) may see a key; its
            heads are sharded like the layer's where there is more than one.
          positions: int [s] or [b, s], of the whole sequence, for ``rope_base``; None counts.
        """
        place = self.place()
        width = inputs.shape[-1]
        heads = weights.Heads.of(
            place.parallel,
            self.num_heads,
            self.num_kv_heads,
            self.qkv_features or width,
            self.rope_base,
        )
        heads.divide(place)
        tables = heads.tables(width, self.out_features or width, self.axis)
        x, qkv, out, specs = self.read_all(place, inputs, tables, "out")
        extra = heads.extra_specs(place, x, mask, positions)
        result: jax.Array = on_mesh(
            place,
            lambda *operands: bodies.attention(
                place,
                *operands,
                is_causal=self.is_causal,
                rope_base=self.rope_base,
                attention_implementation=self.attention_implementation,
            ),
            (x, qkv, out, mask, positions),
            (place.rows(x), *specs, *extra),
            place.rows(x),
        )
        return result
