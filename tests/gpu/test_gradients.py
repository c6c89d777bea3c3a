# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Gradients of the fused GEMMs on ranks: dx by the mirrored kernel, dw by XLA, as exact as XLA."""

import pytest

from tests.gpu.test_numerics import ag, check, rs

pytestmark = pytest.mark.gpus(1)

CASES = {
    "ag": ag(129, 200, 264, lead=[2]),
    "ag-nt": ag(96, 136, 328, transpose_w=True),
    "ag-two-weights": ag(130, [136, 72], 264),
    "ag-two-weights-nt": ag(65, [72, 128], 200, transpose_w=True),
    "ag-bias-gelu": ag(130, [136, 72], 264, bias=True, activation="gelu"),
    "ag-silu": ag(96, 104, 88, activation="silu"),
    "ag-bias": ag(33, 104, 88, bias=True, transpose_w=True),
    "rs-bias": rs(130, 200, 264, bias=True),
    "ag-f16": ag(130, [136, 72], 264, dtype="float16"),
    "rs": rs(129, 200, 264, lead=[2]),
    "rs-nt": rs(96, 136, 328, transpose_w=True),
    "rs-f16": rs(96, 136, 328, transpose_w=True, dtype="float16"),
    "rs-inner-axis": rs(33, 200, 72, lead=[2], rest=[3]),
}


def operands_of(case):
    kinds = ("dw", "dbias") if case.get("bias") else ("dw",)
    return ["dx", *[f"{kind}{i}" for kind in kinds for i in range(len(case["n"]))]]


def test_gradients_are_fused_and_as_exact_as_xla(pool, world):
    answers = pool(world).run("gradients", cases=list(CASES.values()), timeout_s=300)
    names = [f"{name}/{operand}" for name, case in CASES.items() for operand in operands_of(case)]
    for answer in answers:
        # A call's own forward is dead code here, unless XLA keeps it: what is left is dx.
        assert answer["xla_calls"] == {"ag_matmul": 0, "matmul_rs": 0}
        assert answer["fused_calls"]["matmul_rs"] >= 4, answer["fused_calls"]
        assert answer["fused_calls"]["ag_matmul"] >= 3, answer["fused_calls"]
        answer.update(xla=[answer["xla"]], fused=[answer["fused"]])
    check(answers, names)


def test_gradients_of_a_rematerialised_scan(pool, world):
    answers = pool(world).run("layers", timeout_s=180)
    for answer in answers:
        answer.update(xla=[answer["xla"]], fused=[answer["fused"]])
    check(answers, ["y", "dx", "d ups", "d downs"])
