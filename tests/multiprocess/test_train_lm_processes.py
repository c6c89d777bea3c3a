# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""examples/train_lm.py in two processes, by hand and by the Slurm script of docs/multi_process.md.

The second launch goes on from the checkpoint that the two processes of the first one wrote, and
a single process loads what they wrote.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from tests.cpu.train_lm import QUICK, SCRIPT, TINY, environment, load, mesh, quick_compiler, series
from tests.processes import free_port, own_words

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROCESSES = 2
DEADLINE_S = 240
FLAGS = [*TINY, "--steps=8", "--layers=1", "--host-devices=4", "--dp=2", "--tp=4"]
SLURM_PORTS = 65535 - 2**12 + 1  # jax.distributed adds the job's number, modulo 2^12


@contextlib.contextmanager
def _streams(folder: pathlib.Path, rank: int):
    """Where a process writes: its output, and the errors and warnings of all its libraries."""
    with (folder / f"out{rank}").open("wb") as out, (folder / f"err{rank}").open("wb") as err:
        yield out, err


@contextlib.contextmanager
def _started(folder: pathlib.Path, script: pathlib.Path, *flags: str):
    """The processes of a launch by hand; none outlives the block."""
    address = f"127.0.0.1:{free_port()}"
    running = []
    try:
        for rank in range(PROCESSES):
            own = [f"--coordinator={address}", f"--processes={PROCESSES}", f"--process={rank}"]
            command = [sys.executable, str(script), *own, *flags]
            with _streams(folder, rank) as (out, err):
                running.append(
                    subprocess.Popen(command, env=environment(**QUICK), stdout=out, stderr=err)
                )
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def _by_hand(folder: pathlib.Path, script: pathlib.Path, *flags: str) -> list[str]:
    """What each process prints; fails where one ends otherwise than with 0."""
    with _started(folder, script, *flags) as running:
        codes = [process.wait(timeout=DEADLINE_S) for process in running]
    assert codes == [0] * PROCESSES, _all(folder)
    return _printed(folder)


def _printed(folder: pathlib.Path) -> list[str]:
    """What each process printed itself."""
    return [own_words((folder / f"out{rank}").read_text()) for rank in range(PROCESSES)]


def _all(folder: pathlib.Path) -> str:
    """What was printed and logged, for whoever reads of a failure."""
    paths = [folder / f"{kind}{rank}" for rank in range(PROCESSES) for kind in ("out", "err")]
    return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')}" for path in paths)


SRUN = """
import json, os, subprocess, sys
command = [word for word in sys.argv[1:] if not word.startswith("--kill-on-bad-exit")]
given = json.loads(os.environ["TEST_SRUN"])
running = []
for rank in range(given["processes"]):
    variables = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
    with open(f"{given['folder']}/out{rank}", "wb") as out:
        with open(f"{given['folder']}/err{rank}", "wb") as err:
            running.append(subprocess.Popen(
                [*command, *given["flags"]], env=os.environ | variables, stdout=out, stderr=err
            ))
sys.exit(max(abs(process.wait()) for process in running))
"""


