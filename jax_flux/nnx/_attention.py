# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Self-attention, over a whole sequence or with a key-value cache. Route: here -> bodies.py."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes

from jax_flux._layers import bodies, cache, weights
from jax_flux._layers.mesh import on_mesh
from jax_flux._layers.place import Kind, P, Parallel, Place
from jax_flux._topology import AxisName
from jax_flux.nnx._blocks import promote_all
from jax_flux.nnx._linear import Weights, lecun_normal, place_variable, zeros


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
      decode: calls use the cache that `init_cache` made: ``cached_key``, ``cached_value`` and
        ``cache_index``, variables of type ``nnx.Cache`` as in ``nnx.MultiHeadAttention``.

    Raises:
      AxisError, ShapeError, OptionError: as `ColumnParallelLinear`; also ShapeError where heads do
        not divide, OptionError for decoding without a cache, DtypeError for a mask that is not
        bool or a cache that is not of floats.

    Notes:
      No dropout, no normalisation of queries and keys. Decoding is causal whatever ``is_causal``.
      Beyond its max_length a cache gives nan.
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
        decode: bool = False,
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
        self.in_features, self.decode = in_features, decode
        self.cached_key: Any = nnx.data(None)
        self.cached_value: Any = nnx.data(None)
        self.cache_index: Any = nnx.data(None)
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
        sequence_parallel: bool | None = None,
        decode: bool | None = None,
    ) -> jax.Array:
        """Attends over the whole sequence, or over the cache and the s positions that x adds.

        Args:
          inputs: [b, s, in_features] or [s, in_features], see the class.
          mask: bool [b or 1, num_heads or 1, s, s], True where a query (third) may see a key; its
            heads are sharded like the layer's where there is more than one. Decoding, the keys are
            all max_length of the cache.
          positions: int [s] or [b, s], of the whole sequence, for ``rope_base``; None counts, from
            the cache's index when decoding.
          sequence_parallel: of this call; None: the layer's own. A prompt may run with it, single
            tokens only without.
          decode: of this call; None: the layer's own.
        """
        place = self.parallel.place(sequence_parallel).attending(inputs)
        self.heads.divide(place)
        x, qkv, out, specs = promote_all(
            place, inputs, (self.query, self.key, self.value), self.out
        )
        weights.check_width(place, x, "in_features", self.in_features)
        extra = self.heads.extra_specs(place, x, mask, positions)
        cached = self._cached(place, x) if (self.decode if decode is None else decode) else None
        cache_specs = None if cached is None else cache.call_specs(place, x)
        result, cached = on_mesh(
            place,
            lambda *operands: bodies.attention(
                place,
                *operands,
                is_causal=self.is_causal,
                rope_base=self.heads.rope_base,
                attention_implementation=self.attention_implementation,
            ),
            (x, qkv, out, mask, positions, cached),
            (place.rows(x), *specs, *extra, cache_specs),
            (place.rows(x), cache_specs),
        )
        if cached is not None:
            self.cached_key[...], self.cached_value[...], self.cache_index[...] = cached
        y: jax.Array = result
        return y

    def init_cache(self, input_shape: Any, dtype: Any = jnp.float32) -> None:
        """Makes an empty cache, heads sharded over ``axis``, or empties the one there is.

        Args:
          input_shape: [b, max_length, in_features] or [max_length, in_features] as in
            ``nnx.MultiHeadAttention``; max_length counts prompt and result. Inside shard_map b is
            this rank's, and the cache varies over ``axis`` and ``batch_axes``. On global arrays b
            is sharded over ``batch_axes``.
          dtype: of keys and values, a float.
        """
        cache.check_dtype(self.heads, dtype)
        place = self.parallel.world_if_known() or Place(Kind.PLAIN, self.parallel, (), 1)
        shape, spec = cache.layout(place, self.heads, input_shape)

        def make(value: jax.Array, spec: P) -> nnx.Cache[jax.Array]:
            variable: nnx.Cache[jax.Array] = place_variable(nnx.Cache, place, value, spec)
            return variable

        self.cached_key = make(cache.empty(place, shape, spec, dtype), spec)
        self.cached_value = make(cache.empty(place, shape, spec, dtype), spec)
        self.cache_index = make(jnp.zeros((), jnp.int32), P())

    def _cached(self, place: Place, x: jax.Array) -> cache.Cache:
        if self.cached_key is None:
            raise cache.missing(self.heads, "Call init_cache first, with the longest input's shape")
        cache.check(place, self.heads, x, self.cached_key)
        return self.cached_key[...], self.cached_value[...], self.cache_index[...]
