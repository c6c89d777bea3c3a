# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ranks that are late, missing, or run something else: a message on every rank, never a hang."""

import re

import pytest

pytestmark = pytest.mark.gpus(1)

SMALL = [1, 64, 64]
PLAN_A, PLAN_B = 0x1111, 0x2222


def test_late_rank_warns_and_completes(fresh):
    ranks = fresh(2, JAX_FLUX_WARN_S="1", JAX_FLUX_TIMEOUT_S="60")
    assert ranks.run("call", shape=SMALL, runs=2) == [0, 0]
    late = ("call", {"shape": SMALL, "runs": 2, "delay_s": 4.0})
    assert ranks.run_each([("call", {"shape": SMALL, "runs": 2}), late]) == [0, 0]
    log = ranks.log(0)
    assert re.search(r"all_gather_copy: rank 0 has waited [\d.]+ s for .*rank 1", log), log[-2000:]
    assert "rank 1 has waited" not in ranks.log(1)
    assert ranks.exits(30) == [0, 0]


GAVE_UP = r"all_gather_copy: rank {rank} gave up after [\d.]+ s waiting for .*rank \d"


@pytest.mark.parametrize("limits", [[4, 4], [4, 9, 4]], ids=["tp2", "tp3"])
def test_missing_rank_ends_at_the_deadline(fresh, limits):
    world, missing = len(limits), len(limits) - 1
    ranks = fresh(world, JAX_FLUX_WARN_S="1", JAX_FLUX_TIMEOUT_S=[str(each) for each in limits])
    ranks.run("prepare_call", shape=SMALL)
    calls = [("call_now", {"shape": SMALL})] * missing + [("idle", {})]
    answers = ranks.run_each(calls, timeout_s=60, errors=True)
    assert answers[missing].error is None
    # Any rank but the missing one may stop first and so be the one that another waits for.
    records = ranks.run("last_failure", errors=True)
    for rank in range(missing):
        assert "LAUNCH_FAILED" in answers[rank].error, answers[rank]
        assert answers[rank].seconds >= limits[rank]
        assert re.search(GAVE_UP.format(rank=rank), records[rank].value), records[rank]
        assert "JAX_FLUX_TIMEOUT_S" in records[rank].value
        assert "gave up" in ranks.log(rank)
    again = ranks.run_each(calls, timeout_s=60, errors=True)
    for rank in range(missing):
        assert re.search(GAVE_UP.format(rank=rank), again[rank].error), again[rank]
    assert None not in ranks.exits(60), "a process hung at its end"


def test_two_ranks_that_give_up_at_once_on_one_gpu_do_not_hang(fresh):
    """CUDA may not tell one of them: then the watchdog ends that process, with the sentence."""
    ranks = fresh(3, JAX_FLUX_TIMEOUT_S="4", JAX_FLUX_GRACE_S="8")
    ranks.run("prepare_call", shape=SMALL)
    calls = [("call_now", {"shape": SMALL})] * 2 + [("idle", {})]
    answers = ranks.run_each(calls, timeout_s=60, errors=True)
    for rank in range(2):
        log = ranks.log(rank)
        assert re.search(GAVE_UP.format(rank=rank), log), log[-2000:]
        raised = "LAUNCH_FAILED" in answers[rank].error
        ended = answers[rank].error == "ended with exit code 70" and "JAX_FLUX_GRACE_S" in log
        assert raised or ended, answers[rank]


def test_missing_rank_at_the_first_call_ends_at_the_deadline(fresh):
    ranks = fresh(2, JAX_FLUX_TIMEOUT_S="4")
    assert ranks.run("call", shape=SMALL) == [0, 0]
    calls = [("call", {"shape": [1, 32, 32]}), ("idle", {})]
    answers = ranks.run_each(calls, timeout_s=60, errors=True)
    assert re.search(r"rank 0 of 2 waited 4 s for the other ranks", answers[0].error), answers[0]
    assert "waited 4 s" in ranks.run("last_failure", errors=True)[0].value
    assert None not in ranks.exits(60), "a process hung at its end"


def test_plan_mismatch_is_named_on_every_rank_and_leaves_them_usable(fresh):
    ranks = fresh(2)
    calls = [("call", {"shape": SMALL, "plan_hash": plan}) for plan in (PLAN_A, PLAN_B)]
    for answer in ranks.run_each(calls, errors=True):
        assert re.search(
            r"differ in the plan .*rank 0 has 0x1111, rank 1 has 0x2222.*same shapes", answer.error
        ), answer
    calls = [("call", {"shape": [1, m, 64], "plan_hash": 0x3333}) for m in (64, 65536)]
    for answer in ranks.run_each(calls, errors=True):
        assert re.search(r"differ in the workspace bytes", answer.error), answer
    assert ranks.run("call", shape=SMALL, runs=8) == [0, 0]
    assert ranks.exits(30) == [0, 0]


def test_program_order_mismatch_is_found_before_the_deadline(fresh):
    ranks = fresh(2, JAX_FLUX_TIMEOUT_S="60", JAX_FLUX_GRACE_S="8")
    for plan in (PLAN_A, PLAN_B):
        assert ranks.run("call", shape=SMALL, plan_hash=plan) == [0, 0]
    calls = [("call", {"shape": SMALL, "plan_hash": plan}) for plan in (PLAN_A, PLAN_B)]
    answers = ranks.run_each(calls, timeout_s=50, errors=True)
    for rank, answer in enumerate(answers):
        assert answer.error, answers
        log = ranks.log(rank)
        sentence = rf"rank {rank} is at call site 0x\w+, rank {1 - rank} at 0x\w+.*different order"
        assert re.search(sentence, log), log[-2000:]
    assert None not in ranks.exits(60), "a process hung at its end"
