# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The planner as a pure function; explain; Config; stats; hashes and the lowered custom call."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import jax_flux
from jax_flux import _cost, _cost_packed, _dispatch, _ffi, _internal, _lowering, _plan, _stats
from jax_flux._plan import Installed, Instance, Problem
from tests.cpu import programs


def instance(op, layout="nn", tile=(128, 192), cluster=(2, 1), dtype="bfloat16"):
    name = f"{op}_{dtype}_{layout}_{tile[0]}x{tile[1]}_c{cluster[0]}x{cluster[1]}"
    transports = ("tma", "copy") if op == "ag_matmul" else ("tma",)
    return Instance(name, op, dtype, layout, tile, cluster, transports)


KERNELS = Installed(
    tuple(
        instance(op, layout, tile, cluster, dtype)
        for dtype in _plan.FUSED_DTYPES
        for op in ("plain", "ag_matmul", "matmul_rs")
        for layout, tile, cluster in (
            ("nn", (128, 192), (2, 1)),
            ("nn", (128, 256), (2, 1)),
            ("nt", (128, 192), (2, 1)),
            ("nn", (128, 192), (1, 2)),
        )
    )
)
AG = Problem("ag_matmul", 1, 512, (1536,), (4096,), 8, "bfloat16", "bfloat16")


def decide(
    problem=AG,
    implementation=None,
    config=None,
    platform="gpu",
    device_kind="NVIDIA H200",
    installed=KERNELS,
):
    return _plan.plan(
        problem,
        implementation=implementation,
        config=config,
        platform=platform,
        device_kind=device_kind,
        installed=installed,
    )


def but(**changes):
    return dataclasses.replace(AG, **changes)


def test_plan_supported_problem_runs_fused():
    decision = decide()
    assert decision.implementation == "fused"
    assert decision.plan.instance in {row.name for row in KERNELS.instances}


@pytest.mark.parametrize(
    "arguments, reason, unsupported",
    [
        (dict(implementation="xla"), "was asked for", False),
        (dict(problem=but(world=1)), "size 1", False),
        (dict(platform="cpu", device_kind="cpu"), "platform 'cpu'", False),
        (dict(platform="gpu", device_kind="AMD MI300X"), "not on NVIDIA", False),
        (dict(problem=but(world=16)), "at most 8", True),
        (dict(problem=but(op="matmul_ar")), "matmul_ar has no fused kernel", False),
        (dict(problem=but(m=0)), "empty", False),
        (dict(problem=but(n=(512, 0))), "empty", False),
        (dict(problem=but(dtype="float32", out_dtype="float32")), "dtype float32", True),
        (dict(problem=but(dtype="bfloat16 and float32")), "dtype bfloat16 and float32", True),
        (dict(problem=but(out_dtype="float32")), "output dtype float32", True),
        (dict(problem=but(n=(512, 1001))), "n = 1001 is not a multiple of 8", True),
        (dict(problem=but(m=63)), "63 rows per rank are fewer than 64", False),
        (dict(problem=but(return_gathered=True)), "expected to lose: about", False),
        (dict(platform=None, device_kind=None), "does not say what devices", False),
        (dict(platform="cpu", problem=but(dtype="float32")), "platform 'cpu'", False),
        (dict(platform=None, problem=but(dtype="float32")), "dtype float32", True),
        (dict(problem=but(k=(1001,))), "k = 1001 is not a multiple of 8", True),
        (dict(problem=but(n=(1001,))), "n = 1001 is not a multiple of 8", True),
        (dict(device_kind="NVIDIA A100-SXM4-80GB"), "sm_90", True),
        (dict(installed=Installed(problem="no library")), "no library", True),
        (dict(installed=None), "not asked", True),
        (dict(installed=Installed()), "no ag_matmul kernel", True),
        (dict(config=jax_flux.Config(tile=(64, 256))), "tile=(64, 256)", True),
    ],
    ids=lambda value: None if not isinstance(value, dict) else ",".join(value),
)
def test_plan_fallback_says_why(arguments, reason, unsupported):
    decision = decide(**arguments)
    assert (decision.implementation, decision.plan) == ("xla", None)
    assert reason in decision.reason
    assert decision.unsupported is unsupported


