# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The optimiser: schedule, clipping and AdamW on gradients that are shards inside shard_map."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from lm import model

SCHEDULES = ("cosine", "linear", "constant")


def axes(spec: P) -> tuple[str, ...]:
    """Mesh axes over which an array with this spec is sharded (each dimension by at most one)."""
    return tuple(name for name in spec if name is not None)


def global_norm(tree: model.Params, specs: model.Params) -> jax.Array:
    """Euclidean norm of the global arrays whose local shards are in ``tree``.

    ``optax.global_norm`` inside ``shard_map`` sees one shard only: each device would get its own
    norm, clip by its own factor, and replicas would drift apart. Here the squares of a sharded
    leaf are summed over the axes it is sharded on; those of a replicated leaf count once.
    """
    squares: dict[tuple[str, ...], jax.Array] = {}
    for leaf, spec in zip(jax.tree.leaves(tree), jax.tree.leaves(specs), strict=True):
        over = axes(spec)
        squares[over] = squares.get(over, 0.0) + jnp.sum(jnp.square(leaf.astype(jnp.float32)))
    return jnp.sqrt(sum(lax.psum(s, over) if over else s for over, s in squares.items()))


def clip_by_global_norm(max_norm: float, specs: model.Params) -> optax.GradientTransformation:
    """``optax.clip_by_global_norm`` for gradients that are shards inside ``shard_map``."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        scale = jnp.minimum(1.0, max_norm / jnp.maximum(global_norm(updates, specs), 1e-12))
        return jax.tree.map(lambda u: u * scale.astype(u.dtype), updates), state

    return optax.GradientTransformation(optax.init_empty_state, update)


def make_schedule(name: str, *, peak: float, warmup: int, decay_steps: int) -> optax.Schedule:
    """A linear warm-up from a tenth of ``peak``, then down to a tenth of it, or constant.

    Args:
        name: "cosine", "linear" or "constant".
        peak: largest learning rate.
        warmup: steps until it is reached.
        decay_steps: step at which the decay ends, counted from the start; more than ``warmup``.
    """
    after = {
        "cosine": lambda: optax.cosine_decay_schedule(peak, decay_steps - warmup, alpha=0.1),
        "linear": lambda: optax.linear_schedule(peak, 0.1 * peak, decay_steps - warmup),
        "constant": lambda: optax.constant_schedule(peak),
    }[name]()
    return optax.join_schedules([optax.linear_schedule(0.1 * peak, peak, warmup), after], [warmup])


def make_optimizer(
    config: model.Config, schedule: optax.Schedule, *, clip: float, weight_decay: float
) -> optax.GradientTransformation:
    """Returns clipping, then AdamW that decays matrices only; works on shards."""
    table = model.param_table(config)
    return optax.chain(
        clip_by_global_norm(clip, jax.tree.map(lambda p: p.spec, table)),
        optax.adamw(
            schedule,
            b1=0.9,
            b2=0.95,
            weight_decay=weight_decay,
            mask=jax.tree.map(lambda p: p.stddev is not None, table),
        ),
    )