def _by_slurm(folder: pathlib.Path) -> list[str]:
    """Runs the document's script; srun is the program above, with the flags of a tiny run."""
    document = (ROOT / "docs" / "multi_process.md").read_text()
    (script,) = re.findall(r"```sh\n(#!/bin/bash\n#SBATCH(?:.*\n)*?)```", document)
    programs = folder / "bin"
    programs.mkdir()
    for name, run in {"python": "", "srun": shlex.quote(str(programs / "srun.py"))}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {run} "$@"\n')
        (programs / name).chmod(0o755)
    (programs / "srun.py").write_text(SRUN)
    job = free_port(SLURM_PORTS + os.getpid() % 2**11) - SLURM_PORTS
    variables = {
        **QUICK,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "SCRATCH": str(folder),
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "SLURM_NTASKS": str(PROCESSES),
        "SLURM_STEP_NUM_NODES": "1",
        "TEST_SRUN": json.dumps({"processes": PROCESSES, "folder": str(folder), "flags": FLAGS}),
    }
    with subprocess.Popen(
        ["bash", "-c", script], cwd=ROOT, env=environment(**variables), start_new_session=True
    ) as job_script:
        try:
            code = job_script.wait(timeout=DEADLINE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job_script.pid, signal.SIGKILL)
    assert code == 0, _all(folder)
    return _printed(folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """(folder, what a launch by hand prints, records, what its Slurm restart prints, records)."""
    folder = tmp_path_factory.mktemp("processes")
    path = folder / "train_lm" / "metrics.jsonl"
    read = lambda: [json.loads(line) for line in path.read_text().splitlines()]
    flags = [*FLAGS, "--checkpoint-every=4", "--keep=2", f"--out={folder / 'train_lm'}"]
    by_hand = _by_hand(folder, SCRIPT, *flags)
    records = read()
    newest = folder / "train_lm" / "checkpoints" / "8"
    newest.rename(folder / "set_aside")  # as if the job had been killed after step 4
    by_slurm = _by_slurm(folder)
    return folder, by_hand, records, by_slurm, read()


def test_two_processes_train_on_one_mesh_and_only_the_first_talks(runs):
    _, (first, second), records, _, _ = runs
    assert "dp=2 x tp=4 on 8 x cpu in 2 processes" in first and "parity holds for all" in first
    assert second == ""
    losses = series(records, "loss")
    assert list(losses) == list(range(1, 9)) and losses[8] < losses[1] - 0.5
    assert all(row["passed"] for row in series(records, "parity")[8])


def test_slurms_variables_start_it_and_a_shared_checkpoint_resumes_it_bit_for_bit(runs):
    _, _, before, (first, second), after = runs
    assert "from the checkpoint of step 4" in first and second == ""
    for name in ("loss", "grad_norm", "held_out_loss", "samples"):
        assert series(after, name) == series(before, name) != {}


def test_sigterm_to_one_process_ends_both_after_the_same_step(tmp_path):
    out = tmp_path / "train_lm"
    metrics = out / "metrics.jsonl"
    flags = [*FLAGS, "--steps=100000", f"--out={out}"]
    with _started(tmp_path, SCRIPT, *flags) as running:
        end = time.monotonic() + DEADLINE_S
        while not (metrics.exists() and metrics.read_text()) and time.monotonic() < end:
            assert [process.poll() for process in running] == [None] * PROCESSES, _all(tmp_path)
            time.sleep(0.1)
        running[1].terminate()
        codes = [process.wait(timeout=DEADLINE_S) for process in running]
    everything = _all(tmp_path)
    assert codes == [143] * PROCESSES, everything
    ended = re.search(r"SIGTERM: ended after step (\d+)", _printed(tmp_path)[0])[1]
    (checkpoint,) = (out / "checkpoints").iterdir()
    assert checkpoint.name == ended and "Traceback" not in everything
    written = {path.name for path in (checkpoint / "params").iterdir()}
    assert {"ocdbt.process_0", "ocdbt.process_1"} <= written


# A resumed run's questions, with the signal at process 1 before the first of them.
EARLY_SIGNAL = """
import argparse, os, signal, sys, time
import jax
parser = argparse.ArgumentParser()
for name in ("coordinator", "processes", "process"):
    parser.add_argument(f"--{name}")
flags = parser.parse_args()
sys.path.insert(0, EXAMPLES)
from lm import preemption
rank = int(flags.process)
jax.distributed.initialize(flags.coordinator, int(flags.processes), rank)
if rank == 1:
    os.kill(os.getpid(), signal.SIGTERM)
time.sleep(6)  # the notice is agreed on before anybody asks
with preemption.notice(10) as stop:
    print("ended after", next((step for step in range(11, 16) if stop(step)), None))
"""


def test_sigterm_before_a_resumed_runs_first_step_ends_it_after_that_step(tmp_path):
    script = tmp_path / "early_signal.py"
    script.write_text(EARLY_SIGNAL.replace("EXAMPLES", repr(str(SCRIPT.parent))))
    with _started(tmp_path, script) as running:
        codes = [process.wait(timeout=DEADLINE_S) for process in running]
    assert codes == [0] * PROCESSES, _all(tmp_path)
    assert _printed(tmp_path) == ["ended after 11"] * PROCESSES


def test_both_processes_wrote_their_shards(runs):
    folder = runs[0]
    written = {path.name for path in (folder / "set_aside" / "params").iterdir()}
    assert {"ocdbt.process_0", "ocdbt.process_1"} <= written


def test_two_processes_decode_with_one_cache(runs):
    folder = runs[0]
    flags = ["--host-devices=4", "--dp=2", "--tp=4", "--new=4"]
    script = SCRIPT.with_name("tensor_parallel_inference.py")
    first, second = _by_hand(folder, script, *flags, f"--checkpoint={folder / 'train_lm'}")
    assert "step 8" in first and "16 of 16 bytes are its choice" in first and second == ""


def test_one_process_loads_what_two_wrote_and_has_trained_the_same(runs, tmp_path):
    folder, _, records, _, _ = runs
    lm = load()
    config, _, params, step = lm.checkpoints.load_params(folder / "train_lm", lambda _: mesh(1, 2))
    assert (step, config.layers, config.kv_heads) == (8, 1, 4)
    kept = ocp.StandardCheckpointer()
    target = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), params
    )
    earlier = kept.restore(folder / "set_aside" / "params", target)
    jax.tree.map(np.testing.assert_array_equal, params, earlier)
    # The same program on the same mesh in one process: gloo adds in another order.
    alone = [*FLAGS[:-3], "--dp=2", "--tp=4", "--sample=0", f"--out={tmp_path}"]
    with quick_compiler():
        assert lm.main(alone) == 0
    alone = series(lm.metrics.read(tmp_path / "metrics.jsonl"), "loss")
    np.testing.assert_allclose(
        list(alone.values()), list(series(records, "loss").values()), rtol=1e-4
    )
