# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every error text of the wrappers for global arrays, with its remedy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import jax_flux
from jax_flux import errors
from tests.cpu import programs
from tests.cpu.messages import OPS, raises


def test_sharded_unknown_axis_lists_the_meshs(mesh):
    with raises(errors.AxisError, "ag_matmul_sharded", "'model'", "['dp', 'tp']"):
        jax_flux.ag_matmul_sharded(jnp.ones((8, 4)), jnp.ones((4, 8)), mesh=mesh, axis="model")


def test_sharded_inside_shard_map_names_the_plain_op(mesh):
    body = lambda x: jax_flux.matmul_rs_sharded(x, x, mesh=mesh, axis="tp")
    with raises(errors.AxisError, "inside jax.shard_map", "jax_flux.matmul_rs"):
        jax.shard_map(body, mesh=mesh, in_specs=P(), out_specs=P())(jnp.ones((8, 8)))


def test_sharded_batch_that_does_not_split_names_the_spec(mesh):
    with raises(errors.ShapeError, "float32[3, 8, 4]", "size 3", "into 2", "x_spec"):
        jax_flux.ag_matmul_sharded(jnp.ones((3, 8, 4)), jnp.ones((4, 8)), mesh=mesh, axis="tp")


def test_sharded_spec_that_does_not_fit_the_op_says_which_dimension(mesh):
    with raises(errors.ShapeError, "Dimension 0 must be sharded", "rows that the op gathers"):
        jax_flux.ag_matmul_sharded(
            jnp.ones((8, 4)), jnp.ones((4, 8)), mesh=mesh, axis="tp", x_spec=P("dp")
        )
    with raises(errors.ShapeError, "Dimension 1 must be sharded", "own slice of k"):
        jax_flux.matmul_rs_sharded(
            jnp.ones((8, 4)), jnp.ones((4, 8)), mesh=mesh, axis="tp", x_spec=P("tp")
        )


@pytest.mark.parametrize(
    "specs, parts",
    [
        (dict(x_spec=P("tp", None, None, None)), ("x is", "at most one entry per dimension")),
        (dict(x_spec=P(None, "zz")), ("'zz'", "['dp', 'tp']", "Pass another x_spec")),
        (dict(x_spec=P("tp", "tp")), ("'tp', 'tp'", "at most once", "Pass another x_spec")),
        (dict(w_spec=P(None, ("dp", "tp"))), ("the result", "'dp' shards both", "leaves 'dp' out")),
        (dict(w_spec=[P(), P()]), ("1 weights and 2 entries", "as many as there are weights")),
    ],
    ids=["too-long", "unknown-axis", "axis-twice", "result-twice", "specs-of-weights"],
)
def test_sharded_specs_that_cannot_be_say_why(specs, parts, mesh):
    with raises(errors.ShapeError, "ag_matmul_sharded", *parts):
        jax_flux.ag_matmul_sharded(
            jnp.ones((4, 8, 4)), jnp.ones((4, 8)), mesh=mesh, axis="tp", **specs
        )


def test_sharded_k_over_another_axis_shows_the_spec_as_given(mesh):
    with raises(errors.ShapeError, "matmul_rs_sharded", "P(None, None, 'dp')", "over ('tp',)"):
        jax_flux.matmul_rs_sharded(
            jnp.ones((2, 8, 4)), jnp.ones((4, 8)), mesh=mesh, axis="tp", x_spec=P(None, None, "dp")
        )


@pytest.mark.parametrize("op", OPS)
def test_sharded_bias_of_another_length_names_n(op, mesh):
    fn = getattr(jax_flux, f"{op}_sharded")
    with raises(errors.ShapeError, "bias is float32[7]", "n = 8"):
        fn(jnp.ones((2, 8, 4)), jnp.ones((4, 8)), mesh=mesh, axis="tp", bias=jnp.ones(7))


def test_sharded_one_bias_for_several_weights_is_refused(mesh):
    w = jnp.ones((4, 8))
    with raises(errors.ShapeError, "2 weights", "Pass a tuple"):
        jax_flux.ag_matmul_sharded(
            jnp.ones((2, 8, 4)), (w, w), mesh=mesh, axis="tp", bias=jnp.ones(8)
        )


def test_sharded_without_a_mesh_says_what_one_is():
    with raises(errors.AxisError, "NoneType", "jax.make_mesh"):
        jax_flux.matmul_ar_sharded(jnp.ones((8, 8)), jnp.ones((8, 8)), mesh=None, axis="tp")


def test_sharded_bias_on_an_explicit_mesh_wants_the_columns_sharding():
    mesh = programs.make_mesh((8,), ("tp",), jax.sharding.AxisType.Explicit)
    place = lambda spec, *shape: jax.device_put(jnp.ones(shape), jax.NamedSharding(mesh, spec))
    x, w = place(P("tp"), 8, 4), place(P(None, "tp"), 4, 8)
    with raises(errors.ShapeError, "bias is float32[8]", "like the columns", "jax.sharding.resh"):
        jax_flux.ag_matmul_sharded(x, w, mesh=mesh, axis="tp", bias=place(P(), 8))


def test_sharded_on_an_explicit_mesh_wants_placed_operands():
    mesh = programs.make_mesh((8,), ("tp",), jax.sharding.AxisType.Explicit)
    with raises(errors.ShapeError, "no sharding over the mesh", "jax.device_put"):
        jax_flux.ag_matmul_sharded(jnp.ones((8, 4)), jnp.ones((4, 8)), mesh=mesh, axis="tp")
