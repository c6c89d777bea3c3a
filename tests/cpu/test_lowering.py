# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The custom call that a CUDA program holds, lowered without a GPU."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import jax_flux
from jax_flux import _ffi, _internal
from jax_flux._plan import Installed
from tests.cpu import programs
from tests.cpu.plans import KERNELS, attributes, call, cuda_text


def test_lowering_to_cuda_emits_the_documented_attributes(kernels, mesh):
    fn, x, w = call(mesh, jnp.bfloat16, n=64)
    text = cuda_text(fn, x, w)
    (row,) = attributes(text, "jax_flux_ag_matmul_v1")
    assert set(row) == {
        "groups",
        "world",
        "channel",
        "site",
        "plan_hash",
        "tuning_digest",
        "instance",
        "chunk_bytes",
        "sm_margin",
        "transpose_w",
        "raster_group",
        "chunk_rows",
        "chunk_depth",
        "depth_outer",
        "sweep_segments",
        "transport",
        "push_peers",
        "push_ctas",
    }
    assert row["groups"] == list(range(8))
    assert (row["world"], row["channel"], row["transpose_w"]) == (4, 0, 0)
    assert "stablehlo.all_gather" not in text
    assert re.search(r'latency_metadata = "\d+"', text)


def test_lowering_to_cuda_lists_all_groups_of_a_tuple_axis(kernels, mesh):
    fn = jax.shard_map(
        lambda x: _internal.all_gather_copy(x, ("tp", "dp"), channel=3),
        mesh=mesh,
        in_specs=P(("tp", "dp")),
        out_specs=P(),
        check_vma=False,
    )
    (row,) = attributes(cuda_text(fn, jnp.ones((16, 4))), "jax_flux_all_gather_copy_v1")
    assert row["groups"] == [0, 4, 1, 5, 2, 6, 3, 7]
    assert (row["world"], row["channel"], row["instance"]) == (8, 3, "all_gather_copy")


def test_lowering_to_cuda_unsupported_dtype_takes_xla(kernels, mesh):
    fn, x, w = call(mesh)
    text = cuda_text(fn, x, w)
    assert "jax_flux" not in re.sub(r"loc\(.*|#loc.*", "", text)
    assert "stablehlo.all_gather" in text


def test_export_to_cuda_with_symbolic_shapes_takes_xla(kernels, tp8):
    fn = jax.shard_map(
        lambda x, w: jax_flux.ag_matmul(x, w, axis_name="tp"),
        mesh=tp8,
        in_specs=(P(None, "tp"), P(None, "tp")),
        out_specs=P(None, None, "tp"),
    )
    (batch,) = jax.export.symbolic_shape("batch")
    shape = lambda *s: jax.ShapeDtypeStruct(s, jnp.bfloat16)
    text = cuda_text(fn, shape(batch, 64, 64), shape(64, 64))
    assert "stablehlo.all_gather" in text
    assert "@jax_flux" not in text


def test_lowering_to_cuda_backward_is_the_mirrored_kernel(kernels, mesh):
    fn, x, w = call(mesh, jnp.bfloat16, n=64)
    loss = lambda x, w: fn(x, w).astype(jnp.float32).sum()
    text = cuda_text(jax.grad(loss, (0, 1)), x, w)
    (row,) = attributes(text, "jax_flux_matmul_rs_v1")
    assert row["transpose_w"] == 1
    assert "stablehlo.reduce_scatter" not in text


def test_lowering_to_cuda_several_weights_are_one_call(kernels, mesh):
    fn = jax.shard_map(
        lambda x, w, v: jax_flux.ag_matmul(x, (w, v), axis_name="tp"),
        mesh=mesh,
        in_specs=(P("tp"), P(None, "tp"), P(None, "tp")),
        out_specs=P(None, "tp"),
    )
    x, w, v = (
        programs.normal(i, s, jnp.bfloat16) for i, s in enumerate([(16, 8), (8, 64), (8, 32)])
    )
    text = cuda_text(fn, x, w, v)
    assert len(attributes(text, "jax_flux_ag_matmul_v1")) == 1
    # dx is one sum over both pairs: concatenated along k, one transfer.
    loss = lambda *args: sum(y.astype(jnp.float32).sum() for y in fn(*args))
    text = cuda_text(jax.grad(loss, (0, 1, 2)), x, w, v)
    assert len(attributes(text, "jax_flux_matmul_rs_v1")) == 1
    assert re.search(r"stablehlo.concatenate .*tensor<1x4x4x24xbf16>", text)
    assert re.search(r"stablehlo.concatenate .*tensor<8x24xbf16>", text)


def sites(fn, *args):
    rows = attributes(cuda_text(fn, *args), "jax_flux_ag_matmul_v1")
    return [(row["plan_hash"], row["site"]) for row in rows]