def test_plan_fused_at_size_one_takes_the_plain_kernel():
    decision = decide(but(world=1), implementation="fused")
    assert decision.plan.instance.startswith("plain_bfloat16_nn")


def test_plan_takes_the_kernel_of_the_dtype():
    problem = but(dtype="float16", out_dtype="float16")
    assert "_float16_" in decide(problem).plan.instance
    assert decide(but(out_dtype="float16")).reason == (
        "the output dtype float16 is not the operands' bfloat16"
    )


def test_plan_transposed_weight_takes_the_nt_kernel():
    assert "_nt_" in decide(but(transpose_w=True)).plan.instance


@pytest.mark.parametrize("tile", [(128, 192), (128, 256)])
def test_plan_config_forces_its_parts(tile):
    config = jax_flux.Config(tile=tile, cluster=(2, 1), sm_margin=4)
    plan = decide(config=config).plan
    assert f"{tile[0]}x{tile[1]}_c2x1" in plan.instance
    assert plan.sm_margin == 4


COPY = jax_flux.Config(transport="copy")


def test_plan_copy_transport_is_forced_and_said():
    decision = decide(config=COPY)
    assert decision.plan.transport == "copy"
    assert decision.reason.endswith("; copy engines carry the gather")
    assert decide(config=jax_flux.Config(transport="tma")).plan.transport == "tma"
    hashes = {_plan.plan_hash(AG, decide(config=c).plan, 0) for c in (None, COPY)}
    assert len(hashes) == 2


def test_plan_copy_transport_has_nothing_to_carry_elsewhere():
    decision = decide(but(op="matmul_rs"), config=COPY)
    assert decision.implementation == "xla" and "transport='copy'" in decision.reason
    alone = decide(but(world=1), implementation="fused", config=COPY)
    assert alone.plan.transport == "tma"


LONG = but(m=8192, n=(12288,), k=(8192,))  # 128 MiB a shard


@pytest.mark.parametrize("world", [2, 4, 8])
def test_plan_unforced_gather_stays_with_the_kernel_where_nothing_is_measured(world):
    assert decide(dataclasses.replace(LONG, world=world)).plan.transport == "tma"


@pytest.mark.parametrize("m, transport", [(8192, "copy"), (2048, "tma")])
def test_plan_long_gathers_are_copied_once_that_is_known_to_pay(monkeypatch, m, transport):
    monkeypatch.setattr(_cost, "COPY_SAVES", 0.1)
    assert decide(dataclasses.replace(LONG, m=m), "fused").plan.transport == transport


@given(
    op=st.sampled_from(_plan.FUSED_OPS),
    batch=st.integers(1, 4),
    m=st.integers(1, 5000),
    n=st.integers(1, 600),
    k=st.integers(1, 600),
    world=st.integers(2, 8),
)
def test_plan_is_a_function_of_its_arguments(op, batch, m, n, k, world):
    problem = Problem(op, batch, m, (8 * n,), (8 * k,), world, "bfloat16", "bfloat16")
    reordered = Installed(tuple(reversed(KERNELS.instances)))
    assert decide(problem) == decide(problem, installed=reordered)
    first = decide(problem, implementation="fused")
    second = decide(problem, implementation="fused", installed=reordered)
    assert first == second
    assert first.plan.expected_ns >= 1
    assert _plan.plan_hash(problem, first.plan, 0) == _plan.plan_hash(problem, second.plan, 0)


