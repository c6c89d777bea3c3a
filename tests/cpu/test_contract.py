# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every error text with its remedy; import without side effects; the arrows; the doctests."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import os
import pathlib
import subprocess
import sys
import typing
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_flux
from jax_flux import _dispatch, _ffi, _plan, _probes, _stats, errors, ops
from tests.cpu import programs
from tests.cpu.programs import OURS

PACKAGE = pathlib.Path(jax_flux.__file__).parent
OPS = tuple(OURS)


def local(op, mesh, x_shape=(8, 4), w_shape=(4, 8), dtype=jnp.float32, check_vma=True, **keywords):
    """Calls the op inside shard_map on replicated operands of the given local shapes."""
    keywords.setdefault("axis_name", "tp")
    args = (jnp.ones(x_shape, dtype), jnp.ones(w_shape, dtype))

    def body(x, w):
        return jax.tree.map(lambda y: jnp.sum(y) * 0, OURS[op](x, w, **keywords))

    return jax.shard_map(body, mesh=mesh, in_specs=(P(), P()), out_specs=P(), check_vma=False)(
        *args
    )


def raises(kind, *parts):
    """The error names its kind, and its text holds every part."""
    return pytest.raises(kind, match="(?s)" + ".*".join(map(_escape, parts)))


def _escape(text):
    return "".join(f"\\{c}" if c in r"\.^$*+?{}[]|()" else c for c in text)


# ---- messages of the ops -------------------------------------------------------------------------


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
def test_k_mismatch_of_a_transposed_weight_suggests_transpose_w(op, mesh):
    with raises(errors.ShapeError, op, "k must agree", "pass transpose_w=True"):
        local(op, mesh, w_shape=(8, 4))


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
    with raises(errors.ShapeError, "bias is float32[7]", "n = 8"):
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


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("how", ["jvp", "jacfwd", "shard_map"])
def test_eager_forward_mode_names_the_reference(op, how, mesh):
    def inner(x):
        return OURS[op](x, jnp.ones((4, 8)), axis_name="tp")

    specs = dict(mesh=mesh, in_specs=P(), out_specs=P(("dp", "tp")), check_vma=False)
    x = jnp.ones((8, 4))
    outer = jax.shard_map(inner, **specs)
    calls = {
        "jvp": lambda: jax.jvp(outer, (x,), (x,)),
        "jacfwd": lambda: jax.jacfwd(outer)(x),
        "shard_map": lambda: jax.shard_map(lambda x: jax.jvp(inner, (x,), (x,))[1], **specs)(x),
    }
    with raises(
        errors.ForwardModeError,
        op,
        "reverse rule only",
        'implementation="xla"',
        "jax_flux.reference",
    ):
        calls[how]()


@pytest.mark.parametrize("op", ["ag_matmul", "matmul_rs"])
def test_forward_over_reverse_names_reverse_over_reverse(op, mesh):
    fn = jax.shard_map(
        lambda x: OURS[op](x, jnp.ones((4, 8)), axis_name="tp"),
        mesh=mesh,
        in_specs=P(),
        out_specs=P(("dp", "tp")),
        check_vma=False,
    )
    with raises(errors.ForwardModeError, "jax.hessian", "jax.jacrev of jax.grad"):
        jax.hessian(lambda x: jnp.sum(fn(x) ** 2))(jnp.ones((8, 4)))


@pytest.mark.parametrize("op", OPS)
def test_forward_mode_under_jit_is_refused_by_jax(op, mesh):
    fn = jax.jit(
        jax.shard_map(
            lambda x: OURS[op](x, jnp.ones((4, 8)), axis_name="tp"),
            mesh=mesh,
            in_specs=P(),
            out_specs=P(("dp", "tp")),
            check_vma=False,
        )
    )
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(fn, (jnp.ones((8, 4)),), (jnp.ones((8, 4)),))


@pytest.mark.parametrize("op", OPS)
def test_forward_mode_of_the_xla_implementation_works(op, mesh):
    fn = jax.shard_map(
        lambda x: OURS[op](x, jnp.ones((4, 8)), axis_name="tp", implementation="xla"),
        mesh=mesh,
        in_specs=P(),
        out_specs=P(("dp", "tp")),
        check_vma=False,
    )
    x = jnp.ones((8, 4))
    y, tangent = jax.jvp(fn, (x,), (x,))
    assert (y == tangent).all()


# ---- messages of the wrappers --------------------------------------------------------------------


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


# ---- messages of the native side, with injected answers ------------------------------------------