def test_call_sites_agree_between_traces_and_equal_calls_may_merge(kernels, mesh):
    fn, x, w = call(mesh, jnp.bfloat16, n=64)
    deep, deep_x, deep_w = call(mesh, jnp.bfloat16, k=16, n=64)
    program = lambda x, w, deep_x, deep_w: (fn(x, w), deep(deep_x, deep_w), fn(x, w))
    first = sites(program, x, w, deep_x, deep_w)
    sites(fn, x, w)  # another program in between changes nothing
    assert first == sites(program, x, w, deep_x, deep_w)
    # XLA merges calls of equal attributes on equal operands, such as loss(w) beside grad(loss)(w).
    assert first[0] == first[2] != first[1]


def test_programs_have_call_sites_of_their_own(kernels, mesh):
    """Else ranks in different order would multiply each other's shards without a word."""
    fn, x, w = call(mesh, jnp.bfloat16, n=64)

    def train_step(x, w):
        return fn(x, w) * 2

    def eval_step(x, w):
        return fn(x - 1, w)

    ((plan, site),), ((same_plan, other_site),) = sites(train_step, x, w), sites(eval_step, x, w)
    assert plan == same_plan and site != other_site


def test_a_program_is_exported_for_two_platforms(kernels, mesh):
    fn, x, w = call(mesh, jnp.bfloat16, n=64)
    exported = jax.export.export(
        jax.jit(fn), platforms=["cpu", "cuda"], disabled_checks=jax_flux.export_safety_checks()
    )(x, w)
    assert len(attributes(exported.mlir_module(), "jax_flux_ag_matmul_v1")) == 1


def abstract(implementation):
    """A program whose mesh does not say what devices it is for: only the lowering knows."""
    mesh = jax.sharding.AbstractMesh(
        (2, 4), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2
    )
    fn, *_ = call(mesh, implementation=implementation)
    shape = lambda *s: jax.ShapeDtypeStruct(s, jnp.bfloat16)
    return jax.jit(fn).trace(shape(16, 8), shape(8, 64))


@pytest.mark.parametrize(
    "platform, answer, reason",
    [
        ("cpu", KERNELS, "the program is lowered for cpu, not for CUDA"),
        ("cuda", Installed(problem="no library here"), "no library here"),
    ],
)
def test_lowering_with_fused_demanded_in_vain_says_why(platform, answer, reason, monkeypatch):
    monkeypatch.setattr(_ffi, "installed", lambda: answer)
    with pytest.raises(jax_flux.errors.ImplementationError, match=reason):
        abstract("fused").lower(lowering_platforms=(platform,))


def test_lowering_without_a_library_falls_back_to_xla(monkeypatch):
    monkeypatch.setattr(_ffi, "installed", lambda: Installed(problem="no library here"))
    text = abstract(None).lower(lowering_platforms=("cuda",)).as_text()
    assert "all_gather" in text
    assert "custom_call" not in text


def test_lowering_keeps_the_choice_for_cuda_of_a_program_traced_without_devices(kernels):
    text = abstract(None).lower(lowering_platforms=("cuda",)).as_text()
    assert "jax_flux_ag_matmul_v1" in text


@pytest.mark.parametrize("op", ["ag_matmul", "matmul_rs"])
def test_fused_at_size_one_lowers_to_the_plain_kernel(op, kernels):
    mesh = jax.sharding.AbstractMesh(
        (8, 1), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2
    )
    fn = jax.shard_map(
        lambda x, w: programs.OURS[op](x, w, axis_name="tp", implementation="fused"),
        mesh=mesh,
        in_specs=(P("dp"), P()),
        out_specs=P(("dp", "tp")),
    )
    shape = lambda *s: jax.ShapeDtypeStruct(s, jnp.bfloat16)
    text = jax.jit(fn).trace(shape(64, 8), shape(8, 64)).lower(lowering_platforms=("cuda",))
    (row,) = attributes(text.as_text(), f"jax_flux_{op}_v1")
    assert row["instance"].startswith("plain_bfloat16_nn")
    assert (row["world"], row["groups"]) == (1, list(range(8)))


def test_vmap_over_w_of_a_demanded_kernel_loops_over_it(kernels):
    mesh = jax.sharding.AbstractMesh(
        (2, 4), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2
    )

    def body(x, ws):
        one = lambda w: jax_flux.ag_matmul(x, w, axis_name="tp", implementation="fused")
        return jax.vmap(one)(ws)

    fn = jax.shard_map(
        body, mesh=mesh, in_specs=(P("tp"), P(None, None, "tp")), out_specs=P(None, None, "tp")
    )
    shape = lambda *s: jax.ShapeDtypeStruct(s, jnp.bfloat16)
    traced = jax.jit(fn).trace(shape(16, 8), shape(3, 8, 64))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("@jax_flux_ag_matmul_v1") == 1
    assert "stablehlo.while" in text
