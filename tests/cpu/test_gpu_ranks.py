# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which GPUs the processes of `tests/gpu` are given: as many as they have ranks, and no more."""

import pytest

from tests.gpu import ranks


@pytest.mark.parametrize(
    ("placement", "visible", "given"),
    [
        (ranks.Placement(1, 1, shared=False), None, ["0"]),
        (ranks.Placement(2, 1, shared=False), None, ["0,1"]),
        (ranks.Placement(3, 3, shared=False), None, ["0", "1", "2"]),
        (ranks.Placement(2, 2, shared=False), "5, 3,1", ["5", "3"]),
        (ranks.Placement(4, 2, shared=False), None, ["0,1", "2,3"]),
        (ranks.Placement(3, 3, shared=True), "4,5", ["4", "4", "4"]),
    ],
    ids=["one-rank", "one-process", "each-its-own", "of-the-visible", "two-each", "shared"],
)
def test_processes_see_the_gpus_of_their_ranks_alone(placement, visible, given, monkeypatch):
    monkeypatch.setenv("JAX_FLUX_TEST_NCCL", "/nccl")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = [ranks.environment(placement, p, {}) for p in range(placement.processes)]
    assert [env["CUDA_VISIBLE_DEVICES"] for env in found] == given
    assert all(("LD_PRELOAD" in env) == placement.shared for env in found)
