# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The planner as a pure function: what runs, why, its Config and its hashes."""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jax_flux
from jax_flux import _cost, _lowering, _plan
from jax_flux._plan import Installed, Problem
from tests.cpu.plans import AG, KERNELS, but, decide


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
        (dict(problem=but(n=(8,) * 64, biases=(True,) * 64)), "64 weights with biases", True),
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
