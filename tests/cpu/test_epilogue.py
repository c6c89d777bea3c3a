# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Bias and activation as part of the call: one custom call on CUDA, XLA's steps elsewhere."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_flux
from jax_flux import _epilogue, _ffi, _plan
from tests import oracle
from tests.cpu import programs
from tests.cpu.plans import AG, KERNELS, attributes, cuda_text, decide

ADD, STEPS = r"stablehlo\.add ", r"stablehlo\.(?:add|tanh|logistic|exponential|maximum) "
AG_SPECS = ((P("tp"), P(None, "tp"), P("tp")), P(None, "tp"))
RS_SPECS = ((P(None, "tp"), P("tp"), P()), P("tp"))


def operands(dtype=jnp.bfloat16):
    return [programs.normal(i, s, dtype) for i, s in enumerate([(16, 64), (64, 64), (64,)])]


def sharded(fn, mesh, specs=AG_SPECS):
    return jax.shard_map(fn, mesh=mesh, in_specs=specs[0], out_specs=specs[1])


def ag(mesh, **keywords):
    return sharded(
        lambda x, w, b: jax_flux.ag_matmul(x, w, axis_name="tp", bias=b, **keywords), mesh
    )


def rs(mesh, **keywords):
    fn = lambda x, w, b: jax_flux.matmul_rs(x, w, axis_name="tp", bias=b, **keywords)
    return sharded(fn, mesh, RS_SPECS)


def activations(text):
    return re.findall(r'activation = "(\w+)"', text)


def total(fn):
    return lambda *args: fn(*args).astype(jnp.float32).sum()


# ---- the lowered call ----------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [None, *_epilogue.ACTIVATIONS])
def test_ag_matmul_on_cuda_is_one_call_with_its_epilogue(kernels, mesh, activation):
    text = cuda_text(ag(mesh, activation=activation), *operands())
    (row,) = attributes(text, "jax_flux_ag_matmul_v1")
    assert row["biases"] == 1
    assert activations(text) == ([activation] if activation else [])
    assert not re.search(STEPS, text)


def test_activation_without_a_bias_is_in_the_call(kernels, mesh):
    fn = lambda x, w, b: jax_flux.ag_matmul(x, w, axis_name="tp", activation="silu")
    text = cuda_text(sharded(fn, mesh), *operands())
    (row,) = attributes(text, "jax_flux_ag_matmul_v1")
    assert "biases" not in row
    assert activations(text) == ["silu"]
    assert not re.search(STEPS, text)


def test_matmul_rs_on_cuda_is_one_call_with_its_bias(kernels, mesh):
    text = cuda_text(rs(mesh), *operands())
    (row,) = attributes(text, "jax_flux_matmul_rs_v1")
    assert row["biases"] == 1
    assert not re.search(ADD, text)


def test_biases_of_several_weights_are_named_by_their_bits(kernels, mesh):
    fn = lambda x, w, b: jax_flux.ag_matmul(x, (w, w, w), axis_name="tp", bias=(b, None, b))
    text = cuda_text(sharded(fn, mesh), *operands())
    (row,) = attributes(text, "jax_flux_ag_matmul_v1")
    assert row["biases"] == 0b101
    assert not re.search(ADD, text)


def test_group_of_one_runs_the_plain_kernel_with_its_epilogue(kernels, mesh):
    at = jax.sharding.AbstractMesh((1,), ("tp",), axis_types=(jax.sharding.AxisType.Auto,))
    fn = ag(at, activation="gelu", implementation="fused")
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in operands()]
    text = jax.jit(fn).trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()
    (row,) = attributes(text, "jax_flux_ag_matmul_v1")
    assert row["instance"].startswith("plain")
    assert activations(text) == ["gelu"]


def test_gathered_x_comes_beside_an_activated_result(kernels, mesh):
    call = lambda x, w, b: jax_flux.ag_matmul(
        x, w, axis_name="tp", bias=b, activation="relu", return_gathered=True
    )
    fn = jax.shard_map(
        call, mesh=mesh, in_specs=AG_SPECS[0], out_specs=(P(None, "tp"), P()), check_vma=False
    )
    text = cuda_text(fn, *operands())
    assert activations(text) == ["relu"]
    assert len(re.findall(r"stablehlo.all_gather", text)) == 1
    x, w, b = operands()
    y, full = fn(x, w, b)
    oracle.assert_same_bits(full, x)
    oracle.assert_same_bits(y, ag(mesh, activation="relu")(x, w, b))


# ---- differentiation -----------------------------------------------------------------------------


def test_under_grad_the_kernel_keeps_the_bias_and_xla_applies_the_activation(kernels, mesh):
    grad = jax.value_and_grad(total(ag(mesh, activation="gelu")), (0, 1, 2))
    text = cuda_text(grad, *operands())
    (row,) = attributes(text, "jax_flux_ag_matmul_v1")
    assert row["biases"] == 1
    assert activations(text) == []
    assert "stablehlo.tanh" in text


@pytest.mark.parametrize("make", [ag, rs])
def test_under_grad_a_bias_alone_stays_in_the_kernel(kernels, mesh, make):
    op = "ag_matmul" if make is ag else "matmul_rs"
    text = cuda_text(jax.value_and_grad(total(make(mesh)), (0, 1, 2)), *operands())
    forward, *rest = sorted(attributes(text, f"jax_flux_{op}_v1"), key=lambda r: -len(r))
    assert forward["biases"] == 1
    assert all("biases" not in row for row in rest)


