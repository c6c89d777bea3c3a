# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reverse mode equals jax.grad of the by-hand lax program, in both check_vma modes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from jax.sharding import PartitionSpec as P

import jax_flux
from tests import oracle
from tests.cpu import programs
from tests.cpu.programs import BY_HAND, OURS, Case


@given(case=programs.cases())
@settings(max_examples=25)
def test_gradients_any_case_equal_by_hand_with_vma(case):
    operands = case.operands()
    ours = programs.gradients(programs.program(case, OURS, True), operands)
    oracle.assert_close(ours, programs.gradients(programs.program(case, BY_HAND, True), operands))


@given(case=programs.cases())
@settings(max_examples=25)
def test_gradients_any_case_equal_by_hand_without_vma(case):
    operands = case.operands()
    ours = programs.gradients(programs.program(case, OURS, False), operands)
    oracle.assert_close(ours, programs.gradients(programs.program(case, BY_HAND, False), operands))


# Specs of ordinary tensor parallelism, batch over dp: what an unsharded program must agree with.
STANDARD = {
    "ag_matmul": (P("dp", "tp"), P(None, "tp"), P("tp"), P("dp", None, "tp")),
    "matmul_rs": (P("dp", None, "tp"), P("tp"), P(), P("dp", "tp")),
    "matmul_ar": (P("dp", None, "tp"), P("tp"), P(), P("dp")),
}


def standard(op, mesh, check_vma, table=OURS, **keywords):
    x_spec, w_spec, bias_spec, out_spec = STANDARD[op]
    return jax.shard_map(
        lambda x, w, b: table[op](x, w, bias=b, axis_name="tp", **keywords),
        mesh=mesh,
        in_specs=(x_spec, w_spec, bias_spec),
        out_specs=out_spec,
        check_vma=check_vma,
    )


def global_operands(dtype=jnp.float32, rows=16, k=8, n=12):
    return (
        programs.normal(0, (2, rows, k), dtype),
        programs.normal(1, (k, n), dtype),
        programs.normal(2, (n,), dtype),
    )


@pytest.mark.parametrize("op", OURS)
def test_gradients_standard_specs_equal_unsharded_math(op, mesh, check_vma):
    operands = global_operands()
    ours = programs.gradients(standard(op, mesh, check_vma), operands)
    oracle.assert_close(ours, programs.gradients(lambda x, w, b: x @ w + b, operands))


@pytest.mark.parametrize("op", OURS)
def test_gradients_bf16_error_within_xla(op, mesh, check_vma):
    operands = global_operands(jnp.bfloat16, rows=64, k=128, n=64)
    exact = [a.astype(jnp.float32) for a in operands]
    with jax.default_matmul_precision("highest"):
        truth = programs.gradients(lambda x, w, b: x @ w + b, tuple(exact))
    ours = programs.gradients(standard(op, mesh, check_vma), operands)
    theirs = programs.gradients(standard(op, mesh, check_vma, BY_HAND), operands)
    for mine, other, want in zip(ours, theirs, truth, strict=True):
        assert mine.dtype == jnp.bfloat16
        oracle.assert_no_worse(mine, than=other, exact=oracle.f64(want), slack=1.1)


@pytest.mark.parametrize("op", OURS)
def test_gradients_out_dtype_f32_equal_by_hand(op, mesh, check_vma):
    operands = global_operands(jnp.bfloat16)
    kw = dict(out_dtype=jnp.float32)
    ours = programs.gradients(standard(op, mesh, check_vma, **kw), operands)
    theirs = programs.gradients(standard(op, mesh, check_vma, BY_HAND, **kw), operands)
    oracle.assert_close(ours, theirs, tolerance=2e-2)  # bf16 gradients: one unit in the last place


@pytest.mark.parametrize("op", OURS)
def test_gradients_mixed_dtypes_keep_their_own(op, mesh):
    x, w, b = global_operands()
    grads = programs.gradients(standard(op, mesh, True), (x.astype(jnp.bfloat16), w, b))
    assert [g.dtype for g in grads] == [jnp.bfloat16, jnp.float32, jnp.float32]


@pytest.mark.parametrize("op", OURS)
def test_gradients_of_gradients_equal_by_hand(op, mesh):
    operands = global_operands()

    def second(table):
        fn = standard(op, mesh, True, table)
        inner = lambda *a: jnp.sum(jnp.tanh(fn(*a)))
        outer = lambda *a: sum(jnp.sum(jnp.sin(g)) for g in jax.grad(inner, (0, 1, 2))(*a))
        return jax.jit(jax.grad(outer, (0, 1, 2)))(*operands)

    oracle.assert_close(second(OURS), second(BY_HAND))


@pytest.mark.parametrize("op", OURS)
def test_gradients_implementation_xla_equal_ours(op, mesh, check_vma):
    operands = global_operands()
    ours = programs.gradients(standard(op, mesh, check_vma), operands)
    xla = programs.gradients(standard(op, mesh, check_vma, implementation="xla"), operands)
    oracle.assert_close(ours, xla)


