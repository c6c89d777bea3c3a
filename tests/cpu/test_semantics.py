# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Forward results equal the by-hand lax programs; collectives, groups, edge cases."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

import jax_flux
from jax_flux import _internal, _topology
from tests import oracle
from tests.cpu import programs
from tests.cpu.programs import BY_HAND, OURS


@given(case=programs.cases(), check_vma=st.booleans())
def test_forward_any_case_equals_by_hand(case, check_vma):
    operands = case.operands()
    ours = jax.jit(programs.program(case, OURS, check_vma))(*operands)
    oracle.assert_close(ours, jax.jit(programs.program(case, BY_HAND, check_vma))(*operands))


@given(case=programs.cases(), implementation=st.sampled_from([None, "xla"]))
@settings(max_examples=6)
def test_forward_eager_equals_jit(case, implementation):
    operands = case.operands()
    fn = programs.program(case, OURS, True, implementation=implementation)
    oracle.assert_close(fn(*operands), jax.jit(fn)(*operands))


def sharded_op(op, mesh, **keywords):
    """The op with ordinary tensor-parallel specs over "tp", other axes unused."""
    specs = {
        "ag_matmul": (P("tp"), P(None, "tp"), P(None, "tp")),
        "matmul_rs": (P(None, "tp"), P("tp"), P("tp")),
        "matmul_ar": (P(None, "tp"), P("tp"), P()),
    }
    x_spec, w_spec, out_spec = specs[op]
    return jax.shard_map(
        lambda x, w: OURS[op](x, w, axis_name="tp", **keywords),
        mesh=mesh,
        in_specs=(x_spec, w_spec),
        out_specs=out_spec,
    )