def test_plan_hash_tells_everything_apart_that_ranks_must_agree_on():
    plan = decide().plan
    hashes = {_plan.plan_hash(AG, plan, 0), _plan.plan_hash(AG, plan, 1)}
    for change in (
        dict(m=513),
        dict(n=(1528,)),
        dict(k=(4104,)),
        dict(world=4),
        dict(batch=2),
        dict(op="matmul_rs"),
        dict(transpose_w=True),
    ):
        hashes.add(_plan.plan_hash(but(**change), plan, 0))
    hashes.add(_plan.plan_hash(AG, dataclasses.replace(plan, instance="other"), 0))
    hashes.add(_plan.plan_hash(AG, dataclasses.replace(plan, sm_margin=2), 0))
    hashes.add(_plan.plan_hash(AG, dataclasses.replace(plan, transport="copy"), 0))
    assert len(hashes) == 12
    assert all(0 < h < 2**63 for h in hashes)


def test_plan_hash_is_the_same_in_another_process():
    code = (
        "from jax_flux import _plan as p; "
        "print(p.plan_hash(p.Problem('ag_matmul', 1, 512, (1536,), (4096,), 8, 'bfloat16', "
        "'bfloat16'), p.Plan('i', 0, 0, 1), 3))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=pathlib.Path(jax_flux.__file__).parent.parent,
    )
    assert int(out.stdout) == _plan.plan_hash(AG, _plan.Plan("i", 0, 0, 1), 3)


@pytest.mark.parametrize("shard, chunk", [(1, 16 << 10), (32 << 20, 1 << 20), (1 << 20, 32 << 10)])
def test_chunk_bytes_is_a_32nd_in_whole_units(shard, chunk):
    assert _lowering.chunk_bytes(shard) == chunk


# ---- explain -------------------------------------------------------------------------------------


def test_explain_folds_shapes_as_the_op_does(monkeypatch):
    monkeypatch.setattr(_ffi, "compiled", lambda: KERNELS)
    three = jax_flux.explain("ag_matmul", (2, 512, 4096), (4096, 1536), "bfloat16", 8)
    assert three.implementation == "fused"
    moved = jax_flux.explain(
        "matmul_rs", (4096, 2, 4096), (4096, 1536), "bfloat16", 8, scatter_axis=0
    )
    assert moved.implementation == "fused"


def test_explain_several_weights_share_a_plan_and_ar_takes_xla(monkeypatch):
    monkeypatch.setattr(_ffi, "compiled", lambda: KERNELS)
    shapes = ((4096, 1536), (4096, 512))
    several = jax_flux.explain("ag_matmul", (512, 4096), shapes, "bfloat16", 8)
    assert several.implementation == "fused"
    answer = jax_flux.explain("matmul_ar", (512, 4096), (4096, 64), "bfloat16", 8)
    assert "matmul_ar has no fused kernel" in answer.reason


def test_explain_takes_jaxs_name_of_the_platform_and_numpy_shapes(monkeypatch):
    monkeypatch.setattr(_ffi, "compiled", lambda: KERNELS)
    shape = np.array([4096, 1536])
    answer = jax_flux.explain("ag_matmul", (512, 4096), shape, "bfloat16", 8, platform="gpu")
    assert answer == jax_flux.explain("ag_matmul", (512, 4096), (4096, 1536), "bfloat16", 8)
    assert answer.implementation == "fused"


def test_explain_on_cpu_names_the_platform():
    answer = jax_flux.explain(
        "ag_matmul", (512, 4096), (4096, 512), "bfloat16", 8, platform="cpu", device_kind="cpu"
    )
    assert "'cpu'" in answer.reason


# ---- stats ---------------------------------------------------------------------------------------


def call(mesh, dtype=jnp.float32, k=8, n=16, **keywords):
    fn = jax.shard_map(
        lambda x, w: jax_flux.ag_matmul(x, w, axis_name="tp", **keywords),
        mesh=mesh,
        in_specs=(P("tp"), P(None, "tp")),
        out_specs=P(None, "tp"),
    )
    return fn, programs.normal(0, (16, k), dtype), programs.normal(1, (k, n), dtype)


