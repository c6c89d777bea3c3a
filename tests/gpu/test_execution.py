# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""How the fused GEMMs are launched: replayed or op by op, again and again, with equal bits."""

import pytest

from tests.gpu.test_numerics import CASES, ag, check_sweep, launches, rs

pytestmark = pytest.mark.gpus(1)


def test_two_hundred_executions_with_equal_bits(pool, world):
    cases = [ag(129, [200, 72], 264), rs(257, 200, 136)]
    answers = pool(world).run("repeat", cases=cases, runs=200, timeout_s=180)
    for answer in answers:
        assert answer["unequal"] == 0
        # Two launches a run if each were launched: nearly all are replays of a captured graph.
        assert 0 < answer["launches"]["captured"] < 2 * 200 / 2, answer["launches"]


def test_without_command_buffers_every_run_launches(pool):
    cases = {name: CASES[name] for name in ("ag-256", "rs-129", "ag-three-weights-nt", "rs-1-row")}
    answers = pool(2, flags="op-by-op").run("sweep", cases=list(cases.values()), timeout_s=180)
    check_sweep(answers, cases)
    for answer in answers:
        assert answer["launches"] == {"direct": 8 * launches(cases, 2), "captured": 0}
