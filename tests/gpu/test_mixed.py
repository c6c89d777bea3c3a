# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Randomly mixed calls with late ranks: ops, sizes, dtypes, layouts, gradients, parts of a mesh."""

import pytest

pytestmark = pytest.mark.gpus(1)

ROUNDS, SEED = 3, 4  # gathers, scatters and gradients that run fused, on every W


def held(answers, burst):
    for answer in answers:
        assert answer == answers[0], "ranks drew different calls"
        assert (answer["rounds"], answer["executions"]) == (ROUNDS, ROUNDS * burst)
        assert answer["fused call sites"] > 0, answer


def test_randomly_mixed_calls(pool, world):
    burst = 20 if world < 8 else 10
    held(pool(world).run("mixed", seed=SEED, rounds=ROUNDS, burst=burst, timeout_s=300), burst)


@pytest.mark.parametrize(
    "count", [pytest.param(n, marks=pytest.mark.gpus(n), id=f"tp{n}") for n in (2, 4, 8)]
)
def test_randomly_mixed_calls_in_one_process(pool, count):
    ranks = pool(count, one_process=True)
    held(ranks.run("mixed", seed=SEED, rounds=ROUNDS, burst=40, timeout_s=300), 40)