def test_stats_count_one_per_traced_call_site(tp8):
    fn, x, w = call(tp8)
    compiled = jax.jit(fn)
    for _ in range(3):
        compiled(x, w)
    row = jax_flux.stats()["ag_matmul"]
    assert (row["fused"], row["xla"]) == (0, 1)
    assert row["reasons"] == {"the mesh is on platform 'cpu', not on NVIDIA GPUs": 1}
    jax_flux.stats_reset()
    assert jax_flux.stats() == {}


def test_stats_on_cpu_warn_nothing_and_name_the_platform(tp8):
    fn, x, w = call(tp8, jnp.bfloat16, n=64)
    fn(x, w)  # warnings are errors in this suite
    (reason,) = jax_flux.stats()["ag_matmul"]["reasons"]
    assert reason == "the mesh is on platform 'cpu', not on NVIDIA GPUs"


def test_chosen_plan_is_logged_once(caplog):
    plan = _plan.Plan("an instance that no other test logs", 0, 0, 1)
    with caplog.at_level(logging.INFO, logger="jax_flux"):
        for _ in range(2):
            _dispatch._log_plan("ag_matmul", 4, plan)
    assert [r.getMessage().count(plan.instance) for r in caplog.records] == [1]


# ---- the lowered custom call ---------------------------------------------------------------------


@pytest.fixture
def kernels(monkeypatch):
    """Lowering for CUDA without a GPU: the library's answers are given, nothing is registered.

    The programs here are tiny, so nobody is asked what is faster.
    """
    monkeypatch.setattr(_plan, "_slower", lambda *_: None)
    monkeypatch.setattr(_ffi, "installed", lambda: KERNELS)
    monkeypatch.setattr(_ffi, "register", lambda: None)


def cuda_text(fn, *args):
    exported = jax.export.export(
        jax.jit(fn), platforms=["cuda"], disabled_checks=jax_flux.export_safety_checks()
    )(*args)
    return exported.mlir_module()


def attributes(text, target):
    """One dict of attributes per custom call of ``target``."""
    found = []
    for body in re.findall(rf"@{target}\(.*?mhlo.backend_config = {{(.*?)}}", text):
        row = {k: int(v) for k, v in re.findall(r"(\w+) = (-?\d+) : i64", body)}
        row["instance"] = re.search(r'instance = "(.*?)"', body).group(1)
        row["groups"] = [
            int(v) for v in re.search(r"groups = dense<\[?(.*?)\]?>", body).group(1).split(",")
        ]
        found.append(row)
    return found


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


@pytest.mark.parametrize(
    "op, m, n, k, world, kernel",
    [
        # GPT-3 175B at TP 8: prefill and training sizes, rows per rank.
        ("ag_matmul", 512, 6144, 12288, 2, "128x192_c2x1"),
        ("matmul_rs", 4096, 12288, 6144, 2, "128x192_c2x1"),
        ("matmul_rs", 1024, 12288, 6144, 8, "128x192_c2x1"),
        # One tile row per rank: a cluster of two rows would leave one CTA idle.
        ("ag_matmul", 128, 6144, 12288, 8, "128x192_c1x2"),
        # 192 leaves columns empty.
        ("ag_matmul", 4096, 4096, 8192, 2, "128x256_c2x1"),
        # Padding costs more than hiding brings.
        ("ag_matmul", 64, 6144, 12288, 2, None),
        ("matmul_rs", 64, 12288, 6144, 8, None),
    ],
)
def test_plan_of_known_sizes(op, m, n, k, world, kernel):
    problem = Problem(op, 1, m, (n,), (k,), world, "bfloat16", "bfloat16")
    decision = decide(problem)
    if kernel is None:
        assert decision.reason.startswith("expected to lose: about")
    else:
        assert decision.plan.instance == f"{op}_bfloat16_nn_{kernel}"


