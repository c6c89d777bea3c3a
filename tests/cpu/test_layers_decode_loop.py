# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""A cache that is made inside the user's shard_map is a loop's carry as it is: no cast by hand."""

from __future__ import annotations

import functools
import types

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jax_flux import linen as flux_linen
from jax_flux import nnx as flux_nnx
from jax_flux._layers import cache
from tests import oracle
from tests.cpu import layers, programs
from tests.cpu.layers import BIAS, HEADS, KV_HEADS, QKV, B, D, S


@functools.cache
def plain():
    """(parameters, x, causal result) of plain Flax."""
    module = layers.PlainAttention(nnx.Rngs(0), bias_init=BIAS)
    x = programs.normal(1, (B, S, D))
    return layers.params_of(module), x, module(x)


def nnx_loop(**keywords):
    """((parameters, x of a rank) -> y [s, b, 1, d] by a scan over positions, parameters' specs)."""
    layer = flux_nnx.ParallelSelfAttention(
        HEADS, D, QKV, None, KV_HEADS, decode=True, rngs=nnx.Rngs(0), **keywords
    )
    graphdef, state = nnx.split(layer)

    def run(params, x):
        nnx.replace_by_pure_dict(state, params)
        layer = nnx.merge(graphdef, state)
        layer.init_cache((x.shape[0], S, D))
        graph, weights, empty = nnx.split(layer, nnx.Param, nnx.Cache)

        def step(cache, token):
            layer = nnx.merge(graph, weights, cache)
            y = layer(token, sequence_parallel=False)
            return nnx.state(layer, nnx.Cache), y

        return jax.lax.scan(step, empty, x.swapaxes(0, 1)[:, :, None])[1]

    return run, nnx.to_pure_dict(nnx.get_partition_spec(state))


def linen_loop(**keywords):
    """The same in linen."""
    layer = flux_linen.ParallelSelfAttention(
        HEADS, qkv_features=QKV, num_kv_heads=KV_HEADS, decode=True, **keywords
    )

    def run(params, x):
        whole = jnp.zeros((x.shape[0], S, D))
        make = functools.partial(layer.init, sequence_parallel=False)
        empty = make(jax.random.key(0), whole)["cache"]

        def step(cache, token):
            variables = {"params": params, "cache": cache}
            y, updated = layer.apply(variables, token, sequence_parallel=False, mutable=["cache"])
            return updated["cache"], y

        return jax.lax.scan(step, empty, x.swapaxes(0, 1)[:, :, None])[1]

    return run, nnx_loop()[1]


LOOPS = {"nnx": nnx_loop, "linen": linen_loop}


@pytest.mark.parametrize("check_vma", [True, False], ids=["vma", "novma"])
@pytest.mark.parametrize("batch_axes", [None, ("dp",), ()], ids=["default", "dp", "whole"])
@pytest.mark.parametrize("framework", LOOPS)
def test_a_scan_over_positions_carries_the_cache(framework, batch_axes, check_vma, mesh):
    """``batch_axes=()`` is for a batch that is the same on all ranks of dp."""
    params, x, expected = plain()
    run, specs = LOOPS[framework](bias_init=BIAS, batch_axes=batch_axes)
    entry = None if batch_axes == () else "dp"
    loop = jax.shard_map(
        run, mesh=mesh, in_specs=(specs, P(entry)), out_specs=P(None, entry), check_vma=check_vma
    )
    oracle.assert_close(jax.jit(loop)(params, x)[:, :, 0].swapaxes(0, 1), expected)


def test_zeros_of_a_cache_vary_over_axes_of_the_mesh_alone():
    """``batch_axes`` may name an axis of ``vmap``, over which nothing can be cast to vary."""
    place = types.SimpleNamespace(is_local=True)
    mesh = jax.make_mesh((2,), ("tp",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])

    def body(x):
        one = lambda _: cache.empty(place, (2, 4), P("lanes", "tp"), jnp.float32)
        zeros = jax.vmap(one, axis_name="lanes")(x)
        assert jax.typeof(zeros).mat.varying == {"tp"}
        return zeros

    made = jax.shard_map(body, mesh=mesh, in_specs=P(), out_specs=P(None, "tp"))(jnp.ones(3))
    assert made.shape == (3, 4, 4)
