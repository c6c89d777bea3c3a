# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""jit, vmap, scan, remat, donation, export, and combinations with reverse mode."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jax_flux
from jax_flux import _internal
from tests import oracle
from tests.cpu import programs
from tests.cpu.programs import BY_HAND, OURS

SPECS = {
    "ag_matmul": (P(None, "tp"), P(None, "tp"), P(None, None, "tp")),
    "matmul_rs": (P(None, None, "tp"), P("tp"), P(None, "tp")),
    "matmul_ar": (P(None, None, "tp"), P("tp"), P()),
}
# What vmap maps: x, w, both.
IN_AXES = [(0, None), (None, 0), (0, 0), (1, None), (2, 1)]


def run(fn, specs, mesh, *args, check_vma=True):
    x_spec, w_spec, out_spec = specs
    return jax.shard_map(
        fn, mesh=mesh, in_specs=(x_spec, w_spec), out_specs=out_spec, check_vma=check_vma
    )(*args)


def operands(rows=16, k=8, n=16, batch=2):
    return programs.normal(0, (batch, rows, k)), programs.normal(1, (k, n))


@pytest.mark.parametrize("op", OURS)
@pytest.mark.parametrize("in_axes", IN_AXES, ids=str)
def test_vmap_inside_shard_map_equals_by_hand(op, in_axes, mesh, check_vma):
    """Everything replicated, so that any axis may be mapped; each rank's result is compared."""
    size = 3
    x_axis, w_axis = in_axes
    x_shape, w_shape = [8, 4], [4, 5]
    if x_axis is not None:
        x_shape.insert(x_axis, size)
    if w_axis is not None:
        w_shape.insert(w_axis, size)
    x, w = programs.normal(0, x_shape), programs.normal(1, w_shape)

    def both(table):
        def body(x, w):
            call = lambda x, w: table[op](x, w, axis_name="tp")
            y = jax.vmap(call, in_axes=in_axes)(x, w)
            return programs.vary(y, ("dp", "tp"))[None]

        fn = jax.shard_map(
            body, mesh=mesh, in_specs=(P(), P()), out_specs=P(("dp", "tp")), check_vma=check_vma
        )
        grads = jax.grad(lambda x, w: jnp.sum(jnp.sin(fn(x, w))), (0, 1))
        return jax.jit(lambda x, w: (fn(x, w), grads(x, w)))(x, w)

    oracle.assert_close(both(OURS), both(BY_HAND))


@pytest.mark.parametrize("op", OURS)
def test_vmap_of_batched_x_keeps_one_collective(op, tp8):
    x, w = operands(batch=3)
    fn = lambda x, w: jax.vmap(lambda x: OURS[op](x, w, axis_name="tp"))(x)
    counts = oracle.collective_counts(lambda x, w: run(fn, SPECS[op], tp8, x, w), x, w)
    assert sum(counts.values()) == 1


@pytest.mark.parametrize("op", OURS)
def test_vmap_over_the_ops_own_axis_name_takes_the_reference(op):
    x, w = programs.normal(0, (4, 8, 6)), programs.normal(1, (4, 6, 5))
    ours, hand = (
        jax.vmap(lambda x, w, table=table: table[op](x, w, axis_name="i"), axis_name="i")(x, w)
        for table in (OURS, BY_HAND)
    )
    oracle.assert_close(ours, hand)
    assert jax_flux.stats()[op]["fused"] == 0


@pytest.mark.parametrize("op", OURS)
def test_vmap_over_the_ops_own_axis_does_not_mind_a_mesh(op, tp8):
    x, w = programs.normal(0, (4, 8, 6)), programs.normal(1, (4, 6, 5))
    call = lambda x, w: OURS[op](x, w, axis_name="i")
    fn = jax.jit(lambda x, w: jax.vmap(call, axis_name="i")(x, w))
    want = fn(x, w)
    with jax.set_mesh(tp8):
        oracle.assert_close(fn(x, w), want)


def test_vmap_with_the_mesh_axis_name_shadows_it(tp8):
    """An inner vmap that takes the mesh axis's name is the axis that is meant."""
    x, w = programs.normal(0, (4, 8, 6)), programs.normal(1, (6, 5))
    body = lambda x, w: jax.vmap(
        lambda x: jax_flux.matmul_ar(x, w, axis_name="tp"), axis_name="tp", axis_size=4
    )(x)
    try:
        out = jax.shard_map(body, mesh=tp8, in_specs=(P(), P()), out_specs=P(), check_vma=False)(
            x, w
        )
    except (TypeError, ValueError, KeyError) as error:
        assert "tp" in str(error)  # JAX itself may refuse to shadow a mesh axis
    else:
        oracle.assert_close(out[0], (x @ w).sum(0))


