# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Two processes of one job with other tuning records: one at least is told, and nobody waits."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import jax_flux
from jax_flux import _records
from tests.processes import free_port, own_words

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

# A plan that one process cannot compile, and clocks that disagree about the budget.
TRIALS = """
import sys, jax, numpy as np
from jax_flux.tools import cases, group, trials
from jax_flux.tools.space import Candidate
port, process = sys.argv[1:]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(process), initialization_timeout=60)
mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("tp",))
case = cases.Case("ag", 64, 16, 32)
right = trials.flux(case, False, None)
def op_of(candidate):
    if candidate is not None and candidate.instance == "half" and process == "1":
        raise ValueError("not here")
    return right
end = [100.0, -100.0][int(process)]
on = trials.Trials(case, group.Group(mesh, group.CPU, ""), dtype="bfloat16", transpose_w=False,
                   batch=1, budget_s=end, clock=lambda: 0.0, op_of=op_of)
took = on.times([Candidate("both"), Candidate("half"), Candidate("more")], 3)
print([t is not None for t in took], on.left(), [*on.broken.values()])
fused, xla = on.against_xla([Candidate("both")], 3)
print(*fused, xla, *(t for t in took if t))
jax.distributed.shutdown()
"""


def record(fused_us):
    key = _records.Key("ag_matmul", "nn", "bfloat16", 2, 1, 8, (8,), (8,), "NVIDIA H200")
    versions = (("jax_flux", jax_flux.__version__),)
    return _records.Record(key, "a kernel", (), fused_us, 2.0, "2026-12-01", False, versions)


def launched(program, environment):
    """What two processes of one job print themselves; both must end well."""
    port = free_port()
    children = []
    for process in range(2):
        env = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
        command = [sys.executable, "-c", program, str(port), str(process)]
        env |= {"JAX_PLATFORMS": "cpu"} | environment[process]
        children.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    said = [child.communicate(timeout=120)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    return [own_words(text) for text in said]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("same", [True, False], ids=["same", "other"])
def test_processes_compare_their_records(tmp_path, same):
    paths = [tmp_path / f"{process}.json" for process in range(2)]
    for process, path in enumerate(paths):
        path.write_text(_records.dumps([record(1.0 if same else 1.0 + process)]))
    said = launched(PROGRAM, [{_records.VARIABLE: str(path)} for path in paths])
    if same:
        assert said == ["agreed 1"] * 2
        return
    told = [text for text in said if "has tuning records" in text]
    assert told, said
    assert all("1.json" in text and "0.json" in text for text in told), told
    assert all("Copy one file to every host" in text for text in told), told


@pytest.mark.timeout(180)
def test_processes_take_the_same_decisions_in_trials():
    said = launched(TRIALS, [{}, {}])
    decisions, seconds = zip(*(text.splitlines()[-2:] for text in said), strict=True)
    assert decisions[0].startswith("[True, False, True] True ['it failed in another process']")
    assert decisions[1].startswith("[True, False, True] True ['ValueError: not here']")
    assert seconds[0] == seconds[1]  # the slowest process's times, on both