class Native:
    """Stands for the extension module."""

    def __init__(self, library=None, api=(0, 4)):
        self.library = library or jax_flux.__version__
        self.api = api

    def versions(self):
        return {"library": self.library, "ffi_api_major": self.api[0], "ffi_api_minor": self.api[1]}

    def registrations(self):
        return {"jax_flux_all_gather_copy_v1": {"execute": object()}}

    def instances(self):
        return [
            dict(
                name="i",
                op="ag_matmul",
                dtype="bf16",
                layout="nn",
                tile=(128, 192, 64),
                cluster=(2, 1),
                transports=("tma", "copy"),
            )
        ]

    def last_failure(self):
        return "ag_matmul: rank 1 waited for rank 0"


def probes(**answers):
    registered = []
    good = dict(
        load_native=Native,
        jaxlib_version=lambda: (0, 11, 2),
        ffi_api=lambda: (0, 4),
        nccl_version=lambda: (2, 28, 9),
        pairs_without_peer_access=list,
        register_target=lambda name, stages, platform: registered.append((name, platform)),
    )
    return _probes.Probes(**(good | answers)), registered


@pytest.fixture
def unregistered():
    _ffi.reset_for_tests()
    yield
    _ffi.reset_for_tests()


def missing():
    raise ImportError("No module named 'jax_flux._native'")


@pytest.mark.parametrize(
    "answers, parts",
    [
        (
            dict(jaxlib_version=lambda: (0, 11, 1)),
            ("jaxlib 0.11.1", "collectives extension", "jaxlib>=0.11.2"),
        ),
        (dict(ffi_api=lambda: (0, 3)), ("FFI API 0.3", "FFI API 0.4", "Install jaxlib")),
        (
            dict(load_native=lambda: Native(api=(0, 5))),
            ("built for FFI API 0.5", "jaxlib has 0.4", "make native"),
        ),
        (
            dict(load_native=missing),
            ("missing or does not load", "No module named", "make native", "make wheel"),
        ),
        (
            dict(load_native=lambda: Native(library="0.0.9")),
            ("version 0.0.9", jax_flux.__version__, "Rebuild"),
        ),
        (dict(load_native=object), ("lists no kernels", "Rebuild")),
        (
            dict(nccl_version=lambda: None),
            ("no libnccl.so.2", "never load a second one", "nvidia-nccl-cu13"),
        ),
        (
            dict(nccl_version=lambda: (2, 27, 7)),
            ("NCCL 2.27.7", "2.28.0 to 2.30.7", "nvidia-nccl-cu13"),
        ),
        (
            dict(nccl_version=lambda: (2, 31, 0)),
            ("NCCL 2.31.0", "2.28.0 to 2.30.7", "Install nvidia-nccl-cu13 within"),
        ),
        (
            dict(pairs_without_peer_access=lambda: [(0, 1)]),
            ("peer access", "[(0, 1)]", "NVLink", 'implementation="xla"'),
        ),
    ],
    ids=[
        "jaxlib",
        "ffi-api",
        "library-newer-api",
        "library-missing",
        "library-version",
        "library-empty",
        "nccl-missing",
        "nccl-old",
        "nccl-new",
        "peers",
    ],
)
def test_native_side_says_what_is_missing(answers, parts, unregistered):
    given, registered = probes(**answers)
    with raises(errors.NativeError, "jax_flux", *parts):
        _ffi.register(given)
    assert not registered, "a target was registered in spite of the error"
    assert parts[0] in _ffi.installed(given).problem


@pytest.mark.parametrize("version", [(2, 28, 0), (2, 28, 9), (2, 30, 7)], ids=str)
def test_register_once_accepts_the_tried_range(version, unregistered):
    given, registered = probes(nccl_version=lambda: version)
    _ffi.register(given)
    _ffi.register(given)
    assert registered == [("jax_flux_all_gather_copy_v1", "CUDA")]
    assert _ffi.installed(given).instances[0].dtype == "bfloat16"
    assert jax_flux.last_failure() == "ag_matmul: rank 1 waited for rank 0"


def test_real_probes_answer_on_this_machine():
    real = _probes.Probes()
    assert real.jaxlib_version() >= (0, 11, 2)
    assert real.ffi_api() >= (0, 4)
    assert real.pairs_without_peer_access() == []
    assert real.nccl_version() is None or len(real.nccl_version()) == 3


# ---- warnings ------------------------------------------------------------------------------------


def gpu_spec():
    return _dispatch.Spec(
        "ag_matmul", ("tp",), 4, jnp.dtype("float32"), platform="gpu", device_kind="NVIDIA H200"
    )


def announce(spec, dtype="float32"):
    problem = _plan.Problem("ag_matmul", 1, 8, (8,), (8,), 4, dtype, dtype)
    decision = _plan.plan(
        problem,
        implementation=spec.implementation,
        config=None,
        platform=spec.platform,
        device_kind=spec.device_kind,
        installed=_plan.Installed(),
    )
    _dispatch.announce(spec, decision, "")


