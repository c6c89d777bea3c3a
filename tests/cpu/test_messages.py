# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every error text of the ops and of explain, with its remedy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_flux
from jax_flux import errors
from tests.cpu import programs
from tests.cpu.messages import OPS, local, raises
from tests.cpu.programs import OURS


@pytest.mark.parametrize("op", OPS)
def test_k_mismatch_names_both_shapes_and_the_specs(op, mesh):
    with raises(
        errors.ShapeError,
        op,
        "float32[8, 4]",
        "k = 4",
        "float32[6, 8]",
        "k = 6",
        "k must agree",
        "Check the specs",
    ):
        local(op, mesh, w_shape=(6, 8))


@pytest.mark.parametrize("op", OPS)
def test_k_mismatch_of_a_weight_of_k_columns_may_be_a_layout_or_chance(op, mesh):
    with raises(
        errors.ShapeError,
        op,
        "k must agree",
        "w may be transposed (transpose_w=True), or made for another k: 8, where x has 4",
    ):
        local(op, mesh, w_shape=(8, 4))
    with raises(errors.ShapeError, op, "w may not need transpose_w (transpose_w=False)", "k: 8"):
        local(op, mesh, transpose_w=True)


@pytest.mark.parametrize("op", OPS)
def test_unknown_axis_lists_the_bound_ones(op, mesh):
    with raises(errors.AxisError, op, "'model'", "['dp', 'tp']", "Pass one of the bound names"):
        local(op, mesh, axis_name="model")


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_outside_shard_map_names_shard_map_and_the_wrapper(op, jit):
    call = lambda x: OURS[op](x, x, axis_name="tp")
    with raises(errors.AxisError, op, "outside jax.shard_map", f"jax_flux.{op}_sharded"):
        (jax.jit(call) if jit else call)(jnp.ones((4, 4)))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("implementation", [None, "xla"])
def test_axis_that_is_not_manual_names_the_mesh(op, implementation, mesh):
    body = lambda x: OURS[op](x, x, axis_name="tp", implementation=implementation)
    fn = jax.shard_map(
        body, mesh=mesh, in_specs=P(), out_specs=P(), axis_names={"tp"}, check_vma=False
    )
    with raises(
        errors.AxisError,
        op,
        "'dp' (size 2, Auto)",
        "must be manual",
        "silently all-gather",
        "leave axis_names out",
    ):
        jax.jit(fn)(jnp.ones((4, 4)))


@pytest.mark.parametrize("kind", list(jax.sharding.AxisType)[:2], ids=str)
def test_plain_jit_under_a_mesh_is_not_manual(kind):
    mesh = programs.make_mesh((8,), ("tp",), kind)
    with jax.set_mesh(mesh), raises(errors.AxisError, "must be manual", "ag_matmul_sharded"):
        jax.jit(lambda x: jax_flux.ag_matmul(x, x, axis_name="tp"))(jnp.ones((4, 4)))


@pytest.mark.parametrize("axis_name", [(), ("tp", "tp")], ids=str)
def test_axis_name_empty_or_twice_is_refused(axis_name, mesh):
    with raises(errors.AxisError, "axis_name", "distinct", "Name each axis once"):
        local("ag_matmul", mesh, axis_name=axis_name)


def test_scatter_axis_not_divisible_says_what_to_pad_to(mesh):
    with raises(errors.ShapeError, "matmul_rs", "10 rows", "size 4", "Pad the rows to 12"):
        local("matmul_rs", mesh, x_shape=(10, 4))


@pytest.mark.parametrize(
    "op, keyword", [("ag_matmul", "gather_axis"), ("matmul_rs", "scatter_axis")]
)
@pytest.mark.parametrize("axis", [-1, 1])
def test_contracted_axis_is_no_gather_or_scatter_axis(op, keyword, axis, mesh):
    with raises(
        errors.ShapeError,
        op,
        f"{keyword} = {axis}",
        "the product contracts",
        "Name an axis before the last",
    ):
        local(op, mesh, **{keyword: axis})


