# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The embedding whose vocabulary is sharded. Route: here -> jax_flux/_layers/."""

from __future__ import annotations

from typing import Any

import jax
from flax import linen as nn

from jax_flux._layers import bodies, weights
from jax_flux._layers.loss import check_ids
from jax_flux._layers.mesh import on_mesh
from jax_flux._layers.place import P, Place, Weight
from jax_flux.linen._linear import ParallelModule, read_param


class VocabParallelEmbed(ParallelModule):
    """Looks up rows of ``embedding`` [num_embeddings, features], rows sharded over ``axis``.

    The parameter is that of ``nn.Embed``. ids [..., s] are whole over ``axis``; the result
    [..., s, features] has s sharded (inside ``jax.shard_map``: [..., s/W, features]). `attend`
    gives logits sharded over the vocabulary, for `vocab_parallel_cross_entropy`.

    Attributes:
      num_embeddings: size of the vocabulary V, a multiple of the axis.
      features, dtype, param_dtype, embedding_init, promote_dtype: as in ``nn.Embed``.
      precision: of `attend`, one precision for both operands.
      mesh, axis, implementation, batch_axes: as in `jax_flux.nnx.ColumnParallelLinear`.
      sequence_parallel: False: the result, and what `attend` takes, are whole on every rank.

    Raises:
      AxisError, ShapeError, OptionError: as `jax_flux.nnx.ColumnParallelLinear`.
      DtypeError: ids that are not integers.

    Notes:
      As in Flax, negative ids count from the end, and others outside [0, V) give nan.
    """

    num_embeddings: int
    features: int
    embedding_init: Any = nn.linear.default_embed_init

    def setup(self) -> None:
        place = self.place()
        place.divide("num_embeddings", self.num_embeddings)
        self.embedding = read_param(
            self, place, "embedding", self.embedding_init, self._weight(), self.param_dtype
        )

    def _weight(self) -> Weight:
        shape = (self.num_embeddings, self.features)
        return Weight(shape, (self.axis, None), shape)

    def _table_spec(self) -> P:
        return P(*self._weight().spec)

    def __call__(self, inputs: jax.Array, *, sequence_parallel: bool | None = None) -> jax.Array:
        """Embeds ids [..., s], integers; ``sequence_parallel`` overrides the layer's."""
        place: Place = self.place(sequence_parallel)
        inputs = check_ids(place, inputs)
        (table,) = self.promote_dtype(self.embedding, dtype=self.dtype, inexact=False)
        result: jax.Array = on_mesh(
            place,
            lambda ids, table: bodies.embed(place, ids, table),
            (inputs, table),
            (place.tokens(inputs), self._table_spec()),
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
        place: Place = self.place(sequence_parallel)
        query, table = self.promote_dtype(query, self.embedding, dtype=self.dtype)
        weights.check_width(place, query, "features", self.features)
        result: jax.Array = on_mesh(
            place,
            lambda x, table: bodies.column(place, x, ((table, None),), transpose_w=True)[0],
            (query, table),
            (place.rows(query), self._table_spec()),
            place.features(query),
        )
        return result
