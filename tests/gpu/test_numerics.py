# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The fused GEMMs through the public API, on ranks: as exact as XLA's own, and really fused.

Each sweep is eight executions with fresh operands, results that start as NaN, and a late rank.
"""

import math

import pytest

from tests.conftest import gpus
from tests.gpu.gemm_operands import Case

pytestmark = pytest.mark.gpus(1)

SLACK = 1.1  # relative Frobenius error against float64, as a multiple of XLA's in the same dtype


def ag(m, n, k, **rest):
    return dict(op="ag_matmul", m=m, n=n if isinstance(n, list) else [n], k=k, **rest)


def rs(m, n, k, **rest):
    return dict(op="matmul_rs", m=m, n=[n], k=k, **rest)


# Sizes per rank. Rows: one, fewer than any tile, one more than a tile, many tiles with a rest; n
# and k down to 8, the alignment rule; batches in front of the axis and rows behind it.
CASES = {
    "ag-256": ag(256, 384, 512),
    "rs-256": rs(256, 384, 512),
    "ag-1-row": ag(1, 264, 136),
    "rs-1-row": rs(1, 264, 136),
    "ag-least": ag(7, 8, 8),
    "rs-least": rs(7, 8, 8),
    "ag-129": ag(129, 200, 264, lead=[2]),
    "rs-129": rs(129, 200, 264, lead=[2]),
    "ag-1000": ag(1000, 328, 520),
    "rs-1000": rs(1000, 328, 520),
    "ag-nt": ag(300, 136, 328, transpose_w=True),
    "rs-nt": rs(300, 136, 328, transpose_w=True),
    "ag-first-axis": ag(40, 72, 96, rest=[3]),
    "rs-first-axis": rs(40, 72, 96, rest=[3]),
    "ag-inner-axis": ag(33, 200, 72, lead=[2, 3], rest=[2], transpose_w=True),
    "rs-inner-axis": rs(33, 200, 72, lead=[2, 3], rest=[2], transpose_w=True),
    "ag-three-weights": ag(130, [136, 8, 392], 640),
    "ag-three-weights-nt": ag(65, [264, 200, 16], 200, lead=[2], transpose_w=True),
    "ag-six-weights": ag(40, [8, 200, 384, 16, 392, 72], 136, lead=[2]),
    # Two launches of one gather, whose sizes alone would cut the shard differently.
    "ag-five-weights-one-small": ag(256, [4096, 4096, 4096, 4096, 200], 512),
    "ag-bias-relu": ag(96, 104, 88, bias=True, activation="relu"),
    "ag-bias-gelu": ag(130, [136, 8, 392], 640, lead=[2], bias=True, activation="gelu"),
    "ag-silu-nt": ag(130, 200, 264, transpose_w=True, activation="silu"),
    "ag-f16-bias-gelu": ag(130, 264, 136, bias=True, activation="gelu", dtype="float16"),
    "rs-bias": rs(96, 104, 88, bias=True),
    "rs-bias-nt": rs(300, 136, 328, lead=[2], transpose_w=True, bias=True),
    "rs-f16-bias": rs(130, 136, 200, bias=True, dtype="float16"),
    "ag-f16": ag(130, [136, 264], 200, lead=[2], dtype="float16"),
    "ag-f16-nt": ag(1, 264, 136, transpose_w=True, dtype="float16"),
    "rs-f16": rs(130, 136, 200, lead=[2], dtype="float16"),
    "rs-f16-nt": rs(1, 264, 136, transpose_w=True, dtype="float16"),
    "ag-deep": ag(64, 64, 4096),
    "rs-wide": rs(64, 4096, 64),
}

# Every other kernel of the table (tests/cpu/test_gpu_cases.py holds it to that), which the planner
# takes for larger sizes only; with so few SMs that each cluster has several tiles. 3 and 4 blocks
# of k fit the stages of shared memory at once.
TALL, FLAT = {"cluster": [2, 1], "sm_margin": 64}, {"cluster": [1, 2], "sm_margin": 64}
WIDE = {"tile": [128, 256], **TALL}
PINGPONG = {"tile": [128, 192]}
FORCED = {
    "ag-tall-k192": ag(520, 1544, 192, **PINGPONG, **TALL),
    "ag-tall-k256": ag(520, [1544, 776], 256, **PINGPONG, **TALL),
    "ag-tall-nt-k256": ag(520, 1544, 256, transpose_w=True, **PINGPONG, **TALL),
    "ag-flat-k256": ag(520, 1544, 256, **PINGPONG, **FLAT),
    "ag-flat-nt-k192": ag(520, 1544, 192, transpose_w=True, **PINGPONG, **FLAT),
    "ag-tall-four-weights": ag(520, [776, 8, 392, 200], 256, bias=True, **PINGPONG, **TALL),
    "ag-wide-two-weights": ag(520, [264, 1000], 328, **WIDE),
    "ag-wide": ag(520, 1544, 328, **WIDE),
    "ag-wide-nt": ag(520, [1544, 264], 328, transpose_w=True, **WIDE),
    "rs-tall-k192": rs(520, 1544, 192, **PINGPONG, **TALL),
    "rs-tall-k256": rs(520, 1544, 256, **PINGPONG, **TALL),
    "rs-tall-nt-k256": rs(520, 1544, 256, transpose_w=True, **PINGPONG, **TALL),
    "rs-flat-k256": rs(520, 1544, 256, **PINGPONG, **FLAT),
    "rs-flat-nt-k192": rs(520, 1544, 192, transpose_w=True, **PINGPONG, **FLAT),
    "rs-wide": rs(520, 1544, 328, **WIDE),
    "rs-wide-nt": rs(520, 1544, 328, transpose_w=True, **WIDE),
    "ag-wide-bias-silu": ag(520, 1544, 328, bias=True, activation="silu", **WIDE),
    "ag-flat-bias-gelu": ag(520, 1544, 256, bias=True, activation="gelu", **PINGPONG, **FLAT),
    "rs-wide-bias": rs(520, 1544, 328, bias=True, **WIDE),
    "rs-flat-bias": rs(520, 1544, 256, bias=True, **PINGPONG, **FLAT),
    "ag-f16-tall": ag(520, 1544, 256, dtype="float16", **PINGPONG, **TALL),
    "ag-f16-flat": ag(520, [1544, 776], 256, dtype="float16", **PINGPONG, **FLAT),
    "ag-f16-flat-nt": ag(520, 1544, 192, transpose_w=True, dtype="float16", **PINGPONG, **FLAT),
    "rs-f16-tall": rs(520, 1544, 256, dtype="float16", **PINGPONG, **TALL),
    "rs-f16-flat": rs(520, 1544, 256, dtype="float16", **PINGPONG, **FLAT),
    "rs-f16-flat-nt": rs(520, 1544, 192, transpose_w=True, dtype="float16", **PINGPONG, **FLAT),
}

# The kernels of packed tiles, which hold whole segments of several ranks below each other: every
# height from 8 rows on, full and ragged, with several tiles per cluster.
SPLIT = {"tile": [128, 128], "cluster": [1, 1], "sm_margin": 64}
SPLIT_WIDE = {"tile": [128, 192], "cluster": [1, 1], "sm_margin": 64}
WHOLE = "sm90_bf16_nn_128x192x64_co_c2x1_s1_pack"  # its tile and cluster are another's too
PACKED = (
    {
        f"{name}-{m}-{tile['tile'][1]}": call(m, n, k, **rest, **tile)
        for name, call in (("ag", ag), ("rs", rs))
        for m, n, k, rest, tile in (
            (1, 264, 136, {}, SPLIT),
            (7, 1544, 64, dict(lead=[2]), SPLIT),
            (8, 1544, 520, {}, SPLIT_WIDE),
            (9, 200, 264, dict(lead=[3], bias=True), SPLIT),
            (17, 2056, 200, dict(transpose_w=True), SPLIT),
            (32, 1544, 1032, {}, SPLIT_WIDE),
            (33, 776, 328, dict(rest=[1], lead=[2], transpose_w=True), SPLIT_WIDE),
            (63, 1544, 192, dict(bias=True), SPLIT_WIDE),
            (64, 3080, 256, {}, SPLIT),
            (65, 1544, 264, dict(lead=[2]), SPLIT),
            (128, 1544, 520, {}, SPLIT_WIDE),
        )
    }
    | {
        f"{name}-whole-depth-{m}": call(m, n, k, **rest, instance=f"{WHOLE}_{name}", sm_margin=64)
        for name, call in (("ag", ag), ("rs", rs))
        for m, n, k, rest in (
            (9, 1544, 328, dict(lead=[2])),
            (64, 1544, 192, dict(bias=True)),
            (65, 2056, 264, {}),
            (128, 1544, 520, {}),
        )
    }
    | {
        "ag-packed-silu": ag(24, [392, 136], 328, bias=True, activation="silu", **SPLIT),
        "ag-packed-gate-up-8": ag(8, [1544, 1544], 328, **SPLIT),
        "ag-packed-gate-up-64": ag(64, [776, 1544, 8], 264, **SPLIT_WIDE),
    }
)


# What a group of one rank runs.
ONE_RANK = {
    name: CASES[name]
    for name in (
        *("ag-129", "rs-129", "ag-three-weights", "rs-nt", "ag-bias-gelu", "rs-bias"),
        *("ag-f16", "rs-f16-bias", "ag-f16-nt", "rs-f16-nt"),
    )
}

# One process with all these GPUs.
ONE_PROCESS = [pytest.param(n, marks=pytest.mark.gpus(n), id=f"tp{n}") for n in (2, 4, 8)]


def relative(rows):
    """Relative Frobenius error of one result over all ranks."""
    return math.sqrt(sum(row[0] for row in rows) / sum(row[1] for row in rows))


def check(answers, names):
    """Every result is finite and within SLACK of XLA's on the same data; all failures at once."""
    wrong = {}
    for run in range(len(answers[0]["fused"])):
        for i, name in enumerate(names):
            allowed = SLACK * relative([answer["xla"][run][i] for answer in answers])
            rows = [answer["fused"][run][i] for answer in answers]
            broken = sum(row[2] for row in rows)
            if broken or not relative(rows) <= allowed:
                wrong[f"{name}, run {run}"] = (broken, relative(rows), allowed)
    assert not wrong, wrong


