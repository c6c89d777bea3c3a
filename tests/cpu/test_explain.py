# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""explain, stats and the log say what runs and why."""

from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import numpy as np

import jax_flux
from jax_flux import _dispatch, _ffi, _plan, _stats
from tests.cpu.plans import KERNELS, call

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


def test_stats_amend_moves_a_fused_count():
    _stats.record("ag_matmul", "fused", "supported")
    _stats.amend("ag_matmul", "vmap over w")
    _stats.amend("ag_matmul", "vmap over w")  # nothing fused is left to move
    row = jax_flux.stats()["ag_matmul"]
    assert (row["fused"], row["xla"], row["reasons"]) == (0, 1, {"vmap over w": 1})
