# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Two processes of one job with other tuning records: one at least is told, and nobody waits."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

import jax_flux
from jax_flux import _records

PROGRAM = """
import sys, jax
from jax_flux import _tuning, errors
port, process = sys.argv[1:]
jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(process), initialization_timeout=60)
try:
    print("agreed", len(_tuning.active().records))
except errors.TuningError as error:
    print(error)
jax.distributed.shutdown()
"""


def record(fused_us):
    key = _records.Key("ag_matmul", "nn", "bfloat16", 2, 1, 8, (8,), (8,), "NVIDIA H200")
    versions = (("jax_flux", jax_flux.__version__),)
    return _records.Record(key, "a kernel", (), fused_us, 2.0, "2026-12-01", False, versions)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("same", [True, False], ids=["same", "other"])
def test_processes_compare_their_records(tmp_path, same):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for process in range(2):
        path = tmp_path / f"{process}.json"
        path.write_text(_records.dumps([record(1.0 if same else 1.0 + process)]))
        env = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
        env |= {_records.VARIABLE: str(path), "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-c", PROGRAM, str(port), str(process)]
        children.append(
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, cwd=os.getcwd())
        )
    said = [child.communicate(timeout=120)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    if same:
        assert said == ["agreed 1\n"] * 2
        return
    told = [text for text in said if "has tuning records" in text]
    assert told, said
    assert all("1.json" in text and "0.json" in text for text in told), told
    assert all("Copy one file to every host" in text for text in told), told
