# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layers: every error text with its remedy, precision, doctests, and what imports what."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec as P

import jax_flux
from jax_flux import errors
from jax_flux import linen as flux_linen
from jax_flux import nnx as flux_nnx
from tests.cpu import layers
from tests.cpu.messages import raises

PACKAGE = pathlib.Path(jax_flux.__file__).parent
X = jnp.ones((2, 8, 16))


def column(**keywords):
    return flux_nnx.ColumnParallelLinear(16, 32, rngs=nnx.Rngs(0), **keywords)


# ---- messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", ["nnx", "linen"])
def test_outside_shard_map_without_a_mesh_names_three_ways_out(framework):
    kind = layers.KINDS[0]
    make = getattr(kind, framework)
    call = (layers.nnx_call if framework == "nnx" else layers.linen_call)(make)
    params = layers.params_of(kind.plain(rngs=nnx.Rngs(0)))
    with raises(
        errors.AxisError,
        "ColumnParallelLinear: axis = 'tp'",
        "no mesh is known",
        "Pass mesh=",
        "jax.set_mesh",
        "inside a jax.shard_map",
    ):
        call(params, X)


def test_unknown_axis_lists_the_meshs(mesh):
    with raises(errors.AxisError, "ColumnParallelLinear", "'model'", "['dp', 'tp']"):
        column(mesh=mesh, axis="model")


def test_unknown_batch_axis_lists_the_meshs(mesh):
    with raises(errors.AxisError, "batch_axes = ('data',)", "['dp', 'tp']"):
        column(mesh=mesh, batch_axes="data")


@pytest.mark.parametrize(
    "batch_axes, rule",
    [
        (("dp", "tp"), "other axes than the layer's own"),
        (("dp", "dp"), "An axis shards a dimension once"),
        (3, "a tuple of names"),
        (("dp", 3), "a tuple of names"),
    ],
)
def test_batch_axes_that_cannot_be_are_refused(batch_axes, rule, mesh):
    with raises(errors.AxisError, "ColumnParallelLinear", f"batch_axes = {batch_axes!r}", rule):
        column(mesh=mesh, batch_axes=batch_axes)


def test_axis_that_the_surrounding_shard_map_leaves_automatic_is_refused(mesh):
    layer = column(mesh=mesh)
    fn = jax.shard_map(layer, mesh=mesh, in_specs=P(), out_specs=P(), axis_names={"dp"})
    with raises(errors.AxisError, "manual over ['dp'] only", "leave axis_names out"):
        jax.jit(fn)(X)


@pytest.mark.parametrize(
    "make, parts",
    [
        (
            lambda mesh: flux_nnx.ColumnParallelLinear(16, 30, mesh=mesh, rngs=nnx.Rngs(0)),
            ("ColumnParallelLinear: out_features = 30", "size 4", "for example 32"),
        ),
        (
            lambda mesh: flux_nnx.RowParallelLinear(30, 16, mesh=mesh, rngs=nnx.Rngs(0)),
            ("RowParallelLinear: in_features = 30", "for example 32"),
        ),
        (
            lambda mesh: flux_nnx.ParallelMLP(16, 30, mesh=mesh, rngs=nnx.Rngs(0)),
            ("ParallelMLP: hidden_features = 30", "for example 32"),
        ),
        (
            lambda mesh: flux_nnx.ParallelSelfAttention(6, 24, mesh=mesh, rngs=nnx.Rngs(0)),
            ("ParallelSelfAttention: num_heads = 6", "for example 8"),
        ),
        (
            lambda mesh: flux_nnx.ParallelSelfAttention(
                8, 32, num_kv_heads=2, mesh=mesh, rngs=nnx.Rngs(0)
            ),
            ("ParallelSelfAttention: num_kv_heads = 2", "for example 4"),
        ),
        (
            lambda mesh: flux_nnx.VocabParallelEmbed(30, 16, mesh=mesh, rngs=nnx.Rngs(0)),
            ("VocabParallelEmbed: num_embeddings = 30", "for example 32"),
        ),
        (
            lambda mesh: flux_linen.ColumnParallelLinear(30, mesh=mesh).apply({"params": {}}, X),
            ("ColumnParallelLinear: features = 30", "for example 32"),
        ),
        (
            lambda mesh: flux_linen.RowParallelLinear(8, mesh=mesh).apply(
                {"params": {}}, X[..., :14]
            ),
            ("RowParallelLinear: the input's last dimension = 14", "for example 16"),
        ),
        (
            lambda mesh: flux_nnx.vocab_parallel_cross_entropy(
                jnp.ones((2, 8, 30)), jnp.ones((2, 8), int), mesh=mesh
            ),
            ("vocab_parallel_cross_entropy: the vocabulary = 30", "for example 32"),
        ),
    ],
    ids=["column", "row", "mlp", "heads", "kv-heads", "embed", "linen", "linen-row", "loss"],
)
def test_features_that_do_not_divide_say_what_would(make, parts, mesh):
    with raises(errors.ShapeError, *parts):
        make(mesh)


