# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layers: nnx = linen = plain Flax on one device, values and gradients; options; the loss."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jax_flux import linen as flux_linen
from jax_flux import nnx as flux_nnx
from jax_flux.nnx import vocab_parallel_cross_entropy
from tests import oracle
from tests.cpu import layers, programs
from tests.cpu.layers import KINDS

FRAMEWORKS = ("nnx", "linen")
BY_NAME = {kind.name: kind for kind in KINDS}


@pytest.fixture(autouse=True, scope="module")
def quick_compiler():
    """Hundreds of small programs run once each: LLVM's optimisations would only take time."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@functools.cache
def plain(kind, dtype=None):
    """(parameters, input, result and gradients) of plain Flax on one device."""
    make = functools.partial(kind.plain, dtype=dtype)
    params = layers.params_of(make(rngs=nnx.Rngs(0)))
    call = layers.nnx_call(make)
    return params, kind.x(), layers.value_and_grads(call, params, kind.x())


def ours(kind, framework, **keywords):
    make = getattr(kind, framework)
    return (layers.nnx_call if framework == "nnx" else layers.linen_call)(make, **keywords)


def ours_in_shard_map(kind, framework, mesh, check_vma=True, **keywords):
    make = getattr(kind, framework)
    if framework == "nnx":
        specs = layers.nnx_specs(make, **keywords)
    else:
        specs = layers.linen_specs(make, kind.x(), **keywords)
    whole = not keywords.get("sequence_parallel", True)
    x_spec, y_spec = (kind.x_whole, kind.y_whole) if whole else (kind.x_spec, kind.y_spec)
    call = ours(kind, framework, **keywords)
    return layers.in_shard_map(call, specs, mesh, x_spec, y_spec, check_vma)


# ---- equality ------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_global_arrays_give_what_plain_flax_gives(kind, framework, mesh):
    params, x, expected = plain(kind)
    call = ours(kind, framework, mesh=mesh)
    oracle.assert_close(layers.value_and_grads(call, params, x), expected)


@pytest.mark.parametrize(
    "framework, sequence_parallel", [("nnx", False), ("linen", True)], ids=["nnx-whole", "linen"]
)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_inside_a_users_shard_map_they_give_the_same(kind, framework, sequence_parallel, mesh):
    params, x, expected = plain(kind)
    call = ours_in_shard_map(kind, framework, mesh, sequence_parallel=sequence_parallel)
    oracle.assert_close(layers.value_and_grads(call, params, x), expected)


@pytest.mark.parametrize("check_vma", [True, False], ids=["vma", "novma"])
@pytest.mark.parametrize("name", ["gated", "attention", "embed"])
def test_with_and_without_check_vma_they_give_the_same(name, check_vma, mesh):
    kind = BY_NAME[name]
    params, x, expected = plain(kind)
    call = ours_in_shard_map(kind, "nnx", mesh, check_vma=check_vma)
    oracle.assert_close(layers.value_and_grads(call, params, x), expected)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", ["gated", "embed"])
def test_without_sequence_parallelism_global_arrays_give_the_same(name, framework, mesh):
    kind = BY_NAME[name]
    params, x, expected = plain(kind)
    call = ours(kind, framework, mesh=mesh, sequence_parallel=False)
    oracle.assert_close(layers.value_and_grads(call, params, x), expected)


@pytest.mark.parametrize(
    "name, framework",
    [
        ("column", "linen"),
        ("row", "nnx"),
        ("gated", "nnx"),
        ("gated", "linen"),
        ("attention", "nnx"),
        ("embed", "linen"),
    ],
)
def test_bf16_is_as_near_to_f32_as_plain_flax_is(name, framework, mesh):
    kind = BY_NAME[name]
    params, x, exact = plain(kind)
    _, _, theirs = plain(kind, jnp.bfloat16)
    call = ours(kind, framework, mesh=mesh, dtype=jnp.bfloat16)
    mine = layers.value_and_grads(call, params, x)
    for a, b, c in zip(*map(jax.tree.leaves, (mine, theirs, exact)), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        # Four partial sums are rounded before they are added, where plain Flax rounds one sum.
        assert oracle.error(a, oracle.f64(c)) <= 2 * oracle.error(b, oracle.f64(c)) + 1e-7


@pytest.mark.parametrize("sizes", [(4, 2), (1, 8), (8, 1)], ids=str)
def test_every_mesh_of_dp_and_tp_gives_the_same(sizes):
    kind = BY_NAME["gated"]
    devices = jax.devices()[: sizes[0] * sizes[1]]
    mesh = jax.make_mesh(sizes, ("dp", "tp"), axis_types=(AxisType.Auto,) * 2, devices=devices)
    params, x, expected = plain(kind)
    batch_axes = ("dp",) if layers.B % sizes[0] == 0 else ()
    call = ours(kind, "nnx", mesh=mesh, batch_axes=batch_axes)
    oracle.assert_close(layers.value_and_grads(call, params, x), expected)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_axis_may_be_a_tuple_of_axes(framework):
    kind = BY_NAME["gated"]
    mesh = programs.make_mesh((2, 2, 2), ("a", "dp", "b"))
    params, x, expected = plain(kind)
    call = ours(kind, framework, mesh=mesh, axis=("a", "b"))
    oracle.assert_close(layers.value_and_grads(call, params, x), expected)


@pytest.mark.parametrize(
    "name, framework",
    [("gated", "nnx"), ("gated", "linen"), ("attention", "nnx"), ("embed", "linen")],
)
def test_explicit_axes_give_the_same_and_typed_results(name, framework):
    kind = BY_NAME[name]
    mesh = programs.make_mesh((2, 4), ("dp", "tp"), AxisType.Explicit)
    params, x, expected = plain(kind)
    with jax.set_mesh(mesh):
        call = ours(kind, framework)
        y = jax.jit(call)(params, jax.device_put(x, NamedSharding(mesh, kind.x_spec)))
    assert jax.typeof(y).sharding.spec == P("dp", "tp", None)
    oracle.assert_close(jnp.asarray(np.asarray(y)), expected[0])


def test_gradients_on_explicit_axes_equal_plain_flaxs():
    kind = BY_NAME["attention"]
    mesh = programs.make_mesh((2, 4), ("dp", "tp"), AxisType.Explicit)
    params, x, _ = plain(kind)
    gradients = lambda call: jax.jit(jax.grad(lambda params, x: (call(params, x) ** 2).sum()))
    expected = gradients(layers.nnx_call(kind.plain))(params, x)
    place = lambda a, spec: jax.device_put(a, NamedSharding(mesh, spec))
    with jax.set_mesh(mesh):
        shards = jax.tree.map(place, params, layers.SPECS[kind.name])
        found = gradients(ours(kind, "nnx"))(shards, place(x, kind.x_spec))
    assert jax.typeof(found["query"]["kernel"]).sharding.spec == P(None, "tp", None)
    oracle.assert_close(jax.tree.map(lambda a: jnp.asarray(np.asarray(a)), found), expected)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_mesh_in_scope_serves_where_none_is_given(framework, mesh):
    kind = BY_NAME["gated"]
    params, x, expected = plain(kind)
    with jax.set_mesh(mesh):
        y = jax.jit(ours(kind, framework))(params, x)
    oracle.assert_close(y, expected[0])


def test_inputs_without_a_batch_dimension_work(mesh):
    kind = BY_NAME["attention"]
    params, x, expected = plain(kind)
    y = jax.jit(ours(kind, "nnx", mesh=mesh))(params, x[0])
    oracle.assert_close(y, expected[0][0])


def test_linen_attention_equals_linens_own(mesh):
    theirs = nn.MultiHeadDotProductAttention(8, qkv_features=32)
    mine = flux_linen.ParallelSelfAttention(8, qkv_features=32, mesh=mesh)
    x = programs.normal(0, (2, 8, 16))
    variables = theirs.init(jax.random.key(0), x)
    made = nn.unbox(mine.init(jax.random.key(0), x))
    jax.tree.map(oracle.assert_same_bits, made, variables)
    oracle.assert_close(jax.jit(mine.apply)(variables, x), theirs.apply(variables, x))


# ---- attention's options -------------------------------------------------------------------------


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_masks_of_every_form_equal_the_causal_flag(framework, mesh):
    make = getattr(BY_NAME["attention"], framework)
    params, x, (expected, _) = plain(BY_NAME["attention"])
    causal = jnp.tril(jnp.ones((8, 8), bool))
    if framework == "nnx":
        module = make(rngs=nnx.Rngs(0), mesh=mesh)
        nnx.update(module, _as_state(module, params))
        module.is_causal = False
        call = lambda mask: nnx.jit(lambda m, x: m(x, mask=mask))(module, x)
    else:
        module = make(mesh=mesh).clone(is_causal=False)
        call = jax.jit(lambda mask: module.apply({"params": params}, x, mask=mask))
    for shape in ((1, 1, 8, 8), (2, 1, 8, 8), (2, 8, 8, 8)):
        oracle.assert_close(call(jnp.broadcast_to(causal, shape)), expected)


def _as_state(module, params):
    state = nnx.state(module, nnx.Param)
    nnx.replace_by_pure_dict(state, params)
    return state


def test_rotary_depends_on_distances_only(mesh):
    layer = flux_nnx.ParallelSelfAttention(
        8, 16, 64, is_causal=True, rope_base=1e4, mesh=mesh, rngs=nnx.Rngs(0)
    )
    plain = flux_nnx.ParallelSelfAttention(8, 16, 64, is_causal=True, mesh=mesh, rngs=nnx.Rngs(0))
    x = programs.normal(0, (2, 8, 16))
    call = nnx.jit(lambda layer, x, positions: layer(x, positions=positions))
    y = call(layer, x, None)
    oracle.assert_close(call(layer, x, jnp.arange(8) + 5), y)
    oracle.assert_close(call(layer, x, jnp.broadcast_to(jnp.arange(8), (2, 8))), y)
    oracle.assert_close(call(layer, x, jnp.zeros(8, jnp.int32)), call(plain, x, None))
    assert not np.allclose(y, call(plain, x, None), atol=1e-3)


# ---- embedding and loss --------------------------------------------------------------------------


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_embedding_has_the_bits_of_flaxs_for_odd_ids_too(framework, mesh):
    kind = BY_NAME["embed"]
    params, _, _ = plain(kind)
    odd = jnp.asarray([[0, 31, 32, 1000, -1, -32, -33, 7]] * 2, jnp.int32)
    expected = layers.nnx_call(kind.plain)(params, odd)
    assert np.isnan(expected).any()
    oracle.assert_same_bits(jax.jit(ours(kind, framework, mesh=mesh))(params, odd), expected)


@pytest.mark.parametrize(
    "framework, local, sequence_parallel",
    [("nnx", True, True), ("nnx", False, False), ("linen", True, False), ("linen", False, True)],
    ids=["nnx-shard_map", "nnx-whole", "linen-shard_map-whole", "linen"],
)
def test_loss_on_sharded_logits_equals_optax(framework, local, sequence_parallel, mesh):
    table, x = programs.normal(0, (32, 16)), programs.normal(1, (2, 8, 16))
    labels = layers.ids()

    def theirs(table, x):
        return optax.softmax_cross_entropy_with_integer_labels(x @ table.T, labels)

    where = None if local else mesh
    keywords = dict(sequence_parallel=sequence_parallel, mesh=where)
    attend = ours(BY_NAME["embed"], framework, method="attend", **keywords)

    def mine(table, x, labels=labels):
        return vocab_parallel_cross_entropy(attend({"embedding": table}, x), labels, mesh=where)

    if local:
        x_spec = P("dp", "tp") if sequence_parallel else P("dp")
        mapped = jax.shard_map(
            mine, mesh=mesh, in_specs=(P("tp"), x_spec, P("dp")), out_specs=P("dp")
        )
        call = lambda table, x: mapped(table, x, labels)
    else:
        call = mine
    oracle.assert_close(
        layers.value_and_grads(call, table, x), layers.value_and_grads(theirs, table, x)
    )


def test_loss_of_large_logits_stays_finite_and_ignored_labels_have_no_gradient(mesh):
    logits = programs.normal(0, (2, 8, 32)) * 1e4
    labels = layers.ids().at[0, 0].set(-1)

    def total(logits, loss):
        return jnp.where(labels >= 0, loss(logits, labels), 0).sum()

    sharded = functools.partial(vocab_parallel_cross_entropy, mesh=mesh)
    mine = jax.jit(jax.value_and_grad(functools.partial(total, loss=sharded)))
    theirs = jax.value_and_grad(
        functools.partial(total, loss=optax.softmax_cross_entropy_with_integer_labels)
    )
    value, grad = mine(logits)
    expected, expected_grad = theirs(logits)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(grad[0, 1:], expected_grad[0, 1:], atol=1e-6)
    assert not np.asarray(grad[0, 0]).any()