@pytest.mark.parametrize("op", OURS)
def test_vmap_of_shard_map_equals_a_loop(op, tp8):
    x, w = operands()
    xs = jnp.stack([x, x + 1])
    fn = lambda x: run(lambda x, w: OURS[op](x, w, axis_name="tp"), SPECS[op], tp8, x, w)
    oracle.assert_close(jax.jit(jax.vmap(fn))(xs), jnp.stack([fn(xs[0]), fn(xs[1])]))


def layer(table, implementation=None):
    """x [b, m/W, k] -> the same shape: gather, multiply, activate, multiply, scatter."""

    def apply(x, up, down):
        kw = {} if table is BY_HAND else dict(implementation=implementation)
        h = table["ag_matmul"](x, up, axis_name="tp", activation="silu", **kw)
        return x + table["matmul_rs"](h, down, axis_name="tp", **kw)

    return apply


def weights(layers=3, k=8, hidden=16):
    scale = 0.3
    return (
        scale * programs.normal(1, (layers, k, hidden)),
        scale * programs.normal(2, (layers, hidden, k)),
    )


def stacked(apply, mesh, check_vma=True):
    """A scan over layers inside shard_map, as a transformer has."""

    def body(x, ups, downs):
        return lax.scan(lambda x, w: (apply(x, *w), None), x, (ups, downs))[0]

    return jax.shard_map(
        body,
        mesh=mesh,
        in_specs=(P("dp", "tp"), P(None, None, "tp"), P(None, "tp")),
        out_specs=P("dp", "tp"),
        check_vma=check_vma,
    )


@pytest.mark.parametrize("remat", [False, True], ids=["plain", "remat"])
def test_scan_gradients_equal_by_hand(remat, mesh, check_vma):
    x, (ups, downs) = programs.normal(0, (2, 16, 8)), weights()

    def grads(table):
        apply = jax.checkpoint(layer(table)) if remat else layer(table)
        fn = stacked(apply, mesh, check_vma)
        loss = lambda *a: jnp.sum(jnp.sin(fn(*a)))
        return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(x, ups, downs)

    oracle.assert_close(grads(OURS), grads(BY_HAND))


@pytest.mark.parametrize(
    "policy, gathering, scattering",
    [("everything_saveable", 2, 2), ("nothing_saveable", 3, 2), ("dots_saveable", 3, 2)],
)
def test_remat_policy_decides_what_is_repeated(policy, gathering, scattering, mesh):
    """Each op once forward and once in the other's backward; remat adds h, not the last result."""
    x, (ups, downs) = programs.normal(0, (2, 16, 8)), weights(layers=1)
    remat = jax.checkpoint(layer(OURS), policy=getattr(jax.checkpoint_policies, policy))
    fn = stacked(remat, mesh)
    loss = lambda *a: jnp.sum(jnp.sin(fn(*a)))
    text = str(jax.make_jaxpr(jax.grad(loss, (0, 1, 2)))(x, ups, downs))
    calls = [text.count(f"jax_flux_{op}[") for op in ("ag_matmul", "matmul_rs")]
    assert calls == [gathering, scattering]


def test_loop_of_calls_under_while_equals_python_loop(tp8):
    x, w = programs.normal(0, (16, 8)), 0.3 * programs.normal(1, (8, 8))

    def body(x, w):
        step = lambda i, x: jax_flux.matmul_rs(
            jax_flux.ag_matmul(x, w, axis_name="tp"), w.T, axis_name="tp"
        )
        return lax.fori_loop(0, 3, step, x)

    fn = jax.shard_map(body, mesh=tp8, in_specs=(P("tp"), P(None, "tp")), out_specs=P("tp"))
    want = x
    for _ in range(3):
        want = want @ w @ w.T
    oracle.assert_close(jax.jit(fn)(x, w), want)


@pytest.mark.parametrize("op", OURS)
def test_cond_with_a_replicated_predicate_equals_by_hand(op, tp8):
    x, w = operands()
    for flag in (True, False):
        fn = lambda x, w, f=flag: lax.cond(
            f,
            lambda x, w: OURS[op](x, w, axis_name="tp"),
            lambda x, w: 2 * OURS[op](x, w, axis_name="tp"),
            x,
            w,
        )
        out = run(fn, SPECS[op], tp8, x, w)
        oracle.assert_close(out, (1 if flag else 2) * (x @ w))


