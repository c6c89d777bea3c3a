# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""``python -m jax_flux trace`` on GPUs: two processes, as a user starts them."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import pytest

from jax_flux.tools import timeline
from tests.gpu import ranks
from tests.gpu.conftest import place
from tests.processes import free_port

ROLES = ("producer", "consumer")
KINDS = {
    "ag-1024x1536x1024": {"load", "mma", "write", "store", "push", "flag"},
    "rs-1024x1536x1024": {"load", "mma", "write", "store", "add", "fetch", "flag"},
}


def run(row, tmp_path, *flags, timeout_s=300):
    """Exit codes and output of both processes, and what process 0 wrote."""
    placement = place(2)
    port = free_port()
    command = [sys.executable, "-m", "jax_flux", "trace", row, "--plain", "--calls", "3", *flags]
    command += ["--coordinator", f"127.0.0.1:{port}", "--processes", "2"]
    children = []
    for process in range(2):
        files = ["--json", str(tmp_path / "trace.json")] if process == 0 else []
        children.append(
            subprocess.Popen(
                [*command, "--process", str(process), "--gpu", "0", *files],
                cwd=ranks.ROOT,
                env=ranks.environment(placement, process, {}),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        said = [child.communicate(timeout=timeout_s) for child in children]
    finally:
        for child in children:
            child.kill()
    for child, (_, errors) in zip(children, said, strict=True):
        assert child.returncode == 0, errors[-3000:]
    return said, json.loads((tmp_path / "trace.json").read_text())


@pytest.mark.gpus(1, capability=(9, 0))
@pytest.mark.timeout(400)
@pytest.mark.parametrize("row", KINDS)
def test_trace_of_two_ranks_has_every_role_and_a_right_result(row, tmp_path):
    said, told = run(row, tmp_path)
    assert said[0][0].startswith(f"{row}, W = 2") and not said[1][0]
    assert told["otherData"]["error_to_xla"] < 0.02
    events = [e for e in told["traceEvents"] if e["ph"] == "X"]
    assert {e["pid"] for e in events} == {0, 1}
    for rank in (0, 1):
        names = {e["name"] for e in events if e["pid"] == rank}
        assert KINDS[row] <= names
    assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in events)
    # Every tile is multiplied once: 4 row tiles of 256 by 8 columns of 192 on each rank.
    tiles = [e["args"]["index"] for e in events if e["pid"] == 0 and e["name"] == "mma"]
    assert sorted(set(tiles)) == list(range(32))
    # In a CTA's consumer one span ends before the next of its kind begins.
    thread = next(e["tid"] for e in events if e["name"] == "mma" and e["pid"] == 0)
    mine = sorted(
        (e["ts"], e["dur"]) for e in events if (e["tid"], e["pid"], e["name"]) == (thread, 0, "mma")
    )
    assert all(a + d <= b + 1e-3 for (a, d), (b, _) in itertools.pairwise(mine))
    assert max(e["tid"] for e in events) // len(timeline.ROLES) < 132