@pytest.mark.parametrize("make, op", [(ag, "ag_matmul"), (rs, "matmul_rs")])
@pytest.mark.parametrize("activation", [None, "gelu"])
def test_second_derivatives_equal_the_reference(mesh, make, op, activation):
    if op == "matmul_rs" and activation:
        activation = None
    keywords = {"activation": activation} if activation else {}
    args = operands(jnp.float32)

    def hessian_product(implementation):
        fn = make(mesh, implementation=implementation, **keywords)
        first = jax.grad(lambda *a: jnp.sum(jnp.sin(fn(*a))), (0, 1, 2))
        return jax.grad(lambda *a: sum(jnp.sum(g**2) for g in first(*a)), (0, 1, 2))(*args)

    oracle.assert_close(hessian_product(None), hessian_product("xla"), tolerance=1e-4)


def test_bias_of_a_wider_dtype_gets_a_gradient_of_its_own(mesh):
    x, w, b = operands()
    grad = jax.grad(total(ag(mesh, activation="silu")), 2)(x, w, b.astype(jnp.float32))
    assert grad.dtype == jnp.float32


# ---- vmap ----------------------------------------------------------------------------------------


def test_vmap_over_x_keeps_the_epilogue_in_the_call(kernels, mesh):
    x, w, b = operands()
    fn = lambda x, w, b: jax.vmap(
        lambda x: jax_flux.ag_matmul(x, w, axis_name="tp", bias=b, activation="relu")
    )(x)
    specs = ((P(None, "tp"), P(None, "tp"), P("tp")), P(None, None, "tp"))
    text = cuda_text(sharded(fn, mesh, specs), jnp.stack([x, x]), w, b)
    assert activations(text) == ["relu"]


@pytest.mark.parametrize("with_x", [False, True])
def test_vmap_over_the_bias_runs_the_kernel_once_and_xla_adds(kernels, mesh, with_x):
    x, w, b = operands()
    fn = lambda x, w, b: jax.vmap(
        lambda x, b: jax_flux.ag_matmul(x, w, axis_name="tp", bias=b, activation="relu"),
        (0 if with_x else None, 0),
    )(x, b)
    lead = (None,) if with_x else ()
    specs = ((P(*lead, "tp"), P(None, "tp"), P(None, "tp")), P(None, None, "tp"))
    args = jnp.stack([x, x + 1]) if with_x else x, w, jnp.stack([b, b + 1])
    text = cuda_text(sharded(fn, mesh, specs), *args)
    (row,) = attributes(text, "jax_flux_ag_matmul_v1")
    assert "biases" not in row
    assert activations(text) == []
    out = sharded(fn, mesh, specs)(*args)
    for i in range(2):
        one = ag(mesh, activation="relu")(args[0][i] if with_x else x, w, b + i)
        oracle.assert_same_bits(out[i], one)


def test_vmap_over_one_of_two_biases_equals_by_hand(mesh):
    x, w, b = operands(jnp.float32)
    fn = lambda x, w, b: jax.vmap(
        lambda b: jax_flux.ag_matmul(x, (w, w), axis_name="tp", bias=(b, None))
    )(b)
    specs = ((P("tp"), P(None, "tp"), P(None, "tp")), (P(None, None, "tp"),) * 2)
    biased, bare = sharded(fn, mesh, specs)(x, w, jnp.stack([b, 2 * b]))
    oracle.assert_close(biased, jnp.stack([x @ w + b, x @ w + 2 * b]))
    oracle.assert_close(bare, jnp.stack([x @ w] * 2))


# ---- plan and explain ----------------------------------------------------------------------------


def test_plan_hash_covers_bias_and_activation():
    plan = _plan.Plan("i", 0, 0, 1)
    problems = [AG, *(dataclasses.replace(AG, biases=b) for b in ((True,), (True, False)))]
    problems += [dataclasses.replace(AG, activation=a) for a in _epilogue.ACTIVATIONS]
    assert len({_plan.plan_hash(problem, plan, 0) for problem in problems}) == len(problems)


def test_planner_takes_a_tile_that_hides_the_activation():
    """128 x 256 is the faster tile for n = 4096, until gelu must hide under another tile's MMAs."""
    problem = dataclasses.replace(AG, m=4096, n=(4096,), k=(8192,), world=2)
    tile = lambda activation: decide(dataclasses.replace(problem, activation=activation)).plan
    assert "128x256" in tile(None).instance
    assert "128x256" in tile("relu").instance
    assert "128x192" in tile("gelu").instance


@pytest.mark.parametrize(
    "keywords, words",
    [
        (dict(), ""),
        (dict(bias=False), ""),
        (dict(bias=True), "bias in the kernel, in f32"),
        (dict(activation="relu"), "under differentiation XLA applies relu"),
        (dict(bias=np.ones(1536), activation="gelu"), "bias and gelu in the kernel"),
        (dict(bias=True, activation="silu", implementation="xla"), "bias and silu by XLA"),
    ],
)
def test_explain_says_who_does_the_epilogue(monkeypatch, keywords, words):
    monkeypatch.setattr(_ffi, "compiled", lambda: KERNELS)
    answer = jax_flux.explain("ag_matmul", (512, 4096), (4096, 1536), "bfloat16", 8, **keywords)
    assert words in answer.epilogue
    assert bool(words) == bool(answer.epilogue)
