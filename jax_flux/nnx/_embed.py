# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The embedding whose vocabulary is sharded, and its loss. Route: here -> bodies.py."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes

from jax_flux._layers import bodies, weights
from jax_flux._layers.loss import check_ids
from jax_flux._layers.mesh import on_mesh
from jax_flux._layers.place import P, Parallel, Place, Weight
from jax_flux._topology import AxisName
from jax_flux.nnx._linear import make_param

default_embed_init = nnx.initializers.variance_scaling(1.0, "fan_in", "normal", out_axis=0)


class VocabParallelEmbed(nnx.Module):
    """Looks up rows of ``embedding`` [num_embeddings, features], rows sharded over ``axis``.

    The parameter is that of ``nnx.Embed``. ids [..., s] are whole over ``axis``; the result
    [..., s, features] has s sharded (inside ``jax.shard_map``: [..., s/W, features]). `attend`
    gives logits sharded over the vocabulary, for `vocab_parallel_cross_entropy`.

    Args:
      num_embeddings: size of the vocabulary V, a multiple of the axis.
      features, dtype, param_dtype, embedding_init, promote_dtype, rngs: as in ``nnx.Embed``.
      precision: of `attend`, one precision for both operands.
      mesh, axis, implementation, batch_axes: as in `ColumnParallelLinear`.
      sequence_parallel: False: the result, and what `attend` takes, are whole on every rank.

    Raises:
      AxisError, ShapeError, OptionError: as `ColumnParallelLinear`.
      DtypeError: ids that are not integers.

    Notes:
      As in Flax, negative ids count from the end, and others outside [0, V) give nan.
    """

    def __init__(
        self,
        num_embeddings: int,
        features: int,
        *,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        precision: Any = None,
        embedding_init: Any = default_embed_init,
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
        self.num_embeddings, self.features = num_embeddings, features
        self._divide(self.parallel.world_if_known())
        shape = (num_embeddings, features)
        self.weight = Weight(shape, (self.parallel.axis, None), shape)
        self.embedding = make_param(self.parallel, embedding_init, rngs, self.weight, param_dtype)
        self.dtype = dtype or self.embedding.dtype
        self.promote_dtype = promote_dtype

    def _divide(self, place: Place | None) -> None:
        if place:
            place.divide("num_embeddings", self.num_embeddings)

    def _place(self, sequence_parallel: bool | None) -> Place:
        place = self.parallel.place(sequence_parallel)
        self._divide(place)
        place.check("embedding", self.embedding, self.weight)
        return place

    def __call__(self, inputs: jax.Array, *, sequence_parallel: bool | None = None) -> jax.Array:
        """Embeds ids [..., s], integers; ``sequence_parallel`` overrides the layer's."""
        place = self._place(sequence_parallel)
        inputs = check_ids(place, inputs)
        (table,) = self.promote_dtype((self.embedding[...],), dtype=self.dtype, inexact=False)
        result: jax.Array = on_mesh(
            place,
            lambda ids, table: bodies.embed(place, ids, table),
            (inputs, table),
            (place.tokens(inputs), P(*self.weight.spec)),
            place.embedded(inputs),
        )
        return result

    def attend(self, query: jax.Array, *, sequence_parallel: bool | None = None) -> jax.Array:
        """Computes ``all_gather(query) @ embedding.T``: logits over this rank's vocabulary.

        Args:
          query: [..., s, features], s sharded over ``axis`` where sequence-parallel.
          sequence_parallel: of this call; None: the layer's own.

        Returns:
          [..., s, num_embeddings], the last sharded over ``axis``.
        """
        place = self._place(sequence_parallel)
        query, table = self.promote_dtype((query, self.embedding[...]), dtype=self.dtype)
        weights.check_width(place, query, "features", self.features)
        result: jax.Array = on_mesh(
            place,
            lambda x, table: bodies.column(place, x, ((table, None),), transpose_w=True)[0],
            (query, table),
            (place.rows(query), P(*self.weight.spec)),
            place.features(query),
        )
        return result