def test_backward_of_a_demanded_kernel_is_fused_where_it_can():
    """What is faster is asked only where nothing was demanded."""
    slow = but(return_gathered=True)
    assert decide(slow).implementation == "xla"
    assert decide(slow, implementation=_plan.PREFER).implementation == "fused"
    odd = decide(but(n=(1001,)), implementation=_plan.PREFER)
    assert odd.implementation == "xla"


def test_call_sites_differ_within_a_program_and_agree_between_traces(kernels, mesh):
    fn, x, w = call(mesh, jnp.bfloat16, n=64)
    deep, deep_x, deep_w = call(mesh, jnp.bfloat16, k=16, n=64)
    program = lambda x, w, deep_x, deep_w: (fn(x, w), deep(deep_x, deep_w), fn(x + 1, w))
    trace = lambda: attributes(cuda_text(program, x, w, deep_x, deep_w), "jax_flux_ag_matmul_v1")
    first = trace()
    cuda_text(fn, x, w)  # another program in between changes nothing
    assert first == trace()
    # Equal equations share one cached lowering, and with it a site: they run in program order.
    assert [row["plan_hash"] for row in first].count(first[0]["plan_hash"]) == 2
    assert len({row["site"] for row in first}) == len({row["plan_hash"] for row in first}) == 2


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


def test_stats_amend_moves_a_fused_count():
    _stats.record("ag_matmul", "fused", "supported")
    _stats.amend("ag_matmul", "vmap over w")
    _stats.amend("ag_matmul", "vmap over w")  # nothing fused is left to move
    row = jax_flux.stats()["ag_matmul"]
    assert (row["fused"], row["xla"], row["reasons"]) == (0, 1, {"vmap over w": 1})


def packed(op, tile=(128, 128), cluster=(1, 1), split=2):
    name = f"{op}_pack_{tile[0]}x{tile[1]}_c{cluster[0]}x{cluster[1]}_s{split}"
    return Instance(name, op, "bfloat16", "nn", tile, cluster, split=split, packed=True)


WITH_PACKED = Installed(
    (*KERNELS.instances, *map(packed, _plan.FUSED_OPS), packed("ag_matmul", (128, 192)))
)


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("op, n, k", [("ag_matmul", 6144, 12288), ("matmul_rs", 12288, 6144)])
def test_few_rows_take_a_kernel_of_packed_tiles(op, n, k, world, monkeypatch):
    monkeypatch.setattr(_cost_packed, "PLANNED", True)
    for m in (16, 64, 128):
        problem = but(op=op, m=m // world, n=(n,), k=(k,), world=world)
        # A gather's time is not yet known well enough to be preferred by itself at every size.
        asked = "fused" if op == "ag_matmul" else None
        decision = decide(problem=problem, installed=WITH_PACKED, implementation=asked)
        assert decision.implementation == "fused", decision
        assert "_pack_" in decision.plan.instance
    many = but(op=op, m=2048, n=(n,), k=(k,), world=world)
    assert "_pack_" not in decide(problem=many, installed=WITH_PACKED).plan.instance


def test_segments_longer_than_a_tile_are_not_packed():
    config = jax_flux.Config(tile=(128, 128), cluster=(1, 1))
    fits = decide(problem=but(m=128), config=config, installed=WITH_PACKED, implementation="fused")
    assert "_pack_" in fits.plan.instance
    too_long = decide(problem=but(m=129), config=config, installed=WITH_PACKED)
    assert too_long.implementation == "xla"
    assert "no ag_matmul kernel" in too_long.reason


def test_packed_kernels_run_only_where_they_are_named():
    few = but(m=16)
    assert "fewer than 64" in decide(problem=few, installed=WITH_PACKED).reason
    named = jax_flux.Config(instance="ag_matmul_pack_128x128_c1x1_s2")
    forced = decide(problem=few, config=named, installed=WITH_PACKED, implementation="fused")
    assert forced.plan.instance == named.instance
