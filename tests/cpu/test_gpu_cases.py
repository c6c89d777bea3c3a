# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The sweeps of tests/gpu leave out no kernel of the library: asked of the planner alone."""

from __future__ import annotations

import pytest

from jax_flux import _ffi
from tests.gpu import test_numerics, test_sanitizer
from tests.gpu.gemm_operands import Case

SWEEPS = (test_numerics.CASES, test_numerics.FORCED, test_numerics.PACKED)
FUSED = [case for sweep in SWEEPS for case in sweep.values()]
ONE_RANK = [*test_numerics.ONE_RANK.values()]


@pytest.fixture
def library():
    found = _ffi.compiled()
    if found.problem is not None:
        pytest.skip(f"needs the native library (make native): {found.problem}")
    return found


@pytest.mark.parametrize(
    "world, ops, cases",
    [
        (1, ("plain",), ONE_RANK),
        (2, ("ag_matmul", "matmul_rs"), FUSED),
        (3, ("ag_matmul", "matmul_rs"), FUSED),
    ],
    ids=["plain", "tp2", "tp3"],
)
def test_sweeps_run_every_kernel(world, ops, cases, library):
    compiled = {kernel.name for kernel in library.instances if kernel.op in ops}
    assert compiled
    assert {Case.parse(case).planned(world, "NVIDIA H200") for case in cases} == compiled


def test_the_sanitizer_sees_every_kernel(library):
    names = [kernel.name for kernel in library.instances if kernel.name.startswith("sm90_")]
    product = [name for name in names if "_traced_" not in name]
    left_out = [name for name in product if not any(part in name for part in test_sanitizer.PARTS)]
    unused = [part for part in test_sanitizer.PARTS if not any(part in name for name in product)]
    assert product and (left_out, unused) == ([], [])