@pytest.mark.parametrize("axis", [5, -4, "rows", True])
def test_axis_out_of_range_is_refused(axis, mesh):
    with raises(errors.ShapeError, "gather_axis", "from -2 to 0"):
        local("ag_matmul", mesh, gather_axis=axis)


def test_unknown_activation_lists_the_known(mesh):
    with raises(
        errors.OptionError, "ag_matmul", "'tanh'", "'relu', 'gelu', 'silu'", "own function"
    ):
        local("ag_matmul", mesh, activation="tanh")


@pytest.mark.parametrize("op", OPS)
def test_unknown_implementation_lists_the_known(op, mesh):
    with raises(errors.OptionError, op, "'cuda'", "'fused'", "'xla'", "Choose one of them"):
        local(op, mesh, implementation="cuda")


@pytest.mark.parametrize("op", OPS)
def test_fused_on_a_cpu_mesh_says_that_it_is_one(op, mesh):
    with raises(
        errors.ImplementationError,
        op,
        'implementation="fused"',
        "cannot run here",
        "implementation=None",
    ):
        local(op, mesh, dtype=jnp.bfloat16, w_shape=(4, 8), implementation="fused")


def test_fused_on_a_cpu_mesh_names_the_platform_before_the_dtype(mesh):
    with raises(errors.ImplementationError, "platform 'cpu', not on NVIDIA GPUs"):
        local("ag_matmul", mesh, implementation="fused")


@pytest.mark.parametrize("op", OPS)
def test_fused_over_a_vmapped_axis_says_that_there_are_no_ranks(op):
    call = lambda x: OURS[op](x, x, axis_name="i", implementation="fused")
    with raises(errors.ImplementationError, op, "bound by jax.vmap"):
        jax.vmap(call, axis_name="i")(jnp.ones((4, 4, 4), jnp.bfloat16))


def test_fused_over_a_size_one_axis_that_is_not_manual_says_so():
    mesh = programs.make_mesh((1,), ("tp",))
    call = lambda x: jax_flux.ag_matmul(x, x, axis_name="tp", implementation="fused")
    with jax.set_mesh(mesh), raises(errors.ImplementationError, "size 1 and is not manual"):
        jax.jit(call)(jnp.ones((8, 8), jnp.bfloat16))


def test_config_of_another_type_is_refused(mesh):
    with raises(errors.OptionError, "config", "dict", "jax_flux.Config"):
        local("ag_matmul", mesh, config={"tile": (128, 128)})


@pytest.mark.parametrize("channel", [-1, 64, 1.5, True])
def test_channel_out_of_range_is_refused(channel, mesh):
    with raises(errors.OptionError, "channel", "from 0 to 63"):
        local("ag_matmul", mesh, channel=channel)


@pytest.mark.parametrize(
    "part",
    [dict(tile=(7, 7)), dict(cluster=(4, 4)), dict(transport="pigeon"), dict(sm_margin=200)]
    + [dict(tile=np.array([128, 192])), dict(cluster={2: 1})],
    ids=str,
)
def test_config_names_the_allowed_values(part):
    with raises(errors.OptionError, "Config", next(iter(part)), "compiled for", "Choose one"):
        jax_flux.Config(**part)


def test_weights_that_are_no_matrix_are_refused(mesh):
    with raises(errors.ShapeError, "float32[4, 2, 2]", "w is a matrix"):
        local("ag_matmul", mesh, w_shape=(4, 2, 2))


def test_vector_x_is_refused_where_rows_are_needed(mesh):
    with raises(errors.ShapeError, "float32[4]", "at least 2 dimensions"):
        local("matmul_rs", mesh, x_shape=(4,))


def test_empty_tuple_of_weights_is_refused(mesh):
    body = lambda x: jax_flux.ag_matmul(x, (), axis_name="tp")
    with raises(errors.ShapeError, "empty tuple of weights"):
        jax.shard_map(body, mesh=mesh, in_specs=P(), out_specs=P())(jnp.ones((4, 4)))


