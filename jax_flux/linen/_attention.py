# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Self-attention, over a whole sequence or with a key-value cache. Route: here -> bodies.py."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from jax_flux._layers import bodies, cache, weights
from jax_flux._layers.mesh import on_mesh
from jax_flux._layers.place import Place
from jax_flux.linen._blocks import BlockModule
from jax_flux.linen._linear import bare

NAMES = ("cached_key", "cached_value", "cache_index")


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
      decode: use a cache, the collection "cache" with ``cached_key``, ``cached_value`` and
        ``cache_index`` as in ``nn.MultiHeadDotProductAttention``: ``init`` on an input of
        max_length positions makes it, ``apply(..., mutable=["cache"])`` extends it.

    Raises:
      AxisError, ShapeError, OptionError, DtypeError: as `jax_flux.nnx.ParallelSelfAttention`.

    Notes:
      No dropout, no normalisation of queries and keys. Decoding is causal whatever ``is_causal``.
      Beyond its max_length a cache gives nan.
    """

    num_heads: int
    qkv_features: int | None = None
    out_features: int | None = None
    num_kv_heads: int | None = None
    is_causal: bool = False
    rope_base: float | None = None
    attention_implementation: Any = None
    decode: bool = False

    @nn.compact
    def __call__(
        self,
        inputs: jax.Array,
        *,
        mask: jax.Array | None = None,
        positions: jax.Array | None = None,
        sequence_parallel: bool | None = None,
    ) -> jax.Array:
        """Attends over the whole sequence, or over the cache and the s positions that x adds.

        Args:
          inputs: [b, s, d] or [s, d], see the class.
          mask: bool [b or 1, num_heads or 1, s, s], True where a query (third) may see a key; its
            heads are sharded like the layer's where there is more than one. Decoding, the keys are
            all max_length of the cache.
          positions: int [s] or [b, s], of the whole sequence, for ``rope_base``; None counts, from
            the cache's index when decoding.
          sequence_parallel: of this call; None: the layer's own. A prompt may run with it, single
            tokens only without.
        """
        place = self.place(sequence_parallel).attending(inputs)
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
        cached = self._cached(place, heads, x) if self.decode else None
        cache_specs = None if cached is None else cache.call_specs(place, x)
        result, cached = on_mesh(
            place,
            lambda *operands: bodies.attention(
                place,
                *operands,
                is_causal=self.is_causal,
                rope_base=self.rope_base,
                attention_implementation=self.attention_implementation,
            ),
            (x, qkv, out, mask, positions, cached),
            (place.rows(x), *specs, *extra, cache_specs),
            (place.rows(x), cache_specs),
        )
        if cached is not None:
            for name, value in zip(NAMES, cached, strict=True):
                box: Any = self.get_variable("cache", name)
                boxed = isinstance(box, nn.Partitioned)
                self.put_variable("cache", name, box.replace(value=value) if boxed else value)
        y: jax.Array = result
        return y

    def _cached(self, place: Place, heads: weights.Heads, x: jax.Array) -> cache.Cache | None:
        """What the collection holds; while it is made there is nothing to decode with."""
        if not self.has_variable("cache", NAMES[0]):
            if not self.is_initializing():
                raise cache.missing(
                    heads, 'Pass the collection "cache" that init gave for the longest input'
                )
            gathered = place.world if place.is_local and place.gathers else 1
            wanted = (*x.shape[:-2], x.shape[-2] * gathered, x.shape[-1])
            shape, spec = cache.layout(place, heads, wanted)
            for name in NAMES[:2]:
                zeros = cache.empty(place, shape, spec, x.dtype)
                box: Any = nn.Partitioned(zeros, names=tuple(spec))
                self.put_variable("cache", name, box)
            self.put_variable("cache", NAMES[2], jnp.zeros((), jnp.int32))
            return None
        keys, values, index = (bare(self.get_variable("cache", name)) for name in NAMES)
        cache.check(place, heads, x, keys)
        return keys, values, index
