# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""ag_matmul whose shards copy engines carry: as exact, as replayable and as loud as by the kernel.

On ranks that share a GPU the copies stay on that GPU, so nothing here measures a link.
"""

import re

import pytest

from tests.gpu.test_numerics import FLAT, TALL, ag, check_sweep, launches, relative, rs

pytestmark = pytest.mark.gpus(1)


def copied(*sizes, **rest):
    return ag(*sizes, transport="copy", **rest)


# Both transports and matmul_rs in one program: they share epochs and entries, and nothing else.
MIXED = {
    "copy-256": copied(256, 384, 512),
    "tma-256": ag(256, 384, 512),
    "copy-1-row": copied(1, 264, 136),
    "rs-129": rs(129, 200, 264, lead=[2]),
    "copy-129": copied(129, 200, 264, lead=[2]),
    "copy-least": copied(7, 8, 8),
    "copy-nt": copied(300, 136, 328, transpose_w=True),
    "copy-inner-axis": copied(33, 200, 72, lead=[2, 3], rest=[2]),
    "tma-three-weights": ag(130, [136, 8, 392], 640),
    "copy-three-weights": copied(130, [136, 8, 392], 640),
    "copy-bias-relu": copied(96, 104, 88, bias=True, activation="relu"),
    # Four pieces of 4 MiB; two through two batches.
    "copy-four-pieces": copied(2048, 136, 4096),
    "copy-pieces-through-batches": copied(1500, 72, 2048, lead=[2]),
    "rs-nt": rs(300, 136, 328, transpose_w=True),
    "copy-tall": copied(520, 1544, 256, tile=[128, 192], **TALL),
    "copy-flat": copied(520, [1544, 776], 256, tile=[128, 192], **FLAT),
}


# More tiles than clusters fit: the kernel holds all SMs that it may while it waits for the copies.
FULL = {"copy-every-sm": copied(2048, 1544, 2048), "tma-every-sm": ag(2048, 1544, 2048)}


@pytest.mark.parametrize("world", [2, 3, 8], indirect=True, ids=["tp2", "tp3", "tp8"])
def test_copied_and_pushed_gathers_in_one_program_as_exact_as_xla(pool, world):
    answers = pool(world).run("sweep", cases=list(MIXED.values()), timeout_s=300)
    check_sweep(answers, MIXED)
    for answer in answers:
        assert answer["launches"]["captured"] > 0, answer["launches"]


@pytest.mark.parametrize("world", [2, 3], indirect=True, ids=["tp2", "tp3"])
def test_copied_gather_beside_a_kernel_on_every_sm(pool, world):
    answers = pool(world).run("sweep", cases=list(FULL.values()), timeout_s=300)
    check_sweep(answers, FULL)


@pytest.mark.parametrize("world", [2, 3], indirect=True, ids=["tp2", "tp3"])
def test_copied_gathers_two_hundred_replays_with_equal_bits(pool, world):
    cases = [copied(129, [200, 72], 264), rs(257, 200, 136), copied(2048, 136, 2048)]
    answers = pool(world).run("repeat", cases=cases, runs=200, timeout_s=180)
    for answer in answers:
        assert answer["unequal"] == 0
        # Five launches a run, gates included, if each were launched.
        assert 0 < answer["launches"]["captured"] < 5 * 200 / 2, answer["launches"]


def test_copied_gathers_without_command_buffers_launch_every_run(pool):
    names = ("copy-256", "tma-256", "rs-129", "copy-three-weights", "copy-four-pieces")
    cases = {name: MIXED[name] for name in names}
    answers = pool(2, flags="op-by-op").run("sweep", cases=list(cases.values()), timeout_s=180)
    check_sweep(answers, cases)
    gates = sum(name.startswith("copy") for name in names)
    for answer in answers:
        assert answer["launches"] == {"direct": 8 * (launches(cases, 2) + gates), "captured": 0}


@pytest.mark.parametrize("world", [2, 3], indirect=True, ids=["tp2", "tp3"])
def test_copied_gathers_growth_old_executable_keeps_its_workspace(pool, world):
    small, large = [copied(64, 72, 64), ag(64, 72, 64)], [copied(1024, 72, 2048), rs(64, 72, 64)]
    order = [0] * 6 + [1] * 5 + [0] * 3 + [1, 0] * 3
    answers = pool(world).run("in_turns", programs=[small, large], order=order, timeout_s=180)
    assert all(answer["unequal"] == 0 for answer in answers)
    for run in range(len(answers[0]["errors"])):
        for i in range(2):
            rows = [answer["errors"][run][i] for answer in answers]
            assert not any(row[2] for row in rows) and relative(rows) < 5e-3, (run, i, rows)


def test_missing_rank_is_named_at_the_gate(fresh):
    ranks = fresh(2, JAX_FLUX_WARN_S="1", JAX_FLUX_TIMEOUT_S="4")
    ranks.run("prepare_program", cases=[copied(256, 384, 512)])
    answers = ranks.run_each([("program_now", {}), ("idle", {})], timeout_s=60, errors=True)
    assert answers[1].error is None
    assert answers[0].error and answers[0].seconds >= 4, answers[0]
    record = ranks.run("last_failure", errors=True)[0].value
    sentence = r"ag_matmul: rank 0 gave up after [\d.]+ s waiting for rank 1 to enter the call"
    assert re.search(sentence, record), record
    assert re.search(r"ag_matmul: rank 0 has waited .* rank 1 to enter the call", ranks.log(0))
    assert None not in ranks.exits(60), "a process hung at its end"
