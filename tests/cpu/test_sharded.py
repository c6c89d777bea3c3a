# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The wrappers for global arrays equal unsharded math, gradients among it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_flux
from tests import oracle
from tests.cpu import programs
from tests.cpu.programs import OURS

SHARDED = {
    "ag_matmul": (jax_flux.ag_matmul_sharded, ("dp", "tp", None), (None, "tp")),
    "matmul_rs": (jax_flux.matmul_rs_sharded, ("dp", None, "tp"), ("tp", None)),
    "matmul_ar": (jax_flux.matmul_ar_sharded, ("dp", None, "tp"), ("tp", None)),
}


@pytest.mark.parametrize("op", OURS)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_sharded_wrapper_equals_unsharded_math_and_gradients(op, kind, jit):
    mesh = programs.make_mesh((2, 4), ("dp", "tp"), kind)
    fn, x_spec, w_spec = SHARDED[op]
    put = lambda a, spec: jax.device_put(a, NamedSharding(mesh, P(*spec)))
    x, w, b = programs.normal(0, (2, 16, 8)), programs.normal(1, (8, 12)), programs.normal(2, (12,))
    bias_spec = ("tp",) if op == "ag_matmul" else (None,)
    placed = (put(x, x_spec), put(w, w_spec), put(b, bias_spec))
    call = lambda x, w, b: fn(x, w, mesh=mesh, axis="tp", bias=b)
    run = jax.jit(call) if jit else call
    oracle.assert_close(np.asarray(run(*placed)), np.asarray(x @ w + b))
    loss = lambda f: lambda *a: jnp.sum(jnp.sin(f(*a)))
    ours = jax.jit(jax.grad(loss(call), (0, 1, 2)))(*placed)
    theirs = jax.grad(loss(lambda x, w, b: x @ w + b), (0, 1, 2))(x, w, b)
    oracle.assert_close(jax.tree.map(np.asarray, ours), jax.tree.map(np.asarray, theirs))


def test_sharded_wrapper_2d_x_is_sharded_over_its_axis_alone(mesh):
    x, w = programs.normal(0, (16, 8)), programs.normal(1, (8, 12))
    out = jax.jit(lambda x, w: jax_flux.ag_matmul_sharded(x, w, mesh=mesh, axis="tp"))(x, w)
    assert out.addressable_shards[0].data.shape == (16, 3)
    oracle.assert_close(np.asarray(out), np.asarray(x @ w))


def test_sharded_wrapper_rows_over_both_axes(mesh):
    """Rows over dp, then tp: the gather over tp leaves them sharded over dp."""
    x, w = programs.normal(0, (16, 8)), programs.normal(1, (8, 12))
    out, full = jax_flux.ag_matmul_sharded(
        x, (w, w), mesh=mesh, axis="tp", x_spec=P(("dp", "tp")), return_gathered=True
    )
    assert out[0].addressable_shards[0].data.shape == (8, 3)
    assert full.addressable_shards[0].data.shape == (8, 8)
    oracle.assert_close(np.asarray(out[1]), np.asarray(x @ w))


def test_sharded_wrapper_gather_axis_first_keeps_batch_on_the_next(mesh):
    x, w = programs.normal(0, (8, 4, 8)), programs.normal(1, (8, 12))
    out = jax_flux.ag_matmul_sharded(x, w, mesh=mesh, axis="tp", gather_axis=0)
    assert out.addressable_shards[0].data.shape == (8, 2, 3)
    oracle.assert_close(np.asarray(out), np.asarray(x @ w))


@pytest.mark.parametrize("num_w", [1, 2])
def test_sharded_wrapper_replicated_columns_give_a_replicated_result(num_w, mesh):
    """w not sharded over tp, as a small output head is: neither is the result."""
    x, w = programs.normal(0, (2, 16, 8)), programs.normal(1, (8, 12))
    specs = [P(None, "tp"), P()]  # the first weight is sharded, the last is not

    def call(x, w):
        y = jax_flux.ag_matmul_sharded(
            x, (w, 2 * w)[-num_w:], mesh=mesh, axis="tp", w_spec=specs[-num_w:]
        )
        return y[-1]

    out = jax.jit(call)(x, w)
    assert out.addressable_shards[0].data.shape == (1, 16, 12)
    oracle.assert_close(np.asarray(out), np.asarray(2 * x @ w))
    loss = lambda f: lambda x, w: jnp.sum(jnp.sin(f(x, w)))
    ours = jax.jit(jax.grad(loss(call), (0, 1)))(x, w)
    theirs = jax.grad(loss(lambda x, w: 2 * x @ w), (0, 1))(x, w)
    oracle.assert_close(jax.tree.map(np.asarray, ours), jax.tree.map(np.asarray, theirs))


def test_sharded_wrapper_tuple_axis(mesh):
    x, w = programs.normal(0, (16, 8)), programs.normal(1, (8, 12))
    out = jax_flux.matmul_rs_sharded(x, w, mesh=mesh, axis=("dp", "tp"))
    assert out.addressable_shards[0].data.shape == (2, 12)
    oracle.assert_close(np.asarray(out), np.asarray(x @ w))
