# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Loss, optimiser and training step of ``model.py`` inside one fully manual ``shard_map``."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from lm import model

# One batch entry per dp rank, one piece of each sequence per tp rank.
TOKENS = P("dp", "tp")


class State(NamedTuple):
    """What a step reads and writes; every array is global and sharded over the mesh."""

    params: model.Params
    opt_state: Any


def param_specs(config: model.Config) -> model.Params:
    """Returns the ``PartitionSpec`` of every parameter."""
    return jax.tree.map(lambda p: p.spec, model.param_table(config))


def _axes(spec: P) -> tuple[str, ...]:
    """Mesh axes over which an array with this spec is sharded (each dimension by at most one)."""
    return tuple(name for name in spec if name is not None)


def mesh_losses(
    params: model.Params,
    inputs: jax.Array,
    targets: jax.Array,
    config: model.Config,
    implementation: str | None,
) -> tuple[jax.Array, jax.Array]:
    """The model's loss as seen by one device of the mesh; call it inside ``shard_map``.

    Every parameter is first marked as varying over the axes it is replicated on. That cast is the
    identity, and its transpose is a sum over those axes: differentiating this function *is* the
    data-parallel gradient reduction. Doing it here, not where the values are used, sums f32
    gradients (not bf16 ones), once per stacked parameter (not once per layer in the scan).

    Returns:
        (mean over all tokens of all devices, loss of each local token [b, s_local]).
    """

    def vary(p: jax.Array, spec: P) -> jax.Array:
        replicated = tuple(name for name in ("dp", "tp") if name not in _axes(spec))
        return lax.pcast(p, replicated, to="varying")

    params = jax.tree.map(vary, params, param_specs(config))
    linears = model.tensor_parallel("tp", implementation)
    losses = model.token_losses(params, inputs, targets, config, linears)
    return lax.pmean(jnp.mean(losses), ("dp", "tp")), losses


def global_norm(tree: model.Params, specs: model.Params) -> jax.Array:
    """Euclidean norm of the global arrays whose local shards are in ``tree``.

    ``optax.global_norm`` inside ``shard_map`` sees one shard only: each device would get its own
    norm, clip by its own factor, and replicas would drift apart. Here the squares of a sharded
    leaf are summed over the axes it is sharded on; those of a replicated leaf count once.
    """
    squares: dict[tuple[str, ...], jax.Array] = {}
    for leaf, spec in zip(jax.tree.leaves(tree), jax.tree.leaves(specs), strict=True):
        axes = _axes(spec)
        squares[axes] = squares.get(axes, 0.0) + jnp.sum(jnp.square(leaf.astype(jnp.float32)))
    return jnp.sqrt(sum(lax.psum(s, axes) if axes else s for axes, s in squares.items()))


def clip_by_global_norm(max_norm: float, specs: model.Params) -> optax.GradientTransformation:
    """``optax.clip_by_global_norm`` for gradients that are shards inside ``shard_map``."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        scale = jnp.minimum(1.0, max_norm / jnp.maximum(global_norm(updates, specs), 1e-12))
        return jax.tree.map(lambda u: u * scale.astype(u.dtype), updates), state

    return optax.GradientTransformation(optax.init_empty_state, update)


def make_optimizer(
    config: model.Config, *, learning_rate: float, steps: int
) -> optax.GradientTransformation:
    """Returns AdamW with warm-up, cosine decay and clipping; works on shards element by element."""
    schedule = optax.warmup_cosine_decay_schedule(
        init_value=0.1 * learning_rate,
        peak_value=learning_rate,
        warmup_steps=max(1, steps // 10),
        decay_steps=max(2, steps),
        end_value=0.1 * learning_rate,
    )
    is_matrix = jax.tree.map(lambda p: p.stddev is not None, model.param_table(config))
    return optax.chain(
        clip_by_global_norm(1.0, param_specs(config)),
        optax.adamw(schedule, b1=0.9, b2=0.95, weight_decay=0.1, mask=is_matrix),
    )


def state_specs(config: model.Config, optimizer: optax.GradientTransformation) -> State:
    """Returns the specs of the whole state: moments like their parameter, counters replicated."""
    specs = param_specs(config)
    shapes = jax.eval_shape(lambda key: model.init_params(key, config), jax.random.key(0))
    opt_specs = optax.tree.map_params(
        optimizer,
        lambda _, spec: spec,
        jax.eval_shape(optimizer.init, shapes),
        specs,
        transform_non_params=lambda _: P(),
    )
    return State(specs, opt_specs)


def init_state(
    mesh: Mesh, config: model.Config, optimizer: optax.GradientTransformation, *, seed: int
) -> State:
    """Returns the initial state, each device making only its own shards."""

    def init(key: jax.Array) -> State:
        params = model.init_params(key, config)
        return State(params, optimizer.init(params))

    specs = state_specs(config, optimizer)
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    return jax.jit(init, out_shardings=shardings)(jax.random.key(seed))


def make_train_step(
    mesh: Mesh,
    config: model.Config,
    optimizer: optax.GradientTransformation,
    implementation: str | None,
) -> Callable[[State, jax.Array, jax.Array], tuple[State, jax.Array]]:
    """Returns the jitted (state, inputs, targets) -> (state, loss); the old state is donated."""

    def step(state: State, inputs: jax.Array, targets: jax.Array) -> tuple[State, jax.Array]:
        (loss, _), grads = jax.value_and_grad(mesh_losses, has_aux=True)(
            state.params, inputs, targets, config, implementation
        )
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        return State(optax.apply_updates(state.params, updates), opt_state), loss

    specs = state_specs(config, optimizer)
    sharded = jax.shard_map(
        step, mesh=mesh, in_specs=(specs, TOKENS, TOKENS), out_specs=(specs, P())
    )
    return jax.jit(sharded, donate_argnums=0)


def make_eval_step(
    mesh: Mesh, config: model.Config, implementation: str | None
) -> Callable[[model.Params, jax.Array, jax.Array], jax.Array]:
    """Returns the jitted mean loss of one batch."""

    def evaluate(params: model.Params, inputs: jax.Array, targets: jax.Array) -> jax.Array:
        return mesh_losses(params, inputs, targets, config, implementation)[0]

    sharded = jax.shard_map(
        evaluate, mesh=mesh, in_specs=(param_specs(config), TOKENS, TOKENS), out_specs=P()
    )
    return jax.jit(sharded)


def host_copy(tree: Any) -> Any:
    """Returns whole arrays on the host, also of arrays with shards in other processes."""

    def copy(x: jax.Array) -> Any:
        if x.is_fully_addressable or x.is_fully_replicated:
            return jax.device_get(x)
        return multihost_utils.process_allgather(x, tiled=True)

    return jax.tree.map(copy, tree)


def put_batch(mesh: Mesh, batch: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
    """Moves (inputs, targets) from the host to the devices that read them."""
    inputs, targets = jax.device_put(batch, NamedSharding(mesh, TOKENS))
    return inputs, targets