@pytest.mark.parametrize("op", OURS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_forward_error_within_plain_dot(op, dtype, tp8):
    x, w = programs.normal(0, (64, 256), dtype), programs.normal(1, (256, 64), dtype)
    exact = oracle.f64(x) @ oracle.f64(w)
    out = sharded_op(op, tp8)(x, w)
    assert out.dtype == dtype
    # matmul_rs and matmul_ar add eight rounded partials, as psum of the hand-written dots does.
    hand = x @ w
    if op != "ag_matmul":
        hand = sharded_op(op, tp8, implementation="xla")(x, w)
    oracle.assert_no_worse(out, than=hand, exact=exact, slack=1.1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dot_of_16_bit_operands_accumulates_in_f32(dtype, tp8):
    k = 8192 + 64  # a 16-bit accumulator stops growing long before
    x, w = jnp.ones((8, k), dtype), jnp.full((k, 8), 0.25, dtype)
    out = sharded_op("ag_matmul", tp8)(x, w)
    np.testing.assert_array_equal(np.asarray(out, np.float32), float(jnp.asarray(k / 4, dtype)))


@pytest.mark.parametrize("op", OURS)
@pytest.mark.parametrize("out_dtype", ["float32", "bfloat16", "float16"])
def test_out_dtype_is_rounded_once(op, out_dtype, tp8):
    x, w = programs.normal(0, (16, 64), "bfloat16"), programs.normal(1, (64, 16), "bfloat16")
    out = sharded_op(op, tp8, out_dtype=out_dtype)(x, w)
    assert out.dtype == out_dtype
    bound = {"float32": 1e-6, "bfloat16": 2e-2, "float16": 2e-3}[out_dtype]
    assert oracle.error(out, oracle.f64(x) @ oracle.f64(w)) < bound


@pytest.mark.parametrize("op", OURS)
@pytest.mark.parametrize("dtype", ["int32", "complex64"])
def test_other_dtypes_take_the_reference(op, dtype, tp8):
    x = jnp.arange(16 * 8).reshape(16, 8).astype(dtype)
    out = sharded_op(op, tp8)(x, x.reshape(8, 16))
    np.testing.assert_array_equal(np.asarray(out), np.asarray(x) @ np.asarray(x.reshape(8, 16)))


@pytest.mark.parametrize("op", OURS)
def test_8_bit_floats_multiply_and_differentiate(op, tp8):
    """JAX promotes them to nothing; the values are exact in f32, and so are these sums."""
    x = jnp.asarray(np.arange(16 * 8).reshape(16, 8) % 5, "float8_e4m3fn")
    w = jnp.asarray(np.arange(8 * 16).reshape(8, 16) % 3, "float8_e5m2")
    fn = sharded_op(op, tp8, out_dtype=jnp.float32)
    exact = [a.astype(jnp.float32) for a in (x, w)]
    np.testing.assert_array_equal(fn(x, w), exact[0] @ exact[1])
    loss = lambda f: lambda x, w: jnp.sum(f(x, w) * (jnp.arange(16) % 2))
    ours = jax.grad(loss(fn), (0, 1))(x, w)
    want = jax.grad(loss(jnp.matmul), (0, 1))(*exact)
    assert [g.dtype for g in ours] == [x.dtype, w.dtype]
    for mine, theirs, a in zip(ours, want, (x, w), strict=True):
        np.testing.assert_array_equal(np.asarray(mine, np.float32), theirs.astype(a.dtype))
    same = sharded_op(op, tp8)(x, w.astype(x.dtype))
    assert same.dtype == x.dtype


EXPECTED_FORWARD = {
    "ag_matmul": {"all-gather": 1},
    "matmul_rs": {"reduce-scatter": 1},
    "matmul_ar": {"all-reduce": 1},
}


@pytest.mark.parametrize("op", OURS)
@pytest.mark.parametrize("implementation", [None, "xla"])
def test_forward_has_exactly_its_collective(op, implementation, tp8):
    fn = sharded_op(op, tp8, implementation=implementation)
    x, w = programs.normal(0, (16, 8)), programs.normal(1, (8, 16))
    assert oracle.collective_counts(fn, x, w) == EXPECTED_FORWARD[op]


def test_several_weights_share_one_gather(tp8):
    fn = jax.shard_map(
        lambda x, ws: jax_flux.ag_matmul(x, ws, axis_name="tp", return_gathered=True),
        mesh=tp8,
        in_specs=(P("tp"), P(None, "tp")),
        out_specs=((P(None, "tp"),) * 3, P("tp")),
    )
    x, w = programs.normal(0, (16, 8)), programs.normal(1, (8, 16))
    assert oracle.collective_counts(fn, x, (w, w + 1, w + 2)) == {"all-gather": 1}


@pytest.mark.parametrize("op", OURS)
@pytest.mark.parametrize(
    "axis_name, groups",
    [
        ("tp", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("dp", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        (("tp", "dp"), [[0, 4, 1, 5, 2, 6, 3, 7]]),
        (("dp", "tp"), [[0, 1, 2, 3, 4, 5, 6, 7]]),
    ],
)
def test_replica_groups_follow_the_mesh(op, axis_name, groups, mesh):
    fn = jax.shard_map(
        lambda x, w: OURS[op](x, w, axis_name=axis_name)[None],
        mesh=mesh,
        in_specs=(P(), P()),
        out_specs=P(("dp", "tp")),
        check_vma=False,
    )
    assert oracle.replica_groups(fn, jnp.ones((8, 4)), jnp.ones((4, 4))) == [groups]


@pytest.mark.parametrize("axis_name", ["tp", "dp", ("tp", "dp"), ("dp", "tp")], ids=str)
def test_groups_hold_the_ids_that_lax_gathers_in_axis_index_order(axis_name, mesh):
    """What the kernels are told equals what lax does: row = lax.all_gather of the logical ids."""

    def body():
        me = lax.axis_index(("dp", "tp"))
        return lax.all_gather(me, axis_name)[None], lax.axis_index(axis_name)[None]

    rows, index = jax.shard_map(
        body, mesh=mesh, in_specs=(), out_specs=P(("dp", "tp")), check_vma=False
    )()
    names = axis_name if isinstance(axis_name, tuple) else (axis_name,)
    groups = _topology.groups(("dp", "tp"), (2, 4), names)
    for device in range(8):
        (mine,) = (g for g in groups.tolist() if device in g)
        assert mine == np.asarray(rows[device]).tolist()
        assert mine[int(index[device])] == device


@pytest.mark.parametrize("op", OURS)
def test_axis_of_size_one_is_a_plain_matmul(op, check_vma):
    mesh = programs.make_mesh((8, 1), ("dp", "tp"))
    x, w = programs.normal(0, (4, 8)), programs.normal(1, (8, 6))
    fn = jax.shard_map(
        lambda x, w: OURS[op](x, w, axis_name="tp"),
        mesh=mesh,
        in_specs=(P(), P()),
        out_specs=P() if op == "matmul_ar" else P("tp"),
        check_vma=check_vma,
    )
    assert oracle.collective_counts(fn, x, w) == {}
    oracle.assert_close(fn(x, w), x @ w)


@pytest.mark.parametrize("op", OURS)
def test_axis_of_size_one_need_not_be_manual(op):
    mesh = programs.make_mesh((8, 1), ("dp", "tp"))
    x, w = programs.normal(0, (4, 8)), programs.normal(1, (8, 6))
    fn = jax.shard_map(
        lambda x, w: OURS[op](x, w, axis_name="tp"),
        mesh=mesh,
        in_specs=(P(), P()),
        out_specs=P(),
        axis_names={"dp"},
        check_vma=False,
    )
    oracle.assert_close(jax.jit(fn)(x, w), x @ w)


EMPTY = [(0, 3, 4), (2, 0, 4), (2, 8, 0)]


@pytest.mark.parametrize("op", OURS)
@pytest.mark.parametrize("shape", EMPTY, ids=str)
@pytest.mark.parametrize("n", [0, 5])
def test_empty_shards_give_zeros_plus_bias_without_a_collective(op, shape, n, tp8, check_vma):
    if op == "matmul_rs":
        shape = (shape[0], shape[1] * 8, shape[2])
    x, w, b = jnp.ones(shape), jnp.ones((shape[2], n)), programs.normal(0, (n,))
    fn = jax.shard_map(
        lambda x, w, b: OURS[op](x, w, bias=b, axis_name="tp")[None],
        mesh=tp8,
        in_specs=(P(), P(), P()),
        out_specs=P() if op == "matmul_ar" else P("tp"),
        check_vma=check_vma,
    )
    out = fn(x, w, b)
    rows = {"ag_matmul": shape[1] * 8, "matmul_rs": shape[1] // 8, "matmul_ar": shape[1]}[op]
    assert out.shape[1:] == (shape[0], rows, n)
    np.testing.assert_array_equal(np.asarray(out), np.broadcast_to(np.asarray(b), out.shape))
    assert oracle.collective_counts(fn, x, w, b) == {}
    grads = jax.grad(lambda *a: fn(*a).sum(), (0, 1, 2))(x, w, b)
    assert [g.shape for g in grads] == [x.shape, w.shape, b.shape]


def test_empty_columns_still_return_the_gathered_x(tp8):
    fn = jax.shard_map(
        lambda x, w: jax_flux.ag_matmul(x, w, axis_name="tp", return_gathered=True)[1],
        mesh=tp8,
        in_specs=(P("tp"), P()),
        out_specs=P("tp"),
    )
    x = programs.normal(0, (8, 4))
    np.testing.assert_array_equal(fn(x, jnp.ones((4, 0)))[:8], x)


def test_matmul_ar_takes_a_vector(tp8):
    x, w = programs.normal(0, (8,)), programs.normal(1, (8, 5))
    fn = jax.shard_map(
        lambda x, w: jax_flux.matmul_ar(x, w, axis_name="tp"),
        mesh=tp8,
        in_specs=(P("tp"), P("tp")),
        out_specs=P(),
    )
    oracle.assert_close(fn(x, w), x @ w)


def test_matmul_ar_result_does_not_vary_and_bias_counts_once(mesh):
    x, w, b = programs.normal(0, (4, 8)), programs.normal(1, (8, 5)), programs.normal(2, (5,))

    def body(x, w, b):
        y = jax_flux.matmul_ar(x, w, axis_name="tp", bias=b)
        assert jax.typeof(y).mat.varying == frozenset()
        return y

    fn = jax.shard_map(body, mesh=mesh, in_specs=(P(None, "tp"), P("tp"), P()), out_specs=P())
    oracle.assert_close(fn(x, w, b), x @ w + b)


def test_result_varies_over_all_that_operands_vary_over(mesh):
    def body(x, w):
        y = jax_flux.ag_matmul(x, w, axis_name="tp")
        assert jax.typeof(y).mat.varying == {"dp", "tp"}
        return y

    jax.shard_map(body, mesh=mesh, in_specs=(P("dp"), P(None, "tp")), out_specs=P(("dp", "tp")))(
        jnp.ones((8, 4)), jnp.ones((4, 8))
    )


def test_precision_context_at_the_call_is_kept(tp8):
    """The lowering runs after the context manager is left; the dot must still carry its value."""

    def body(x, w):
        with jax.default_matmul_precision("highest"):
            return jax_flux.ag_matmul(x, w, axis_name="tp")

    fn = jax.shard_map(body, mesh=tp8, in_specs=(P("tp"), P(None, "tp")), out_specs=P(None, "tp"))
    text = jax.jit(fn).lower(jnp.ones((8, 4)), jnp.ones((4, 8))).as_text()
    assert "precision = [HIGHEST, HIGHEST]" in text


@given(
    lead=st.lists(st.integers(1, 3), max_size=2),
    m=st.integers(0, 3),
    k=st.integers(1, 4),
    dtype=st.sampled_from(["float32", "int8", "bool"]),
    axis_name=st.sampled_from(["tp", "dp", ("tp", "dp")]),
)
@settings(max_examples=10)
def test_all_gather_copy_equals_lax(lead, m, k, dtype, axis_name):
    mesh = programs.make_mesh((2, 4), ("dp", "tp"))
    x = programs.normal(0, (8, *lead, m, k)) > 0
    hand = lambda x: lax.all_gather(x, axis_name, axis=x.ndim - 2, tiled=True)
    run = lambda fn: jax.shard_map(
        lambda x: fn(x[0])[None], mesh=mesh, in_specs=P(("dp", "tp")), out_specs=P(("dp", "tp"))
    )(x.astype(dtype))
    ours = run(lambda x: _internal.all_gather_copy(x, axis_name))
    if m:
        oracle.assert_same_bits(ours, run(hand))
    else:
        assert ours.size == 0


@pytest.mark.parametrize("op", OURS)
@pytest.mark.parametrize("implementation", [None, "xla"])
def test_operands_that_vary_over_a_part_of_a_tuple_axis_equal_by_hand(op, implementation):
    case = programs.Case(
        op, (2, 2, 2), ("a", "b", "c"), ("a", "b"), (8, 4), 0, 3, x_axes=("a",), w_axes=("c",)
    )
    ours = programs.program(case, OURS, True, implementation=implementation)
    oracle.assert_close(
        ours(*case.operands()), programs.program(case, BY_HAND, True)(*case.operands())
    )