def test_batch_that_does_not_split_names_batch_axes(mesh):
    with raises(errors.ShapeError, "float32[3, 8, 16]", "Dimension 0", "batch_axes=()"):
        column(mesh=mesh)(jnp.ones((3, 8, 16)))


def test_sequence_that_does_not_split_names_sequence_parallel(mesh):
    with raises(errors.ShapeError, "Dimension 1 of size 6", "sequence_parallel=False"):
        column(mesh=mesh)(jnp.ones((2, 6, 16)))


def test_ids_that_do_not_split_name_sequence_parallel(mesh):
    embed = flux_nnx.VocabParallelEmbed(32, 16, mesh=mesh, rngs=nnx.Rngs(0))
    with raises(errors.ShapeError, "int32[1, 6] per device", "size 4", "sequence_parallel=False"):
        embed(jnp.ones((2, 6), jnp.int32))


def test_vector_without_rows_is_refused(mesh):
    with raises(errors.ShapeError, "float32[16]", "x[None, :]"):
        column(mesh=mesh)(jnp.ones(16))


def test_whole_parameters_inside_shard_map_name_the_spec(mesh):
    graphdef, state = nnx.split(column())
    fn = jax.shard_map(
        lambda state, x: nnx.merge(graphdef, state)(x), mesh=mesh, in_specs=P(), out_specs=P("dp")
    )
    with raises(
        errors.ShapeError,
        "kernel is float32[16, 32]",
        "[16, 8]",
        "shard of [16, 32]",
        "P(None, 'tp')",
        "get_partition_spec",
    ):
        fn(state, X)


def test_parameters_of_another_shape_are_refused(mesh):
    with raises(errors.ShapeError, "kernel is float32[16, 64]", "must be [16, 32]", "Compare"):
        flux_linen.ColumnParallelLinear(32, mesh=mesh).apply(
            {"params": {"kernel": jnp.ones((16, 64))}}, X
        )


@pytest.mark.parametrize(
    "keywords, parts",
    [
        (dict(num_heads=8, num_kv_heads=3), ("num_kv_heads = 3", "equally many")),
        (dict(num_heads=8, qkv_features=12), ("qkv_features = 12", "width of a head")),
        (dict(num_heads=16, rope_base=1e4), ("a head is 1 wide", "must be even", "rope_base=None")),
    ],
    ids=["groups", "width", "rotation"],
)
def test_heads_that_do_not_fit_are_refused(keywords, parts):
    with raises(errors.ShapeError, "ParallelSelfAttention", *parts):
        flux_nnx.ParallelSelfAttention(in_features=16, rngs=nnx.Rngs(0), **keywords)


def test_attention_over_other_ranks_and_masks_is_refused(mesh):
    layer = flux_nnx.ParallelSelfAttention(8, 16, 32, mesh=mesh, rngs=nnx.Rngs(0))
    with raises(errors.ShapeError, "float32[2, 2, 8, 16]", "[batch, sequence, features]"):
        layer(jnp.ones((2, 2, 8, 16)))
    with raises(errors.ShapeError, "mask is bool[8, 8]", "mask[None, None]"):
        layer(X, mask=jnp.ones((8, 8), bool))


def test_ids_and_labels_that_are_no_integers_are_refused(mesh):
    embed = flux_nnx.VocabParallelEmbed(32, 16, mesh=mesh, rngs=nnx.Rngs(0))
    with raises(errors.DtypeError, "VocabParallelEmbed", "float32[2, 8]", "astype(jnp.int32)"):
        embed(jnp.ones((2, 8)))
    with raises(errors.DtypeError, "vocab_parallel_cross_entropy", "astype(jnp.int32)"):
        flux_nnx.vocab_parallel_cross_entropy(jnp.ones((2, 8, 32)), jnp.ones((2, 8)), mesh=mesh)