@pytest.mark.parametrize("op", OURS)
def test_donated_x_gives_the_same_result(op, tp8):
    x, w = operands(k=16)  # x and the result have one shape, so that donation can happen
    want = x @ w
    place = lambda a, spec: jax.device_put(a, jax.NamedSharding(tp8, spec))
    fn = jax.jit(
        lambda x, w: run(lambda x, w: OURS[op](x, w, axis_name="tp"), SPECS[op], tp8, x, w),
        donate_argnums=0,
    )
    x_spec, w_spec, _ = SPECS[op]
    donated = place(x, x_spec)
    oracle.assert_close(fn(donated, place(w, w_spec)), want)


@pytest.mark.parametrize("op", OURS)
def test_export_round_trip_gives_the_same_bits(op, tp8):
    x, w = operands()
    fn = jax.jit(
        lambda x, w: run(lambda x, w: OURS[op](x, w, axis_name="tp"), SPECS[op], tp8, x, w)
    )
    place = lambda a, spec: jax.device_put(a, jax.NamedSharding(tp8, spec))
    x, w = place(x, SPECS[op][0]), place(w, SPECS[op][1])
    exported = jax.export.export(fn, disabled_checks=jax_flux.export_safety_checks())(x, w)
    again = jax.export.deserialize(exported.serialize())
    oracle.assert_same_bits(again.call(x, w), fn(x, w))


def test_export_with_gradients_survives_serialisation(tp8):
    place = lambda a, spec: jax.device_put(a, jax.NamedSharding(tp8, spec))
    x, w = (place(a, s) for a, s in zip(operands(), SPECS["matmul_rs"], strict=False))
    fn = jax.jit(
        lambda x, w: run(
            lambda x, w: jax_flux.matmul_rs(x, w, axis_name="tp"), SPECS["matmul_rs"], tp8, x, w
        )
    )
    exported = jax.export.export(fn, disabled_checks=jax_flux.export_safety_checks())(x, w)
    again = jax.export.deserialize(exported.serialize(vjp_order=1))
    grads = jax.jit(jax.grad(lambda x, w: jnp.sum(again.call(x, w) ** 2), (0, 1)))(x, w)
    want = jax.grad(lambda x, w: jnp.sum((x @ w) ** 2), (0, 1))(*operands())
    oracle.assert_close(jax.tree.map(np.asarray, grads), jax.tree.map(np.asarray, want))


@pytest.mark.parametrize("op", OURS)
def test_repeated_runs_give_the_same_bits(op, tp8):
    x, w = operands(rows=64, k=64)
    fn = jax.jit(
        lambda x, w: run(lambda x, w: OURS[op](x, w, axis_name="tp"), SPECS[op], tp8, x, w)
    )
    first = fn(x, w)
    for _ in range(7):
        oracle.assert_same_bits(fn(x + 0, w + 0), first)


def test_vmap_of_the_copy_op_folds_into_the_batch(tp8):
    x = programs.normal(0, (8, 3, 2, 4))
    body = lambda x: jax.vmap(lambda x: _internal.all_gather_copy(x, "tp"), 0, 0)(x[0])[None]
    out = jax.shard_map(body, mesh=tp8, in_specs=P("tp"), out_specs=P("tp"))(x)
    want = jnp.moveaxis(x, 0, 1).reshape(3, 16, 4)
    oracle.assert_same_bits(out[5], want)


def test_linear_transpose_is_the_mirrored_op(tp8):
    x, w = operands()
    fn = lambda x: run(
        lambda x, w: jax_flux.ag_matmul(x, w, axis_name="tp", implementation="xla"),
        SPECS["ag_matmul"],
        tp8,
        x,
        w,
    )
    (dx,) = jax.linear_transpose(fn, x)(jnp.ones(fn(x).shape))
    oracle.assert_close(dx, jnp.ones((2, 16, 16)) @ w.T)


@pytest.mark.parametrize("op", OURS)
@pytest.mark.parametrize("in_axes", [(0, None), (None, 0), (0, 0)], ids=str)
def test_vmap_over_a_mesh_axis_equals_by_hand(op, in_axes, mesh, check_vma):
    """spmd_axis_name: the mapped operands alone come to vary over dp."""
    x, w = operands()
    x, w = (a if d is None else jnp.stack([a, a + 1]) for a, d in zip((x, w), in_axes, strict=True))

    def both(table):
        fn = lambda x, w: run(
            lambda x, w: table[op](x, w, axis_name="tp"), SPECS[op], mesh, x, w, check_vma=check_vma
        )
        grads = jax.grad(lambda x, w: jnp.sum(jnp.sin(fn(x, w))), (0, 1))
        mapped = lambda f: jax.jit(jax.vmap(f, in_axes=in_axes, spmd_axis_name="dp"))
        return mapped(fn)(x, w), mapped(grads)(x, w)

    oracle.assert_close(both(OURS), both(BY_HAND))
