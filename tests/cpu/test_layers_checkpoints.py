# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Orbax files of plain Flax models load into ours and the other way round, on any size of tp."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest
from flax import linen as nn
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jax_flux import linen as flux_linen
from jax_flux import nnx as flux_nnx
from tests import oracle
from tests.cpu import layers
from tests.cpu.layers import BIAS, D, F, V

SIZES = (1, 2, 4, 8)
HEADS, QKV = 8, 32


@pytest.fixture(autouse=True, scope="module")
def quick_compiler():
    """Hundreds of small programs run once each: LLVM's optimisations would only take time."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


class Plain(nnx.Module):
    """One block of a decoder out of plain Flax."""

    def __init__(self, rngs):
        self.embed = nnx.Embed(V, D, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            HEADS, D, QKV, bias_init=BIAS, decode=False, rngs=rngs, keep_rngs=False
        )
        self.mlp = layers.PlainMLP(True, rngs, bias_init=BIAS)
        self.head = nnx.Linear(D, V, bias_init=BIAS, rngs=rngs)

    def __call__(self, ids):
        x = self.embed(ids)
        x = x + self.attention(x)
        return self.head(x + self.mlp(x))


class Ours(Plain):
    """The same block out of parallel layers."""

    def __init__(self, rngs, mesh):
        on = dict(mesh=mesh, rngs=rngs)
        self.embed = flux_nnx.VocabParallelEmbed(V, D, **on)
        self.attention = flux_nnx.ParallelSelfAttention(HEADS, D, QKV, bias_init=BIAS, **on)
        self.mlp = flux_nnx.ParallelMLP(D, F, gated=True, activation="silu", bias_init=BIAS, **on)
        self.head = flux_nnx.ColumnParallelLinear(D, V, bias_init=BIAS, **on)


class LinenPlain(nn.Module):
    """`Plain` in linen; `parts` are its layers by name."""

    def parts(self):
        return (
            nn.Embed(V, D, name="embed"),
            nn.MultiHeadDotProductAttention(
                HEADS, qkv_features=QKV, bias_init=BIAS, name="attention"
            ),
            layers.LinenPlainMLP(True, name="mlp"),
            nn.Dense(V, bias_init=BIAS, name="head"),
        )

    @nn.compact
    def __call__(self, ids):
        embed, attention, mlp, head = self.parts()
        x = embed(ids)
        x = x + attention(x)
        return head(x + mlp(x))


class LinenOurs(LinenPlain):
    mesh: object = None

    def parts(self):
        on = dict(mesh=self.mesh)
        return (
            flux_linen.VocabParallelEmbed(V, D, **on, name="embed"),
            flux_linen.ParallelSelfAttention(
                HEADS, qkv_features=QKV, bias_init=BIAS, **on, name="attention"
            ),
            flux_linen.ParallelMLP(
                F, gated=True, activation="silu", bias_init=BIAS, **on, name="mlp"
            ),
            flux_linen.ColumnParallelLinear(V, bias_init=BIAS, **on, name="head"),
        )


@functools.cache
def tp_mesh(size):
    return jax.make_mesh(
        (size,), ("tp",), axis_types=(AxisType.Auto,), devices=jax.devices()[:size]
    )


def save(path, tree):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, tree)


def load(path, abstract):
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path, abstract)


class Nnx:
    """Writing, reading and running nnx models; ``size`` None is plain Flax on one device."""

    @staticmethod
    def _make(size, seed=0):
        return Plain(nnx.Rngs(seed)) if size is None else Ours(nnx.Rngs(seed), tp_mesh(size))

    def make(self, size):
        return nnx.state(self._make(size), nnx.Param)

    def load(self, path, size):
        other = nnx.state(nnx.eval_shape(lambda: self._make(size, seed=7)), nnx.Param)
        if size is None:
            place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
            shardings = jax.tree.map(lambda _: place, other)
        else:
            shardings = nnx.get_named_sharding(other, tp_mesh(size))
        shaped = jax.tree.map(
            lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), other, shardings
        )
        return load(path, shaped)

    @staticmethod
    @functools.cache
    def _compiled(size):
        graphdef, _ = nnx.split(Nnx._make(size, seed=7))
        return jax.jit(lambda state, ids: nnx.merge(graphdef, state)(ids))

    def run(self, state, size, ids):
        return self._compiled(size)(state, ids)

    def kernel(self, state):
        return state["attention"]["query"]["kernel"][...]


class Linen:
    """The same for linen models."""

    @staticmethod
    def _make(size):
        return LinenPlain() if size is None else LinenOurs(mesh=tp_mesh(size))

    def make(self, size):
        variables = jax.jit(self._make(size).init)(jax.random.key(0), layers.ids())
        return nn.unbox(variables)["params"]

    def load(self, path, size):
        variables = jax.eval_shape(self._make(size).init, jax.random.key(7), layers.ids())
        if size is None:
            place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
            shardings = jax.tree.map(lambda _: place, variables)
        else:
            shardings = nn.get_sharding(variables, tp_mesh(size))
        shaped = jax.tree.map(
            lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s),
            nn.unbox(variables),
            shardings,
        )
        return load(path, shaped["params"])

    @staticmethod
    @functools.cache
    def _compiled(size):
        return jax.jit(Linen._make(size).apply)

    def run(self, params, size, ids):
        return self._compiled(size)({"params": params}, ids)

    def kernel(self, params):
        return params["attention"]["query"]["kernel"]


@pytest.fixture(scope="module", params=[Nnx(), Linen()], ids=["nnx", "linen"])
def plain_file(request, tmp_path_factory):
    """(framework, file written by plain Flax, what the plain model gives)."""
    framework = request.param
    state = framework.make(None)
    path = tmp_path_factory.mktemp("plain") / "checkpoint"
    save(path, state)
    return framework, path, framework.run(state, None, layers.ids())


@pytest.mark.parametrize("size", SIZES)
def test_file_of_plain_flax_loads_sharded_and_gives_the_same(size, plain_file):
    framework, path, expected = plain_file
    state = framework.load(path, size)
    kernel = framework.kernel(state)
    assert kernel.sharding.is_equivalent_to(
        NamedSharding(tp_mesh(size), P(None, "tp", None)), kernel.ndim
    )
    assert kernel.addressable_shards[0].data.shape == (D, HEADS // size, QKV // HEADS)
    oracle.assert_close(jnp.asarray(framework.run(state, size, layers.ids())), expected)


@pytest.mark.parametrize("written, read", [(1, 4), (2, 8), (4, 1), (8, 2)])
def test_file_of_ours_loads_into_another_size_and_into_plain_flax(
    written, read, plain_file, tmp_path
):
    framework, path, expected = plain_file
    save(tmp_path / "ours", framework.load(path, written))
    for size in (read, None):
        state = framework.load(tmp_path / "ours", size)
        jax.tree.map(
            oracle.assert_same_bits, *map(jax.tree.leaves, (state, framework.load(path, None)))
        )
        oracle.assert_close(jnp.asarray(framework.run(state, size, layers.ids())), expected)


def test_file_of_a_fresh_model_of_ours_loads_into_plain_flax(plain_file, tmp_path):
    framework, _, _ = plain_file
    state = framework.make(4)
    save(tmp_path / "ours", state)
    plain = framework.load(tmp_path / "ours", None)
    expected = framework.run(plain, None, layers.ids())
    oracle.assert_close(jnp.asarray(framework.run(state, 4, layers.ids())), expected)
