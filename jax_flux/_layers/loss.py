# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The loss on logits that are sharded over the vocabulary."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jax_flux import _checks, errors
from jax_flux._layers import bodies
from jax_flux._layers.mesh import on_mesh
from jax_flux._layers.place import Kind, Parallel, Place
from jax_flux._topology import AxisName


def vocab_parallel_cross_entropy(
    logits: jax.Array,
    labels: jax.Array,
    *,
    mesh: Any = None,
    axis: AxisName = "tp",
    batch_axes: tuple[str, ...] | None = None,
) -> jax.Array:
    """Computes ``-log_softmax(logits)[label]`` without gathering the logits.

    Three numbers per token cross the axis: the largest logit, the sum of the exponentials, and the
    logit of the label (arXiv 1909.08053, section 3).

    Args:
      logits: [..., s, V] with V sharded over ``axis``: the result of `VocabParallelEmbed.attend`
        or of a `ColumnParallelLinear`. Inside ``jax.shard_map``: [..., s, V/W].
      labels: int [..., s], whole over ``axis``.
      mesh: the mesh, for global arrays; None takes the one of ``jax.set_mesh``.
      axis: the tensor-parallel mesh axis, or a tuple of them.
      batch_axes: mesh axes of the first dimension on global arrays; None: all but ``axis``.

    Returns:
      [..., s] in f32 (f64 for f64 logits), the same on all ranks of the axis. A label outside
      [0, V) gives nan, whose gradient is 0 where a ``jnp.where`` takes it out.

    Raises:
      AxisError: no mesh known outside shard_map, or an axis that is unknown or not manual.
      ShapeError: V or the batch does not split, or labels have another shape than the tokens.
      DtypeError: labels that are not integers.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> mesh = jax.make_mesh((8,), ("tp",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> ids = jnp.zeros((2, 4), int)
      >>> loss = vocab_parallel_cross_entropy(jnp.zeros((2, 4, 16)), ids, mesh=mesh)
      >>> loss.shape, round(float(jnp.exp(loss[0, 0])))
      ((2, 4), 16)
    """
    layer = "vocab_parallel_cross_entropy"
    place = Parallel(layer, mesh, axis, False, None, batch_axes).place()
    logits = jnp.asarray(logits)
    labels = check_ids(place, labels)
    if labels.shape != logits.shape[:-1]:
        raise errors.ShapeError(
            errors.message(
                layer,
                f"logits are {_checks.shown(logits)}, labels are {_checks.shown(labels)}",
                "There is one label per token",
                "Pass labels of the logits' shape without the last dimension",
            )
        )
    if place.kind is Kind.GLOBAL:
        place.divide("the vocabulary", logits.shape[-1])
    result: jax.Array = on_mesh(
        place,
        lambda logits, labels: bodies.cross_entropy(place, logits, labels),
        (logits, labels),
        (place.features(logits), place.tokens(labels)),
        place.tokens(labels),
    )
    return result


def check_ids(place: Place, ids: Any) -> jax.Array:
    """Refuses indices that are not integers."""
    ids = jnp.asarray(ids)
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise errors.DtypeError(
            errors.message(
                place.parallel.layer,
                f"ids are {_checks.shown(ids)}",
                "Tokens are looked up by integers",
                "Cast them, ids.astype(jnp.int32)",
            )
        )
    return ids
