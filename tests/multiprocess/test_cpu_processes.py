# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Two processes with four CPU devices each form one mesh; every case must hold on both."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

from tests.multiprocess import cpu_worker
from tests.processes import free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROCESSES = 2
DEADLINE_S = 240


def _start(port: int, rank: int, folder: pathlib.Path) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    with open(folder / f"log{rank}", "wb") as log:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.multiprocess.cpu_worker",
                str(port),
                str(rank),
                str(PROCESSES),
                str(folder / f"report{rank}"),
            ],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Runs both processes once; kills what is left at the deadline or once one has died."""
    folder = tmp_path_factory.mktemp("processes")
    port = free_port()
    ranks = [_start(port, rank, folder) for rank in range(PROCESSES)]
    end = time.monotonic() + DEADLINE_S
    try:
        while time.monotonic() < end and any(rank.poll() is None for rank in ranks):
            if any(rank.poll() not in (None, 0) for rank in ranks):
                end = min(end, time.monotonic() + 10)  # its peers may report and leave
            time.sleep(0.2)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait(timeout=30)
    out = []
    for rank in range(PROCESSES):
        path = folder / f"report{rank}"
        log = (folder / f"log{rank}").read_text(errors="replace")[-4000:]
        out.append((json.loads(path.read_text()) if path.exists() else {}, log))
    return out


@pytest.mark.timeout(DEADLINE_S + 60)
@pytest.mark.parametrize("case", cpu_worker.CASES)
def test_case_holds_on_every_process(case, reports):
    for rank, (results, log) in enumerate(reports):
        outcome = results.get(case, f"did not get that far; the end of its log:\n{log}")
        assert outcome == "ok", f"process {rank}: {outcome}"