def test_unsupported_call_on_a_gpu_warns_once_per_call_site():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            announce(gpu_spec())
        announce(gpu_spec())
    assert len(caught) == 1  # one line of the package's caller: announce() above
    assert issubclass(caught[0].category, errors.FallbackWarning)
    assert 'implementation="xla"' in str(caught[0].message)
    assert caught[0].filename == __file__
    assert jax_flux.stats()["ag_matmul"]["xla"] == 4


def test_chosen_xla_on_a_gpu_does_not_warn():
    import dataclasses

    announce(dataclasses.replace(gpu_spec(), implementation="xla"))
    assert jax_flux.stats()["ag_matmul"]["xla"] == 1


def test_warned_call_sites_are_told_apart():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _stats.warn_once("ag_matmul", "a reason")
        _stats.warn_once("ag_matmul", "a reason")
    assert len(caught) == 2


# ---- the package -------------------------------------------------------------------------------


def in_fresh_process(code):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(PACKAGE.parent)}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env=environment)


def test_import_touches_no_cuda_and_no_native_library():
    code = (
        "import sys, jax_flux; "
        "bad = [m for m in sys.modules if m == 'jax_flux._native' or m.startswith('cuda.')]; "
        "import jax._src.xla_bridge as xb; "
        "assert not bad, bad; assert not xb._backends, xb._backends"
    )
    in_fresh_process(code)


def test_cpu_calls_never_load_the_native_library():
    code = (
        "import sys, jax, jax.numpy as jnp, jax_flux; from jax.sharding import PartitionSpec as P; "
        "mesh = jax.make_mesh((8,), ('tp',), axis_types=(jax.sharding.AxisType.Auto,)); "
        "f = jax.shard_map(lambda x: jax_flux.ag_matmul(x, x, axis_name='tp'), mesh=mesh, "
        "in_specs=P(), out_specs=P('tp')); "
        "jax.block_until_ready(f(jnp.ones((8, 8), jnp.bfloat16))); "
        "assert 'jax_flux._native' not in sys.modules"
    )
    in_fresh_process(code)


LAYERS = (
    ("_compat", "errors", "_version", "_config", "py"),
    (
        "_stats",
        "_probes",
        "_cost",
        "_problem",
        "_records",
        "_tuning",
        "_plan",
        "reference",
        "_topology",
    ),
    ("_ffi",),
    ("_dispatch", "_checks"),
    ("_lowering",),
    ("_primitives",),
    ("_vjp",),
    ("_calls",),
    ("ops", "_specs", "_explain", "_internal", "export"),
    ("sharded",),
)


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "jax_flux":
                yield from (alias.name for alias in node.names)
            elif node.module.startswith("jax_flux."):
                yield node.module.split(".")[1]


def test_imports_go_downward_only():
    rank = {name: i for i, layer in enumerate(LAYERS) for name in layer}
    for name, level in rank.items():
        path = PACKAGE / f"{name}.py"
        if not path.exists():
            continue
        for used in imports(path):
            if used in rank:
                allowed = (
                    rank[used] < level
                    or (level == 0 and rank[used] == 0)
                    or (rank[used] == level == 1)
                )
                assert allowed, f"{name} imports {used}, which is not below it"


def test_only_compat_reaches_into_jaxs_private_modules():
    for path in PACKAGE.rglob("*.py"):
        if path.name != "_compat.py":
            assert "jax._src" not in path.read_text(), path


def test_files_and_functions_stay_small():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert len(text.splitlines()) <= 300, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                first = node.body[1 if ast.get_docstring(node) and len(node.body) > 1 else 0]
                assert node.end_lineno - first.lineno < 60, (path, node.name)


@pytest.mark.parametrize("name", sorted(set(jax_flux.__all__) - {"__version__"}))
def test_public_name_is_documented(name):
    assert inspect.getdoc(getattr(jax_flux, name))


def doctested_modules():
    return sorted(
        p.stem for p in PACKAGE.glob("*.py") if ">>>" in p.read_text() and p.stem != "__main__"
    )


@pytest.mark.parametrize("name", doctested_modules())
def test_doctests_run(name):
    result = doctest.testmod(importlib.import_module(f"jax_flux.{name}"))
    assert (result.attempted > 0, result.failed) == (True, 0)


def test_overloads_of_ag_matmul_offer_every_keyword():
    real = inspect.signature(jax_flux.ag_matmul).parameters
    rest = set(ops.Keywords.__annotations__)
    assert len(typing.get_overloads(jax_flux.ag_matmul)) == 5
    for overload in typing.get_overloads(jax_flux.ag_matmul):
        named = set(inspect.signature(overload).parameters) - {"rest"}
        assert named | rest == set(real)
        assert not named & rest


@pytest.mark.parametrize("name", OPS + tuple(f"{op}_sharded" for op in OPS))
def test_every_op_has_a_doctest(name):
    assert ">>>" in getattr(jax_flux, name).__doc__