def test_labels_of_another_shape_are_refused(mesh):
    with raises(errors.ShapeError, "float32[2, 8, 32]", "int32[2, 7]", "one label per token"):
        flux_nnx.vocab_parallel_cross_entropy(
            jnp.ones((2, 8, 32)), jnp.ones((2, 7), jnp.int32), mesh=mesh
        )


def test_unknown_options_list_the_known(mesh):
    with raises(errors.OptionError, "ColumnParallelLinear", "'cuda'", "'fused'"):
        column(implementation="cuda")
    with raises(errors.OptionError, "ParallelMLP", "'tanh'", "own function"):
        flux_nnx.ParallelMLP(16, 32, activation="tanh", rngs=nnx.Rngs(0))


def test_fused_implementation_reaches_the_op(mesh):
    with raises(errors.ImplementationError, "ag_matmul", "cannot run here"):
        column(mesh=mesh, implementation="fused")(X)


# ---- precision -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "precision",
    [lax.Precision.HIGHEST, "highest", (lax.Precision.HIGHEST,) * 2],
    ids=["enum", "name", "pair"],
)
def test_precision_reaches_every_dot_forward_and_backward(precision, mesh):
    layer = flux_nnx.ParallelMLP(16, 32, mesh=mesh, precision=precision, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(layer)
    step = jax.grad(lambda state: nnx.merge(graphdef, state)(X).sum())
    dots = [
        line for line in jax.jit(step).lower(state).as_text().splitlines() if "dot_general" in line
    ]
    assert len(dots) >= 4
    assert all("precision = [HIGHEST, HIGHEST]" in line for line in dots), dots


def test_preset_algorithm_is_a_precision():
    layer = column(precision=lax.DotAlgorithmPreset.F32_F32_F32)
    assert layer.parallel.precision == "F32_F32_F32"


@pytest.mark.parametrize(
    "precision", [(lax.Precision.HIGH, lax.Precision.HIGHEST), "exact", 3], ids=str
)
def test_precision_without_one_name_is_refused(precision):
    with raises(errors.OptionError, "precision = ", "both operands", "jax.lax.Precision"):
        column(precision=precision)


# ---- the package ---------------------------------------------------------------------------------


MODULES = sorted(
    str(path.relative_to(PACKAGE.parent).with_suffix("")).replace("/", ".")
    for room in ("_layers", "nnx", "linen")
    for path in (PACKAGE / room).glob("*.py")
)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in MODULES
        if ">>>" in (PACKAGE.parent / f"{name.replace('.', '/')}.py").read_text()
    ],
)
def test_doctests_of_the_layers_run(name):
    result = doctest.testmod(importlib.import_module(name))
    assert (result.attempted > 0, result.failed) == (True, 0)


def test_importing_jax_flux_imports_no_flax():
    program = "import sys, jax_flux; print([m for m in sys.modules if m.startswith('flax')])"
    out = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=PACKAGE.parent,
    )
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize("module", ["nnx", "linen"])
def test_importing_the_layers_without_flax_says_what_to_install(module):
    program = f"import sys; sys.modules['flax'] = None; import jax_flux.{module}"
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=PACKAGE.parent,
    )
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: jax_flux.{module} needs the package flax"), run.stderr
    assert last.endswith("Install it: pip install flax"), run.stderr


def test_nothing_below_knows_the_layers_and_their_core_knows_no_flax():
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0]
        names = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module)
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
        forbidden = {"jax_flux.nnx", "jax_flux.linen"} - {f"jax_flux.{room}"}
        if room not in ("nnx", "linen"):
            forbidden.add("flax")
        if room not in ("nnx", "linen", "_layers"):
            forbidden.add("jax_flux._layers")
        bad = [n for n in names for f in forbidden if n == f or n.startswith(f"{f}.")]
        assert not bad, (path, bad)


def test_files_of_the_layers_stay_small():
    for room in ("_layers", "nnx", "linen"):
        for path in (PACKAGE / room).glob("*.py"):
            assert len(path.read_text().splitlines()) <= 300, path


@pytest.mark.parametrize("module", [flux_nnx, flux_linen], ids=["nnx", "linen"])
def test_public_layers_are_the_same_and_documented(module):
    assert module.__all__ == flux_nnx.__all__
    for name in module.__all__:
        assert len(inspect.getdoc(getattr(module, name))) > 300, name