def results(cases):
    """Name of each result in a sweep's order."""
    return [f"{name}/{i}" for name, case in cases.items() for i in range(len(case["n"]))]


def launches(cases, world):
    """GEMMs of a sweep's run: up to four weights are one, of packed tiles each is its own."""
    total = 0
    for case in map(Case.parse, cases.values()):
        if not case.gathers:
            total += 1
            continue
        packed = "_pack_" in case.planned(world, gpus()[0][0])
        total += len(case.n) if packed else math.ceil(len(case.n) / 4)
    return total


def check_sweep(answers, cases):
    print("seconds of rank 0:", answers[0]["seconds"])
    check(answers, results(cases))
    for answer in answers:
        assert answer["unequal"] == 0, "executions differ in their bits"
        assert answer["unpoisoned"] == 0, "a result did not start as NaN"
        assert answer["hlo"] == {"own": len(cases), "xla": 0}


def test_gemms_any_shape_as_exact_as_xla(pool, world):
    answers = pool(world).run("sweep", cases=list(CASES.values()), timeout_s=300)
    check_sweep(answers, CASES)
    for answer in answers:
        # Other buffers every time: XLA captures again and updates its graph.
        assert answer["launches"]["captured"] > 0, answer["launches"]


@pytest.mark.parametrize("world", [2, 3], indirect=True, ids=["tp2", "tp3"])
def test_every_kernel_with_more_tiles_than_clusters(pool, world):
    answers = pool(world).run("sweep", cases=list(FORCED.values()), timeout_s=300)
    check_sweep(answers, FORCED)