@pytest.mark.parametrize("op", OPS)
def test_bias_of_another_length_names_n(op, mesh):
    where = "like the columns of w" if op == "ag_matmul" else "the same on all ranks (spec P())"
    with raises(errors.ShapeError, "bias is float32[7]", "n = 8", where):
        local(op, mesh, bias=jnp.ones(7))


@pytest.mark.parametrize("bias", [[1.0] * 8, 1.0, (jnp.ones(8),)], ids=["list", "float", "tuple"])
def test_bias_that_is_no_array_is_refused(bias, mesh):
    with raises(
        errors.ShapeError, f"bias is a {type(bias).__name__}", "Pass an array of shape [8]"
    ):
        local("ag_matmul", mesh, bias=bias)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "dtype, bias_dtype", [("float32", "complex64"), ("int32", "float32")], ids=str
)
def test_bias_of_another_kind_is_refused(op, dtype, bias_dtype, mesh):
    with raises(errors.DtypeError, op, f"{bias_dtype}[8]", f"result is {dtype}", "Cast the bias"):
        local(op, mesh, dtype=dtype, bias=jnp.ones(8, bias_dtype))


@pytest.mark.parametrize("keyword", ["activation", "implementation"])
def test_option_that_is_no_name_is_refused(keyword, mesh):
    with raises(errors.OptionError, keyword, "['relu']", "Choose one of them"):
        local("ag_matmul", mesh, **{keyword: ["relu"]})


def test_out_dtype_that_is_none_is_refused(mesh):
    with raises(errors.DtypeError, "out_dtype = 'foo'", "Name a dtype"):
        local("ag_matmul", mesh, out_dtype="foo")


def test_one_bias_for_several_weights_is_refused(mesh):
    body = lambda x: jax_flux.ag_matmul(x, (x, x), axis_name="tp", bias=jnp.ones(4))
    with raises(errors.ShapeError, "2 weights", "Pass a tuple"):
        jax.shard_map(body, mesh=mesh, in_specs=P(), out_specs=P())(jnp.ones((4, 4)))


def test_dtypes_that_are_no_numbers_are_refused(mesh):
    with raises(errors.DtypeError, "bool[8, 4]", "must be numbers"):
        local("ag_matmul", mesh, dtype=jnp.bool_)


def test_out_dtype_of_another_kind_is_refused(mesh):
    with raises(errors.DtypeError, "int32", "float32", "same kind"):
        local("ag_matmul", mesh, out_dtype=jnp.int32)


def test_explain_of_an_unknown_op_lists_the_known():
    with raises(errors.OptionError, "'gemm'", "'ag_matmul'"):
        jax_flux.explain("gemm", (8, 8), (8, 8), "bfloat16", 2)


@pytest.mark.parametrize("world", [0, -2, "tp", True])
def test_explain_wants_the_size_of_an_axis(world):
    with raises(errors.OptionError, "world", "at least 1"):
        jax_flux.explain("ag_matmul", (8, 8), (8, 8), "bfloat16", world)


@pytest.mark.parametrize(
    ("op", "keywords", "rule"),
    [
        ("ag_matmul", dict(bias=(True, None)), "one weight takes one bias"),
        ("matmul_rs", dict(activation="gelu"), "Only ag_matmul has these keywords"),
        ("matmul_ar", dict(return_gathered=True), "Only ag_matmul has these keywords"),
    ],
)
def test_explain_refuses_what_the_op_would(op, keywords, rule):
    with pytest.raises((errors.ShapeError, errors.OptionError), match=rule):
        jax_flux.explain(op, (8, 8), (8, 8), "bfloat16", 2, **keywords)


def test_explain_of_several_weights_is_for_ag_matmul():
    with raises(errors.ShapeError, "matmul_rs", "Only ag_matmul takes several weights"):
        jax_flux.explain("matmul_rs", (8, 8), ((8, 8), (8, 8)), "bfloat16", 2)
