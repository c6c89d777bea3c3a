# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Loss, gradients and training step of ``model.py`` inside one fully manual ``shard_map``."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from lm import model
from lm.optimizer import axes, global_norm

# One batch entry per dp rank, one piece of each sequence per tp rank.
TOKENS = P("dp", "tp")


class State(NamedTuple):
    """What a step reads and writes; every array is global and sharded over the mesh."""

    params: model.Params
    opt_state: Any


class Metrics(NamedTuple):
    """What a step measures: mean loss in nats per byte, norm of the gradient before clipping."""

    loss: jax.Array
    grad_norm: jax.Array


def param_specs(config: model.Config) -> model.Params:
    """Returns the ``PartitionSpec`` of every parameter."""
    return jax.tree.map(lambda p: p.spec, model.param_table(config))


def vary(params: model.Params, config: model.Config) -> model.Params:
    """Marks every parameter as varying over the axes it is replicated on.

    That cast is the identity, and its transpose is a sum over those axes: it *is* the data-parallel
    gradient reduction. Doing it here, not where the values are used, sums f32 gradients (not bf16
    ones), once per stacked parameter (not once per layer in the scan, nor per microbatch).
    """

    def cast(p: jax.Array, spec: P) -> jax.Array:
        replicated = tuple(name for name in ("dp", "tp") if name not in axes(spec))
        return lax.pcast(p, replicated, to="varying")

    return jax.tree.map(cast, params, param_specs(config))


def mesh_losses(
    params: model.Params,
    inputs: jax.Array,
    targets: jax.Array,
    config: model.Config,
    implementation: str | None,
) -> tuple[jax.Array, jax.Array]:
    """The model's loss as seen by one device of the mesh; call it inside ``shard_map``.

    Args:
        params: varying over both axes.

    Returns:
        (mean over all tokens of all devices, loss of each local token [b, s_local]).
    """
    linears = model.tensor_parallel("tp", implementation)
    losses = model.token_losses(params, inputs, targets, config, linears)
    return lax.pmean(jnp.mean(losses), ("dp", "tp")), losses


def loss_and_grads(
    params: model.Params,
    inputs: jax.Array,
    targets: jax.Array,
    config: model.Config,
    implementation: str | None,
    accumulate: int = 1,
) -> tuple[tuple[jax.Array, jax.Array], model.Params]:
    """((mean loss, token losses), gradients) of a batch in ``accumulate`` microbatches.

    Gradients are added in f32 on each device, and cross the mesh once, after the last microbatch.
    """
    varying, reduce = jax.vjp(lambda p: vary(p, config), params)
    differentiate = jax.value_and_grad(mesh_losses, has_aux=True)
    if accumulate == 1:
        result, grads = differentiate(varying, inputs, targets, config, implementation)
        return result, reduce(grads)[0]

    def microbatch(total: Any, batch: tuple[jax.Array, jax.Array]) -> tuple[Any, jax.Array]:
        (loss, losses), grads = differentiate(varying, *batch, config, implementation)
        return jax.tree.map(jnp.add, total, (loss, grads)), losses

    parts = [a.reshape(accumulate, -1, a.shape[-1]) for a in (inputs, targets)]
    empty = lambda p: lax.pcast(jnp.zeros(p.shape, p.dtype), ("dp", "tp"), to="varying")
    zeros = jax.tree.map(empty, params)
    (loss, grads), losses = lax.scan(microbatch, (jnp.zeros(()), zeros), tuple(parts))
    loss, grads = jax.tree.map(lambda a: a / accumulate, (loss, grads))
    return (loss, losses.reshape(inputs.shape)), reduce(grads)[0]


def state_specs(config: model.Config, optimizer: optax.GradientTransformation) -> State:
    """Returns the specs of the whole state: moments like their parameter, counters replicated."""
    specs = param_specs(config)
    opt_specs = optax.tree.map_params(
        optimizer,
        lambda _, spec: spec,
        state_shapes(config, optimizer).opt_state,
        specs,
        transform_non_params=lambda _: P(),
    )
    return State(specs, opt_specs)


def state_shapes(config: model.Config, optimizer: optax.GradientTransformation) -> State:
    """Returns shapes and dtypes of the whole state."""
    params = jax.eval_shape(lambda key: model.init_params(key, config), jax.random.key(0))
    return State(params, jax.eval_shape(optimizer.init, params))


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
    accumulate: int = 1,
) -> Callable[[State, jax.Array, jax.Array], tuple[State, Metrics]]:
    """Returns the jitted (state, inputs, targets) -> (state, metrics); the old state is donated."""
    specs = state_specs(config, optimizer)

    def step(state: State, inputs: jax.Array, targets: jax.Array) -> tuple[State, Metrics]:
        (loss, _), grads = loss_and_grads(
            state.params, inputs, targets, config, implementation, accumulate
        )
        metrics = Metrics(loss, global_norm(grads, specs.params))
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        return State(optax.apply_updates(state.params, updates), opt_state), metrics

    sharded = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(specs, TOKENS, TOKENS),
        out_specs=(specs, Metrics(P(), P())),
    )
    return jax.jit(sharded, donate_argnums=0)


def make_eval_step(
    mesh: Mesh, config: model.Config, implementation: str | None
) -> Callable[[model.Params, jax.Array, jax.Array], jax.Array]:
    """Returns the jitted mean loss of one batch."""

    def evaluate(params: model.Params, inputs: jax.Array, targets: jax.Array) -> jax.Array:
        return mesh_losses(vary(params, config), inputs, targets, config, implementation)[0]

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


def put(mesh: Mesh, spec: P, tree: Any) -> Any:
    """Moves host arrays, the same in every process, to the devices; each takes its shards only."""

    def place(host: Any) -> jax.Array:
        host = np.asarray(host)
        sharding = NamedSharding(mesh, spec)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(place, tree)


def put_batch(mesh: Mesh, batch: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
    """Moves (inputs, targets) from the host to the devices that read them."""
    inputs, targets = put(mesh, TOKENS, batch)
    return inputs, targets