@pytest.mark.parametrize("world", [2, 3], indirect=True, ids=["tp2", "tp3"])
def test_packed_tiles_of_few_rows(pool, world):
    answers = pool(world).run("sweep", cases=list(PACKED.values()), timeout_s=300)
    check_sweep(answers, PACKED)


@pytest.mark.parametrize(
    "mesh, names, axis",
    [
        ([2, 2], ["dp", "tp"], ["tp"]),
        ([2, 2], ["tp", "dp"], ["tp"]),
        ([2, 2], ["a", "b"], ["a", "b"]),
        ([2, 2], ["a", "b"], ["b", "a"]),
    ],
    ids=["inner", "outer", "tuple", "reversed-tuple"],
)
def test_gemms_on_part_of_a_mesh(pool, mesh, names, axis):
    cases = {name: CASES[name] for name in ("ag-129", "rs-129", "ag-three-weights", "rs-nt")}
    answers = pool(4).run(
        "sweep", cases=list(cases.values()), mesh=mesh, names=names, axis=axis, timeout_s=180
    )
    check_sweep(answers, cases)


@pytest.mark.parametrize("count", ONE_PROCESS)
def test_gemms_one_process_several_gpus(pool, count):
    """XLA drives all ranks from threads of one process: plans, windows and launches per device."""
    answers = pool(count, one_process=True).run("sweep", cases=list(CASES.values()), timeout_s=300)
    check_sweep(answers, CASES)


def test_gemms_of_one_rank_run_the_plain_kernel(pool):
    answers = pool(1).run("sweep", cases=list(ONE_RANK.values()), timeout_s=180)
    check_sweep(answers, ONE_RANK)


@pytest.mark.parametrize(
    "case, reason",
    [
        (ag(16, 9, 16), "n = 9 is not a multiple of 8"),
        (ag(16, [16, 12], 16), "n = 12 is not a multiple of 8"),
        (rs(16, 16, 12), "k = 12 is not a multiple of 8"),
        (rs(16, 16, 16, dtype="float16"), "16 rows per rank are fewer than 64"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
@pytest.mark.filterwarnings("ignore")
def test_what_no_kernel_computes_takes_the_reference(pool, case, reason):
    answers = pool(2).run("fallback", given=case)
    for answer in answers:
        assert answer["reasons"] and reason in answer["reasons"][0]
        for error, norm, broken in answer["squares"]:
            assert broken == 0 and math.sqrt(error / norm) < 1e-2
        if "rows" in reason:  # can run, so a demand is met
            assert answer["complaint"] == "" and answer["launches"] > 0
        else:
            assert reason in answer["complaint"] and answer["launches"] == 0
