# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Decoding: the cache gives what plain Flax's cache and a whole forward pass give."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jax_flux import errors
from jax_flux import linen as flux_linen
from jax_flux import nnx as flux_nnx
from tests import oracle
from tests.cpu import layers, programs
from tests.cpu.layers import BIAS, HEAD_DIM, HEADS, KV_HEADS, QKV, B, D, S
from tests.cpu.messages import raises

FRAMEWORKS = ("nnx", "linen")
PROMPT = 4  # positions of S; the rest is decoded one by one
CACHE_SPEC = P("dp", None, "tp", None)


@pytest.fixture(autouse=True, scope="module")
def quick_compiler():
    """Many small programs run once each: LLVM's optimisations would only take time."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@functools.cache
def plain():
    """(parameters, x, causal result) of plain Flax."""
    module = layers.PlainAttention(nnx.Rngs(0), bias_init=BIAS)
    x = programs.normal(1, (B, S, D))
    return layers.params_of(module), x, module(x)


@nnx.jit(static_argnums=2)
def nnx_step(layer, x, sequence_parallel, keywords):
    return layer(x, decode=True, sequence_parallel=sequence_parallel, **keywords)


class Nnx:
    """A layer with a cache; `step` adds positions to it."""

    def __init__(self, mesh, max_length=S, batch=B, dtype=jnp.float32, **keywords):
        self.layer = flux_nnx.ParallelSelfAttention(
            HEADS, D, QKV, None, KV_HEADS, mesh=mesh, bias_init=BIAS, rngs=nnx.Rngs(0), **keywords
        )
        state = nnx.state(self.layer, nnx.Param)
        nnx.replace_by_pure_dict(state, plain()[0])
        nnx.update(self.layer, state)
        self.layer.init_cache((batch, max_length, D), dtype)

    def step(self, x, sequence_parallel, **keywords):
        return nnx_step(self.layer, x, sequence_parallel, keywords)

    def keys(self):
        return self.layer.cached_key[...]

    def index(self):
        return int(self.layer.cache_index[...])


@functools.partial(jax.jit, static_argnums=(0, 3))
def linen_step(layer, variables, x, sequence_parallel, keywords):
    return layer.apply(
        variables, x, sequence_parallel=sequence_parallel, mutable=["cache"], **keywords
    )


class Linen:
    """The same in linen."""

    def __init__(self, mesh, max_length=S, batch=B, dtype=jnp.float32, **keywords):
        self.layer = flux_linen.ParallelSelfAttention(
            HEADS,
            qkv_features=QKV,
            num_kv_heads=KV_HEADS,
            mesh=mesh,
            bias_init=BIAS,
            decode=True,
            **keywords,
        )
        self.variables = jax.eval_shape(
            self.layer.init, jax.random.key(0), jnp.zeros((batch, max_length, D), dtype)
        )
        empty = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), self.variables["cache"])
        self.cache = nn.unbox(empty)

    def step(self, x, sequence_parallel, **keywords):
        variables = {"params": plain()[0], "cache": self.cache}
        y, updated = linen_step(self.layer, variables, x, sequence_parallel, keywords)
        self.cache = updated["cache"]
        return y

    def keys(self):
        return self.cache["cached_key"]

    def index(self):
        return int(self.cache["cache_index"])


MAKE = {"nnx": Nnx, "linen": Linen}


def prompt_then_tokens(layer, x, prompt=PROMPT, **keywords):
    """The prompt in one sequence-parallel call, then one position at a time on every rank."""
    parts = [layer.step(x[:, :prompt], True, **keywords)]
    parts += [layer.step(x[:, i : i + 1], False, **keywords) for i in range(prompt, x.shape[1])]
    return jnp.concatenate([jnp.asarray(np.asarray(part)) for part in parts], axis=1)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_prompt_and_tokens_give_the_rows_of_plain_flaxs_causal_attention(framework, mesh):
    _, x, expected = plain()
    layer = MAKE[framework](mesh)
    oracle.assert_close(prompt_then_tokens(layer, x), expected)
    assert layer.index() == S
    assert layer.keys().shape == (B, S, KV_HEADS, HEAD_DIM)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_size_of_tp_gives_the_same(size):
    _, x, expected = plain()
    mesh = jax.make_mesh(
        (size,), ("tp",), axis_types=(AxisType.Auto,), devices=jax.devices()[:size]
    )
    oracle.assert_close(prompt_then_tokens(Nnx(mesh), x), expected)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_one_sequence_is_no_batch_whatever_batch_axes_say(framework, mesh):
    params, x, expected = plain()
    own = MAKE[framework](mesh, batch_axes=("dp",), is_causal=True)
    if framework == "nnx":
        y = nnx.jit(lambda layer, x: layer(x, sequence_parallel=False))(own.layer, x[0])
        own.layer.init_cache((S, D))
        steps = [own.step(x[0, :PROMPT], True), own.step(x[0, PROMPT:], False)]
        oracle.assert_close(jnp.concatenate([jnp.asarray(np.asarray(s)) for s in steps]), y)
    else:
        apply = own.layer.clone(decode=False).apply
        y = jax.jit(functools.partial(apply, sequence_parallel=False))({"params": params}, x[0])
    oracle.assert_close(y, expected[0])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_cache_has_the_content_of_plain_flaxs(framework, mesh):
    _, x, _ = plain()
    theirs = nnx.MultiHeadAttention(
        HEADS, D, QKV, None, KV_HEADS, bias_init=BIAS, decode=True, rngs=nnx.Rngs(0)
    )
    theirs.init_cache((B, S, D))
    decode = nnx.jit(lambda layer, x: layer(x))
    rows = jnp.concatenate([decode(theirs, x[:, i : i + 1]) for i in range(S)], axis=1)
    mine = MAKE[framework](mesh)
    oracle.assert_close(prompt_then_tokens(mine, x), rows)
    oracle.assert_close(jnp.asarray(np.asarray(mine.keys())), theirs.cached_key[...])


def test_cache_is_sharded_over_batch_and_heads(mesh):
    layer = Nnx(mesh)
    wanted = NamedSharding(mesh, CACHE_SPEC)
    assert layer.keys().sharding == wanted
    layer.step(plain()[1][:, :PROMPT], True)
    assert layer.keys().sharding.is_equivalent_to(wanted, 4)
    specs = nnx.to_pure_dict(nnx.get_partition_spec(nnx.state(layer.layer, nnx.Cache)))
    assert specs["cached_key"] == specs["cached_value"] == CACHE_SPEC
    specs = nn.get_partition_spec(Linen(mesh).variables)["cache"]
    assert specs["cached_key"] == specs["cached_value"] == CACHE_SPEC


@pytest.mark.parametrize("check_vma", [True, False], ids=["vma", "novma"])
def test_inside_a_users_shard_map_the_cache_is_this_ranks(mesh, check_vma):
    params, x, expected = plain()
    layer = flux_nnx.ParallelSelfAttention(
        HEADS, D, QKV, None, KV_HEADS, bias_init=BIAS, decode=True, rngs=nnx.Rngs(0)
    )
    graphdef, state = nnx.split(layer)
    nnx.replace_by_pure_dict(state, params)

    def run(state, x):
        layer = nnx.merge(graphdef, state)
        layer.init_cache((x.shape[0], S, D))
        first = layer(jax.lax.dynamic_slice_in_dim(x[:, :PROMPT], jax.lax.axis_index("tp"), 1, 1))
        rest = [layer(x[:, i : i + 1], sequence_parallel=False) for i in range(PROMPT, S)]
        return first, jnp.concatenate(rest, axis=1), layer.cached_key[...]

    first, rest, keys = jax.jit(
        jax.shard_map(
            run,
            mesh=mesh,
            in_specs=(nnx.get_partition_spec(state), P("dp")),
            out_specs=(P("dp", "tp"), P("dp"), CACHE_SPEC),
            check_vma=check_vma,
        )
    )(state, x)
    oracle.assert_close(jnp.concatenate([first, rest], axis=1), expected)
    assert keys.shape == (B, S, KV_HEADS, HEAD_DIM)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_prompts_of_different_lengths_padded_on_the_left_decode_as_if_alone(framework, mesh):
    """Masked keys and positions of its own make each row what it would be without padding."""
    _, x, _ = plain()
    pads = jnp.array([0, 3])
    keywords = dict(rope_base=100.0)
    alone = [Nnx(_tp4(), S, 1, batch_axes=(), is_causal=True, **keywords) for _ in range(B)]
    expected = [
        nnx.jit(lambda layer, x: layer(x, sequence_parallel=False))(layer.layer, x[i : i + 1, pad:])
        for i, (layer, pad) in enumerate(zip(alone, pads.tolist(), strict=True))
    ]
    layer = MAKE[framework](mesh, **keywords)
    mask = (jnp.arange(S) >= pads[:, None])[:, None, None, :]
    positions = jnp.maximum(jnp.arange(S) - pads[:, None], 0)
    parts = [layer.step(x[:, :PROMPT], True, mask=mask, positions=positions[:, :PROMPT])]
    for i in range(PROMPT, S):
        here = slice(i, i + 1)
        parts.append(layer.step(x[:, here], False, mask=mask, positions=positions[:, here]))
    y = np.concatenate([np.asarray(part) for part in parts], axis=1)
    for i, (row, pad) in enumerate(zip(expected, pads.tolist(), strict=True)):
        oracle.assert_close(jnp.asarray(y[i, pad:]), jnp.asarray(np.asarray(row))[0])


def _tp4():
    return jax.make_mesh((4,), ("tp",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_positions_count_on_from_the_index(framework, mesh):
    _, x, _ = plain()
    whole = Nnx(mesh, rope_base=100.0).step(x, True)
    mine = prompt_then_tokens(MAKE[framework](mesh, rope_base=100.0), x)
    oracle.assert_close(mine, jnp.asarray(np.asarray(whole)))


def test_bf16_cache_holds_bf16_and_stays_near(mesh):
    _, x, expected = plain()
    layer = Nnx(mesh, dtype=jnp.bfloat16)
    y = prompt_then_tokens(layer, x)
    assert layer.keys().dtype == jnp.bfloat16 and y.dtype == jnp.float32
    np.testing.assert_allclose(y, expected, atol=0.05, rtol=0.05)


def test_explicit_axes_give_the_same():
    mesh = programs.make_mesh((2, 4), ("dp", "tp"), AxisType.Explicit)
    _, x, expected = plain()
    with jax.set_mesh(mesh):
        layer = Nnx(mesh)
        parts = [layer.step(jax.device_put(x[:, :PROMPT], NamedSharding(mesh, P("dp"))), True)]
        parts.append(layer.step(jax.device_put(x[:, PROMPT:], NamedSharding(mesh, P("dp"))), True))
    y = np.concatenate([np.asarray(part) for part in parts], axis=1)
    oracle.assert_close(jnp.asarray(y), expected)


def test_an_overfull_cache_gives_nan(mesh):
    _, x, _ = plain()
    layer = Nnx(mesh)
    layer.step(x, True)
    assert np.isnan(np.asarray(layer.step(x[:, :1], False))).all()


def test_init_cache_empties_the_cache(mesh):
    _, x, expected = plain()
    layer = Nnx(mesh)
    layer.step(x[:, :PROMPT] + 1, True)
    layer.layer.init_cache((B, S, D))
    oracle.assert_close(prompt_then_tokens(layer, x), expected)


def test_decoding_sums_once_and_gathers_nothing(mesh):
    layer = Nnx(mesh).layer
    graphdef, state = nnx.split(layer)

    def step(state, x, sequence_parallel):
        return nnx.merge(graphdef, state)(x, decode=True, sequence_parallel=sequence_parallel)

    prefill = functools.partial(step, sequence_parallel=True)
    decode = functools.partial(step, sequence_parallel=False)
    x = programs.normal(1, (B, S, D))
    in_rows = jax.device_put(x, NamedSharding(mesh, P("dp", "tp")))
    whole = jax.device_put(x[:, :1], NamedSharding(mesh, P("dp")))
    assert oracle.collective_counts(decode, state, whole) == {"all-reduce": 1}
    counts = oracle.collective_counts(prefill, state, in_rows)
    assert counts == {"all-gather": 1, "reduce-scatter": 1}


# ---- the other layers, called with and without sequence parallelism ------------------------------


@pytest.mark.parametrize("own", [True, False], ids=["off", "on"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("kind", layers.KINDS, ids=str)
def test_a_call_may_turn_sequence_parallelism(kind, framework, own, mesh):
    """Without it one position is enough, which could not be sharded over four ranks."""
    params = layers.params_of(kind.plain(rngs=nnx.Rngs(0)))
    x = kind.x()[:, : 1 if own else S]
    expected = jax.jit(layers.nnx_call(kind.plain))(params, x)
    keywords = dict(mesh=mesh, sequence_parallel=own)
    if framework == "nnx":
        graphdef, state = nnx.split(kind.nnx(rngs=nnx.Rngs(0), **keywords))
        nnx.replace_by_pure_dict(state, params)
        call = lambda x: nnx.merge(graphdef, state)(x, sequence_parallel=not own)
    else:
        module = kind.linen(**keywords)
        call = lambda x: module.apply({"params": params}, x, sequence_parallel=not own)
    oracle.assert_close(jnp.asarray(np.asarray(jax.jit(call)(x))), expected)


# ---- messages ------------------------------------------------------------------------------------


def test_decoding_without_a_cache_says_how_to_make_one(mesh):
    layer = flux_nnx.ParallelSelfAttention(8, D, mesh=mesh, rngs=nnx.Rngs(0))
    with raises(errors.OptionError, "decode = True, and there is no cache", "init_cache"):
        layer(jnp.ones((2, 8, D)), decode=True)
    module = flux_linen.ParallelSelfAttention(8, mesh=mesh, decode=True)
    params = jax.eval_shape(module.clone(decode=False).init, jax.random.key(0), jnp.ones((2, 8, D)))
    params = jax.tree.map(lambda a: jnp.zeros(a.shape), nn.unbox(params))
    with raises(errors.OptionError, "there is no cache", 'collection "cache"'):
        module.apply(params, jnp.ones((2, 8, D)))


@pytest.mark.parametrize("shape", [(B, S + 4, D), (2 * B, S, D)], ids=["longer", "other batch"])
def test_input_that_the_cache_cannot_take_is_refused(shape, mesh):
    with raises(errors.ShapeError, "the cached keys are", "Make another cache"):
        Nnx(mesh).step(jnp.ones(shape), True)


def test_cache_that_the_mesh_cannot_split_is_refused(mesh):
    with raises(errors.ShapeError, "a cache of shape [3, 8, 4, 4]", "batch_axes=()"):
        Nnx(mesh, batch=3)
    with raises(errors.ShapeError, "the cache is asked for inputs of shape [8]", "Pass that shape"):
        Nnx(mesh).layer.init_cache((8,))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_mask_is_bool(framework, mesh):
    layer = MAKE[framework](mesh)
    with raises(errors.DtypeError, "ParallelSelfAttention", "float32[1, 1, 4, 8]", "mask is bool"):
        layer.step(plain()[1][:, :PROMPT], True, mask=jnp.ones((1, 1, PROMPT, S)))


def test_a_cache_of_integers_is_refused(mesh):
    with raises(errors.DtypeError, "ParallelSelfAttention", "int8", "Pass a float dtype"):
        Nnx(mesh, dtype=jnp.int8)
