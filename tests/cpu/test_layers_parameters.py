# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parameters of the layers: initial values, partition specs, placement."""

from __future__ import annotations

import jax
import pytest
from flax import linen as nn
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jax_flux import linen as flux_linen
from jax_flux import nnx as flux_nnx
from tests import oracle
from tests.cpu import layers, programs
from tests.cpu.layers import KINDS

FRAMEWORKS = ("nnx", "linen")
BY_NAME = {kind.name: kind for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_initial_values_are_flaxs_with_and_without_a_mesh(kind, mesh):
    expected = layers.params_of(kind.plain(rngs=nnx.Rngs(3)))
    for keywords in (dict(), dict(mesh=mesh)):
        made = layers.params_of(kind.nnx(rngs=nnx.Rngs(3), **keywords))
        jax.tree.map(oracle.assert_same_bits, made, expected)


@pytest.mark.parametrize("kind", [k for k in KINDS if k.name != "attention"], ids=str)
def test_linen_initial_values_are_flaxs(kind, mesh):
    key = jax.random.key(3)
    expected = kind.plain_linen().init(key, kind.x())
    made = kind.linen(mesh=mesh).init(key, kind.x()[:1])  # a batch that dp would not divide
    jax.tree.map(oracle.assert_same_bits, nn.unbox(made), expected)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_parameters_made_inside_shard_map_are_shards_of_the_same(framework, mesh):
    kind = BY_NAME["attention"]
    if framework == "nnx":
        expected = layers.params_of(kind.nnx(rngs=nnx.Rngs(0)))
        specs = layers.nnx_specs(kind.nnx)
        init = lambda x: layers.params_of(kind.nnx(rngs=nnx.Rngs(0)))
    else:
        init = lambda x: kind.linen().init(jax.random.key(0), x)["params"]
        expected = nn.unbox(init(kind.x()))
        specs = layers.linen_specs(kind.linen, kind.x())
    made = jax.jit(jax.shard_map(init, mesh=mesh, in_specs=kind.x_spec, out_specs=specs))(kind.x())
    # One was compiled as a whole, the other op by op: the inverse error function rounds apart.
    oracle.assert_close(nn.unbox(made), expected, 1e-6)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_get_partition_spec_gives_the_shardings(kind):
    assert layers.nnx_specs(kind.nnx) == layers.SPECS[kind.name]
    assert layers.linen_specs(kind.linen, kind.x()) == layers.SPECS[kind.name]


def test_nnx_parameters_are_made_on_the_mesh_as_they_are_used(mesh):
    module = BY_NAME["gated"].nnx(rngs=nnx.Rngs(0), mesh=mesh)
    kernel = module.gate_proj.kernel[...]
    assert kernel.sharding == NamedSharding(mesh, P(None, "tp"))
    abstract = nnx.as_abstract(
        nnx.eval_shape(lambda: BY_NAME["gated"].nnx(rngs=nnx.Rngs(0), mesh=mesh))
    )
    assert abstract.gate_proj.kernel.get_value().sharding == NamedSharding(mesh, P(None, "tp"))


def test_partitioning_of_the_users_own_is_kept(mesh):
    init = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("dp", "tp"))
    module = flux_nnx.ColumnParallelLinear(16, 32, kernel_init=init, mesh=mesh, rngs=nnx.Rngs(0))
    assert module.kernel[...].sharding.spec == P("dp", "tp")
    linen = flux_linen.ColumnParallelLinear(
        32,
        kernel_init=nn.with_partitioning(nn.initializers.lecun_normal(), ("dp", "tp")),
        mesh=mesh,
    )
    x = programs.normal(0, (2, 8, 16))
    variables = linen.init(jax.random.key(0), x)
    assert nn.get_partition_spec(variables)["params"]["kernel"] == P("dp", "tp")
    assert linen.apply(variables, x).shape == module(x).shape == (2, 8, 32)
