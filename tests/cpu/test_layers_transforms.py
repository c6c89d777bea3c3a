# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layers under scan, remat, jit and accumulation; the collectives of a block, counted in HLO."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen as nn
from flax import nnx
from jax.sharding import PartitionSpec as P

from jax_flux import linen as flux_linen
from jax_flux import nnx as flux_nnx
from tests import oracle
from tests.cpu import layers, programs
from tests.cpu.layers import D, F, S

DEPTH = 2
ATTENTION = dict(num_kv_heads=8, is_causal=True, use_bias=False)
X = programs.normal(1, (2, S, D))


class Block(nnx.Module):
    """A residual block without norms, so that every collective is a layer's."""

    def __init__(self, rngs, **keywords):
        self.attention = flux_nnx.ParallelSelfAttention(
            8, D, 32, **ATTENTION, **keywords, rngs=rngs
        )
        self.mlp = flux_nnx.ParallelMLP(
            D, F, gated=True, activation="silu", use_bias=False, **keywords, rngs=rngs
        )

    def __call__(self, x):
        x = x + self.attention(x)
        return x + self.mlp(x)


class LinenBlock(nn.Module):
    """The same; returns a carry and no output, as nn.scan wants."""

    mesh: object = None

    @nn.compact
    def __call__(self, x, _=None):
        attention = flux_linen.ParallelSelfAttention(
            8, qkv_features=32, **ATTENTION, mesh=self.mesh, name="attention"
        )
        mlp = flux_linen.ParallelMLP(
            F, gated=True, activation="silu", use_bias=False, mesh=self.mesh, name="mlp"
        )
        x = x + attention(x)
        return x + mlp(x), None


def nnx_stack(**keywords):
    """DEPTH blocks whose parameters are stacked on a first, unsharded dimension."""

    @nnx.split_rngs(splits=DEPTH)
    @nnx.vmap(in_axes=0, out_axes=0, transform_metadata={nnx.PARTITION_NAME: None})
    def make(rngs):
        return Block(rngs, **keywords)

    return make(nnx.Rngs(0))


def nnx_scan(stack, x, remat=False):
    @nnx.scan(
        in_axes=(nnx.Carry, 0),
        out_axes=nnx.Carry,
        transform_metadata={nnx.PARTITION_NAME: None},
    )
    def run(x, block):
        return nnx.remat(lambda block, x: block(x))(block, x) if remat else block(x)

    return run(x, stack)


def linen_stack(mesh, remat=False):
    block = nn.remat(LinenBlock, prevent_cse=False) if remat else LinenBlock
    return nn.scan(
        block,
        variable_axes={"params": 0},
        split_rngs={"params": True},
        length=DEPTH,
        metadata_params={nn.PARTITION_NAME: None},
    )(mesh)


def one_by_one(params, x):
    """The stack on one device: a Python loop over blocks of a mesh of one."""
    mesh = jax.make_mesh(
        (1,), ("tp",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:1]
    )
    call = layers.nnx_call(Block, mesh=mesh)
    for i in range(DEPTH):
        x = call(jax.tree.map(lambda p, i=i: p[i], params), x)
    return x


@pytest.fixture(scope="module")
def stacked():
    """(parameters of the stack, result and gradients on one device)."""
    params = layers.params_of(nnx_stack())
    return params, layers.value_and_grads(one_by_one, params, X)


@pytest.mark.parametrize("remat", [False, True], ids=["scan", "scan-remat"])
@pytest.mark.parametrize("framework", ["nnx", "linen"])
def test_scan_over_layers_equals_a_loop_on_one_device(framework, remat, stacked, mesh):
    params, expected = stacked
    if framework == "nnx":
        graphdef, state = nnx.split(nnx_stack(mesh=mesh))

        def call(params, x):
            own = jax.tree.map(lambda leaf: leaf, state)
            nnx.replace_by_pure_dict(own, params)
            return nnx_scan(nnx.merge(graphdef, own), x, remat)
    else:
        module = linen_stack(mesh, remat)
        call = lambda params, x: module.apply({"params": params}, x, None)[0]
    oracle.assert_close(layers.value_and_grads(call, params, X), expected, 3e-5)


