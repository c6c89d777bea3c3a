# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Forward-mode differentiation is refused in words, and works through XLA."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from jax_flux import errors
from tests.cpu.messages import OPS, raises
from tests.cpu.programs import OURS


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("how", ["jvp", "jacfwd", "shard_map"])
def test_eager_forward_mode_names_the_reference(op, how, mesh):
    def inner(x):
        return OURS[op](x, jnp.ones((4, 8)), axis_name="tp")

    specs = dict(mesh=mesh, in_specs=P(), out_specs=P(("dp", "tp")), check_vma=False)
    x = jnp.ones((8, 4))
    outer = jax.shard_map(inner, **specs)
    calls = {
        "jvp": lambda: jax.jvp(outer, (x,), (x,)),
        "jacfwd": lambda: jax.jacfwd(outer)(x),
        "shard_map": lambda: jax.shard_map(lambda x: jax.jvp(inner, (x,), (x,))[1], **specs)(x),
    }
    with raises(
        errors.ForwardModeError,
        op,
        "reverse rule only",
        'implementation="xla"',
        "jax_flux.reference",
    ):
        calls[how]()


@pytest.mark.parametrize("op", ["ag_matmul", "matmul_rs"])
def test_forward_over_reverse_names_reverse_over_reverse(op, mesh):
    fn = jax.shard_map(
        lambda x: OURS[op](x, jnp.ones((4, 8)), axis_name="tp"),
        mesh=mesh,
        in_specs=P(),
        out_specs=P(("dp", "tp")),
        check_vma=False,
    )
    with raises(errors.ForwardModeError, "jax.hessian", "jax.jacrev of jax.grad"):
        jax.hessian(lambda x: jnp.sum(fn(x) ** 2))(jnp.ones((8, 4)))


@pytest.mark.parametrize("op", OPS)
def test_forward_mode_under_jit_is_refused_by_jax(op, mesh):
    fn = jax.jit(
        jax.shard_map(
            lambda x: OURS[op](x, jnp.ones((4, 8)), axis_name="tp"),
            mesh=mesh,
            in_specs=P(),
            out_specs=P(("dp", "tp")),
            check_vma=False,
        )
    )
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(fn, (jnp.ones((8, 4)),), (jnp.ones((8, 4)),))


@pytest.mark.parametrize("op", OPS)
def test_forward_mode_of_the_xla_implementation_works(op, mesh):
    fn = jax.shard_map(
        lambda x: OURS[op](x, jnp.ones((4, 8)), axis_name="tp", implementation="xla"),
        mesh=mesh,
        in_specs=P(),
        out_specs=P(("dp", "tp")),
        check_vma=False,
    )
    x = jnp.ones((8, 4))
    y, tangent = jax.jvp(fn, (x,), (x,))
    assert (y == tangent).all()