def test_gradients_only_of_x_cost_no_gather(mesh):
    x, w, b = global_operands()
    fn = standard("ag_matmul", mesh, True)
    ct = programs.normal(3, fn(x, w, b).shape)
    pull = lambda x, ct: jax.vjp(lambda x: fn(x, w, b), x)[1](ct)
    assert oracle.collective_counts(pull, x, ct) == {"reduce-scatter": 1}


EXPECTED_BACKWARD = {
    # dx is one reduce-scatter, dw one dot on a gathered x; the all-reduces sum dw and db over dp.
    "ag_matmul": {"all-gather": 1, "reduce-scatter": 1},
    # One gather of the cotangent serves dx and dw.
    "matmul_rs": {"all-gather": 1},
    "matmul_ar": {},
}


@pytest.mark.parametrize("op", OURS)
def test_backward_collectives_are_the_mirrored_ones(op, mesh):
    operands = global_operands()
    fn = standard(op, mesh, True)
    ct = programs.normal(3, fn(*operands).shape)
    pull = lambda x, w, b, ct: jax.vjp(fn, x, w, b)[1](ct)
    counts = oracle.collective_counts(pull, *operands, ct)
    counts.pop("all-reduce")  # dw and db over dp (and db over tp)
    assert counts == EXPECTED_BACKWARD[op]


# On a mesh of nothing but tp no sum over dp hides a sum over tp. What is transposed is the lax
# collective: with check_vma=False the cotangent of a psum is summed again.
EXACT_BACKWARD = {
    "ag_matmul": {True: {"all-gather": 1, "reduce-scatter": 1}},
    "matmul_rs": {True: {"all-gather": 1}},
    "matmul_ar": {True: {}, False: {"all-reduce": 1}},
}


@pytest.mark.parametrize("op", OURS)
def test_backward_over_its_axis_alone_has_no_other_collective(op, tp8, check_vma):
    x_spec, w_spec, out_spec = {
        "ag_matmul": (P("tp"), P(None, "tp"), P(None, "tp")),
        "matmul_rs": (P(None, "tp"), P("tp"), P("tp")),
        "matmul_ar": (P(None, "tp"), P("tp"), P()),
    }[op]
    fn = jax.shard_map(
        lambda x, w: OURS[op](x, w, axis_name="tp"),
        mesh=tp8,
        in_specs=(x_spec, w_spec),
        out_specs=out_spec,
        check_vma=check_vma,
    )
    x, w = programs.normal(0, (16, 8)), programs.normal(1, (8, 16))
    ct = programs.normal(2, (16, 16))
    counts = oracle.collective_counts(lambda *a: jax.vjp(fn, *a[:2])[1](a[2]), x, w, ct)
    assert counts == EXACT_BACKWARD[op].get(check_vma, EXACT_BACKWARD[op][True])


def test_backward_of_several_weights_scatters_once(mesh):
    x, w, _ = global_operands()
    ws = (w, 2 * w, 3 * w)
    fn = jax.shard_map(
        lambda x, ws: jax_flux.ag_matmul(x, ws, axis_name="tp"),
        mesh=mesh,
        in_specs=(P("dp", "tp"), P(None, "tp")),
        out_specs=P("dp", None, "tp"),
    )
    cts = tuple(programs.normal(3, y.shape) for y in fn(x, ws))
    counts = oracle.collective_counts(lambda x, ws, cts: jax.vjp(fn, x, ws)[1](cts), x, ws, cts)
    assert counts.pop("all-reduce") >= 1
    assert counts == {"all-gather": 1, "reduce-scatter": 1}


def test_backward_counts_under_its_own_name(mesh):
    programs.gradients(standard("matmul_rs", mesh, True), global_operands())
    assert set(jax_flux.stats()) == {"matmul_rs", "matmul_rs_backward"}


def test_gradients_of_replicated_x_over_own_axis_sum_once(mesh, check_vma):
    """x the same on all ranks of tp: its gradient adds every rank's use of it, exactly once."""
    case = Case(
        "ag_matmul", (2, 4), ("dp", "tp"), "tp", (2, 3), 0, 4, x_axes=("dp",), w_axes=("tp",)
    )
    operands = case.operands()
    ours = programs.gradients(programs.program(case, OURS, check_vma), operands)
    theirs = programs.gradients(programs.program(case, BY_HAND, check_vma), operands)
    oracle.assert_close(ours, theirs)


@pytest.mark.parametrize("op", OURS)
def test_gradients_keep_the_precision_of_the_forward(op, mesh):
    """The context manager stands around the call, not around jax.grad."""

    def careful(x, w, **keywords):
        with jax.default_matmul_precision("highest"):
            return OURS[op](x, w, **keywords)

    fn = standard(op, mesh, True, {op: careful})
    loss = lambda *a: jnp.sum(jnp.sin(fn(*a)))
    text = jax.jit(jax.grad(loss, (0, 1))).lower(*global_operands()).as_text()
    assert text.count("stablehlo.dot_general") == text.count("precision = [HIGHEST, HIGHEST]") == 3
