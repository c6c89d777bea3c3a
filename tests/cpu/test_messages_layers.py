# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""An x of another width than the layer's: the layer says so, not the op below it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jax_flux import errors
from jax_flux import linen as flux_linen
from jax_flux import nnx as flux_nnx
from tests.cpu import layers, programs
from tests.cpu.messages import raises

BLOCKS = {kind.name: kind for kind in layers.KINDS if kind.name != "embed"}
LAYERS = dict(
    column="ColumnParallelLinear",
    row="RowParallelLinear",
    mlp="ParallelMLP",
    gated="ParallelMLP",
    attention="ParallelSelfAttention",
)


def of_width(kind, times):
    """The kind's own input, ``times`` as wide; and its own width."""
    x = kind.x()
    return jnp.ones((*x.shape[:-1], int(x.shape[-1] * times))), x.shape[-1]


def expected(name, framework, width):
    number = "features" if name in ("mlp", "gated") else "in_features"
    number = number if framework == "nnx" else "the kernel's in_features"
    return f"{LAYERS[name]}: {number} = {width}, x is "


@pytest.mark.parametrize("framework", ["nnx", "linen"])
@pytest.mark.parametrize("sequence_parallel", [True, False], ids=["sp", "whole"])
@pytest.mark.parametrize("name", BLOCKS)
def test_global_x_of_another_width_names_the_layer(name, sequence_parallel, framework, mesh):
    kind = BLOCKS[name]
    x, width = of_width(kind, 2)
    make = dict(nnx=layers.nnx_call, linen=layers.linen_call)[framework]
    call = make(getattr(kind, framework), mesh=mesh, sequence_parallel=sequence_parallel)
    params = layers.params_of(kind.plain(rngs=nnx.Rngs(0)))
    with raises(
        errors.ShapeError,
        expected(name, framework, width),
        f"float32[2, 8, {2 * width}]. The last dimension of x must be {width}: the layer",
        f"Pass an x of shape [..., {width}], or make the layer for a width of {2 * width}",
    ):
        call(params, x)


@pytest.mark.parametrize("framework", ["nnx", "linen"])
@pytest.mark.parametrize("name", BLOCKS)
def test_local_x_of_another_width_gives_what_this_rank_has(name, framework, mesh):
    kind = BLOCKS[name]
    x, width = of_width(kind, 2)
    make = dict(nnx=layers.nnx_call, linen=layers.linen_call)[framework]
    params = layers.params_of(kind.plain(rngs=nnx.Rngs(0)))
    fn = layers.in_shard_map(
        make(getattr(kind, framework)), layers.SPECS[name], mesh, kind.x_spec, kind.y_spec
    )
    own = width // 4 if name == "row" else width
    share = ", this rank's share on axis 'tp' of size 4" if name == "row" else ""
    with raises(
        errors.ShapeError,
        expected(name, framework, width),
        f"{2 * own}] per device. The last dimension of x must be {own}{share}: the layer",
        f"or make the layer for a width of {2 * width}",
    ):
        fn(params, x)


@pytest.mark.parametrize(
    "name, given, entry", [("row", layers.WHOLE, "'tp'"), ("column", layers.FEATURES, "None")]
)
def test_x_that_looks_sharded_the_other_way_names_the_entry(name, given, entry, mesh):
    kind = BLOCKS[name]
    params = layers.params_of(kind.plain(rngs=nnx.Rngs(0)))
    call = layers.nnx_call(kind.nnx)
    fn = layers.in_shard_map(call, layers.SPECS[name], mesh, given, kind.y_spec)
    with raises(errors.ShapeError, "per device", f"the last entry of x's spec is {entry})"):
        fn(params, kind.x())


@pytest.mark.parametrize("framework", ["nnx", "linen"])
def test_embedding_attends_to_its_own_features(framework, mesh):
    kind = layers.KINDS[-1]
    make = dict(nnx=layers.nnx_call, linen=layers.linen_call)[framework]
    call = make(getattr(kind, framework), "attend", mesh=mesh)
    params = layers.params_of(kind.plain(rngs=nnx.Rngs(0)))
    with raises(
        errors.ShapeError, "VocabParallelEmbed: features = 16, x is float32[2, 8, 32]", "[..., 16]"
    ):
        call(params, jnp.ones((2, 8, 32)))


def test_a_weight_that_was_never_made_for_the_layer_keeps_its_own_message(mesh):
    for shape in ((32, 16), (32,)):
        layer = flux_linen.ColumnParallelLinear(32, mesh=mesh)
        with raises(errors.ShapeError, f"kernel is float32{list(shape)}", "must be [16, 32]"):
            layer.apply({"params": {"kernel": jnp.ones(shape)}}, jnp.ones((2, 8, 16)))


def test_linen_row_with_a_whole_kernel_inside_shard_map_names_the_spec(mesh):
    kind = BLOCKS["row"]
    params = {"kernel": programs.normal(0, (32, 16)), "bias": jnp.ones(16)}
    specs = jax.tree.map(lambda _: jax.P(), params)
    call = layers.linen_call(kind.linen)
    with raises(errors.ShapeError, "kernel is float32[32, 16]", "[8, 16]", "P('tp', None)"):
        layers.in_shard_map(call, specs, mesh, kind.x_spec, kind.y_spec)(params, kind.x())


def test_a_scalar_is_no_input(mesh):
    layer = flux_nnx.ColumnParallelLinear(16, 32, mesh=mesh, rngs=nnx.Rngs(0))
    with raises(errors.ShapeError, "x is float32[]. ", "Pass an x of shape [..., 16]."):
        layer(jnp.ones(()))
