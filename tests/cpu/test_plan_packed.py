# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which calls of few rows take a kernel of packed tiles."""

from __future__ import annotations

import pytest

import jax_flux
from jax_flux import _plan
from jax_flux._plan import Installed, Instance
from tests.cpu.plans import KERNELS, but, decide


def packed(op, tile=(128, 128), cluster=(1, 1), split=2):
    name = f"{op}_pack_{tile[0]}x{tile[1]}_c{cluster[0]}x{cluster[1]}_s{split}"
    return Instance(name, op, "bfloat16", "nn", tile, cluster, split=split, packed=True)


WITH_PACKED = Installed(
    (*KERNELS.instances, *map(packed, _plan.FUSED_OPS), packed("ag_matmul", (128, 192)))
)


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("op, n, k", [("ag_matmul", 6144, 12288), ("matmul_rs", 12288, 6144)])
def test_few_rows_take_a_kernel_of_packed_tiles(op, n, k, world):
    for m in (16, 64, 128):
        problem = but(op=op, m=m // world, n=(n,), k=(k,), world=world)
        decision = decide(problem=problem, installed=WITH_PACKED, implementation=None)
        assert decision.implementation == "fused", decision
        assert "_pack_" in decision.plan.instance
    many = but(op=op, m=2048, n=(n,), k=(k,), world=world)
    assert "_pack_" not in decide(problem=many, installed=WITH_PACKED).plan.instance


@pytest.mark.parametrize("op, n, k", [("ag_matmul", 6144, 12288), ("matmul_rs", 12288, 6144)])
def test_more_rows_than_were_measured_are_not_packed_unless_named(op, n, k):
    problem = but(op=op, m=128, n=(n,), k=(k,), world=8)
    assert "_pack_" not in decide(problem=problem, installed=WITH_PACKED).plan.instance
    named = jax_flux.Config(tile=(128, 128), cluster=(1, 1))
    forced = decide(problem=problem, installed=WITH_PACKED, config=named, implementation="fused")
    assert "_pack_" in forced.plan.instance


def test_few_rows_compare_packed_kernels_alone_with_xla():
    """A kernel of mostly padding, predicted a little faster, must not send the call to XLA."""
    problem = but(op="matmul_rs", m=63, n=(28672,), k=(512,), world=8)
    assert "_pack_" in decide(problem=problem, installed=WITH_PACKED).plan.instance


def test_segments_longer_than_a_tile_are_not_packed():
    config = jax_flux.Config(tile=(128, 128), cluster=(1, 1))
    fits = decide(problem=but(m=128), config=config, installed=WITH_PACKED, implementation="fused")
    assert "_pack_" in fits.plan.instance
    too_long = decide(problem=but(m=129), config=config, installed=WITH_PACKED)
    assert too_long.implementation == "xla"
    assert "no ag_matmul kernel" in too_long.reason