def test_scan_inside_a_users_shard_map_equals_it_too(stacked, mesh):
    params, expected = stacked
    module = linen_stack(None)
    variables = jax.eval_shape(module.init, jax.random.key(0), X, None)
    specs = nn.get_partition_spec(variables)["params"]
    call = layers.in_shard_map(
        lambda params, x: module.apply({"params": params}, x, None)[0],
        specs,
        mesh,
        P("dp", "tp"),
        P("dp", "tp"),
    )
    oracle.assert_close(layers.value_and_grads(call, params, X), expected, 3e-5)


def test_stacked_parameters_keep_their_specs(mesh):
    expected = P(None, None, "tp")
    made = nnx.eval_shape(lambda: nnx_stack(mesh=mesh))
    specs = nnx.to_pure_dict(nnx.get_partition_spec(nnx.state(made, nnx.Param)))
    assert specs["mlp"]["up_proj"]["kernel"] == expected
    variables = jax.eval_shape(linen_stack(mesh).init, jax.random.key(0), X, None)
    assert nn.get_partition_spec(variables)["params"]["mlp"]["up_proj"]["kernel"] == expected


def gated(mesh):
    return flux_nnx.ParallelMLP(D, F, gated=True, activation="silu", mesh=mesh, rngs=nnx.Rngs(0))


def test_gradients_accumulate_over_microbatches(mesh):
    xs = programs.normal(4, (4, 2, S, D))
    block = gated(mesh)
    loss = lambda block, x: jnp.mean(block(x) ** 2)

    @nnx.jit
    def accumulated(block, xs):
        graphdef, state = nnx.split(block)

        def add(total, x):
            grads = jax.grad(lambda state: loss(nnx.merge(graphdef, state), x))(state)
            return jax.tree.map(lambda a, b: a + b / len(xs), total, grads), None

        return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, state), xs)[0]

    whole = nnx.jit(nnx.grad(loss))(block, xs.reshape(-1, S, D))
    oracle.assert_close(nnx.to_pure_dict(accumulated(block, xs)), nnx.to_pure_dict(whole), 1e-6)


def test_an_optimizer_step_equals_plain_flaxs(mesh):
    def train(module):
        optimizer = nnx.Optimizer(module, optax.adam(1e-2), wrt=nnx.Param)

        @nnx.jit
        def step(module, optimizer, x):
            loss = lambda module: jnp.mean((module(x) - 1) ** 2)
            value, grads = nnx.value_and_grad(loss)(module)
            optimizer.update(module, grads)
            return value

        return jnp.stack([step(module, optimizer, X) for _ in range(3)]), optimizer

    expected, _ = train(layers.PlainMLP(True, nnx.Rngs(0)))
    losses, optimizer = train(gated(mesh))
    oracle.assert_close(losses, expected)
    moment = nnx.to_pure_dict(nnx.state(optimizer))["opt_state"][0]["mu"]["up_proj"]["kernel"]
    assert moment.sharding.spec == P(None, "tp")


def test_vmap_maps_over_a_further_dimension(mesh):
    block = gated(mesh)
    call = lambda block, x: block(x)
    xs = jnp.stack([X, -X])
    y = nnx.jit(nnx.vmap(call, in_axes=(None, 0)))(block, xs)
    oracle.assert_close(y, jnp.stack([nnx.jit(call)(block, x) for x in xs]))


# ---- collectives ---------------------------------------------------------------------------------


def block_calls(mesh, where, sequence_parallel):
    """(params, x) -> result of one block, on global arrays or in a user's shard_map."""
    keywords = dict(sequence_parallel=sequence_parallel)
    if where == "global":
        return layers.nnx_call(Block, mesh=mesh, **keywords)
    names = mesh.axis_names
    batch = ("dp",) if "dp" in names else (None,)
    spec = P(*batch, "tp") if sequence_parallel else P(*batch)
    specs = layers.nnx_specs(Block, **keywords)
    return layers.in_shard_map(layers.nnx_call(Block, **keywords), specs, mesh, spec, spec)


