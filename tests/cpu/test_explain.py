# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""explain, stats and the log say what runs and why."""

from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_flux
from jax_flux import _dispatch, _ffi, _plan, _stats, errors
from tests.cpu.messages import raises
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


# ---- what explain refuses ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype, parts",
    [
        ("bf16", ("NumPy or JAX knows", "such as 'bfloat16'")),
        (None, ("NumPy or JAX knows", "such as 'bfloat16'")),
        (3, ("NumPy or JAX knows", "such as 'bfloat16'")),
        (("bfloat16", "float32"), ("promoted dtype of x and w", "Pass 'float32'")),
        (["bfloat16", jnp.float8_e4m3fn], ("promoted dtype of x and w", "Pass 'bfloat16'")),
        (("bfloat16", "bf16"), ("promoted dtype of x and w", "Pass jnp.promote_types")),
        ((), ("promoted dtype of x and w", "Pass jnp.promote_types")),
    ],
    ids=str,
)
def test_explain_wants_one_dtype(dtype, parts):
    with raises(errors.DtypeError, f"explain: dtype = {dtype!r}. ", *parts):
        jax_flux.explain("ag_matmul", (8, 128), (128, 64), dtype, 2)


@pytest.mark.parametrize(
    "shape",
    [(5.5, 128), (-8, 128), 8, None, "ab", (8, None), np.ones((2, 2)), ((8, 128),)],
    ids=str,
)
def test_explain_wants_shapes_of_ints(shape):
    with raises(errors.ShapeError, "explain: x_shape = ", "sequence of ints", "(512, 4096)"):
        jax_flux.explain("ag_matmul", shape, (128, 64), "bfloat16", 2)


@pytest.mark.parametrize(
    "shape, what",
    [
        (5, "w_shape = 5"),
        ((128, 6.5), "w_shape = (128, 6.5)"),
        (((128, 64), 5), "a shape in w_shape = 5"),
        (((128, 64), (128, "n")), "a shape in w_shape = (128, 'n')"),
    ],
    ids=str,
)
def test_explain_wants_shapes_of_weights(shape, what):
    with raises(errors.ShapeError, f"explain: {what}. ", "sequence of ints"):
        jax_flux.explain("ag_matmul", (8, 128), shape, "bfloat16", 2)


def test_explain_takes_shapes_of_weights_as_an_array():
    rows = np.array([[4096, 1536], [4096, 512]])
    call = lambda w: jax_flux.explain("ag_matmul", (512, 4096), w, "bfloat16", 8, bias=(True, None))
    assert call(rows) == call(((4096, 1536), (4096, 512)))


@pytest.mark.parametrize(
    "keyword, given", [("platform", 3), ("device_kind", 3), ("device_kind", ["NVIDIA H200"])]
)
def test_explain_wants_names_of_the_machine(keyword, given):
    with raises(errors.OptionError, f"{keyword} = {given!r}", "by strings", "device.platform"):
        jax_flux.explain("ag_matmul", (8, 128), (128, 64), "bfloat16", 2, **{keyword: given})


@pytest.mark.parametrize("bias", ["yes", 1, 1.5], ids=str)
def test_explain_wants_to_know_whether_there_is_a_bias(bias):
    call = lambda bias, w: jax_flux.explain("ag_matmul", (8, 128), w, "bfloat16", 2, bias=bias)
    with raises(errors.OptionError, f"explain: bias = {bias!r}", "Pass True, False, None or the"):
        call(bias, (128, 64))
    with raises(errors.OptionError, f"explain: bias = {bias!r}"):
        call((None, bias), ((128, 64), (128, 64)))


def test_explain_refuses_the_bias_that_the_op_would():
    call = lambda bias: jax_flux.explain("matmul_rs", (8, 128), (128, 64), "bfloat16", 2, bias=bias)
    with raises(errors.ShapeError, "matmul_rs: bias is float32[7]", "n = 64", "spec P()"):
        call(jnp.ones(7))
    with raises(errors.DtypeError, "matmul_rs: bias is complex64[64]", "Cast the bias"):
        call(jax.ShapeDtypeStruct((64,), "complex64"))
    assert call(np.True_) == call(True) == call(jnp.ones(64)) != call(np.False_)


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