def placed(mesh, params, x, sequence_parallel):
    specs = layers.nnx_specs(Block)
    shard = lambda a, spec: jax.device_put(a, jax.sharding.NamedSharding(mesh, spec))
    batch = "dp" if "dp" in mesh.axis_names else None
    x_spec = P(batch, "tp") if sequence_parallel else P(batch)
    return jax.tree.map(shard, params, specs), shard(x, x_spec)


def program(call, mesh, sequence_parallel, backward):
    """(function, its placed arguments): the call, or its vector-Jacobian product."""
    params = layers.params_of(Block(nnx.Rngs(0)))
    params, x = placed(mesh, params, X, sequence_parallel)
    weights = jax.device_put(programs.normal(9, X.shape), x.sharding)

    def forward(params, x, weights):
        return call(params, x)

    def gradients(params, x, weights):
        # No loss: it would add a sum over devices of its own.
        return jax.vjp(call, params, x)[1](weights)

    return gradients if backward else forward, (params, x, weights)


def counts(call, mesh, sequence_parallel, backward):
    fn, args = program(call, mesh, sequence_parallel, backward)
    return oracle.collective_counts(fn, *args)


@pytest.mark.parametrize("where", ["global", "shard_map"])
def test_forward_of_a_block_is_two_gathers_and_two_scatters(where, tp8):
    found = counts(block_calls(tp8, where, True), tp8, True, backward=False)
    assert found == {"all-gather": 2, "reduce-scatter": 2}


@pytest.mark.parametrize("where", ["global", "shard_map"])
def test_forward_without_sequence_parallelism_is_two_sums(where, tp8):
    found = counts(block_calls(tp8, where, False), tp8, False, backward=False)
    assert found == {"all-reduce": 2}


# The vector-Jacobian product alone leaves out the last scatter (sum) of the forward pass, whose
# result nobody wants. What columns gather for dw, XLA takes from the forward pass.


@pytest.mark.parametrize("where", ["global", "shard_map"])
def test_backward_of_a_block_mirrors_its_collectives(where, tp8):
    found = counts(block_calls(tp8, where, True), tp8, True, backward=True)
    assert found == {"all-gather": 2 + 2, "reduce-scatter": 1 + 2}


def test_backward_without_sequence_parallelism_is_two_sums_more(tp8):
    found = counts(block_calls(tp8, "global", False), tp8, False, backward=True)
    assert found == {"all-reduce": 1 + 2}


def test_data_parallelism_adds_one_sum_of_the_gradients_over_dp(mesh):
    fn, args = program(block_calls(mesh, "global", True), mesh, True, backward=True)
    assert oracle.collective_counts(fn, *args) == {
        "all-gather": 4,
        "reduce-scatter": 3,
        "all-reduce": 1,
    }
    groups = oracle.replica_groups(fn, *args)
    over_tp, over_dp = [[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert sorted(groups) == sorted([over_tp] * 7 + [over_dp])


def test_loss_gathers_tokens_but_no_logits(tp8):
    embed = flux_nnx.VocabParallelEmbed(32, D, mesh=tp8, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(embed)

    def loss(state, x):
        logits = nnx.merge(graphdef, state).attend(x)
        return flux_nnx.vocab_parallel_cross_entropy(logits, layers.ids(), mesh=tp8)

    x = jax.device_put(X, jax.sharding.NamedSharding(tp8, P(None, "tp")))
    assert oracle.collective_counts(loss, state, x) == {"all-gather": 1, "all-reduce": 2}
    gathers = [l for l in oracle.optimized_hlo(loss, state, x).splitlines() if " all-gather(" in l]
    assert all(f"f32[2,{S},{D}]" in line for line in gathers), gathers
