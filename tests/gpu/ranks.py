# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""W ranks for one test: processes that share a GPU, one per GPU, or one process with all GPUs.

A `Ranks` keeps its worker processes (worker.py) between tests, because starting them costs seconds;
a test sends each the name of a function of cases.py and reads one answer per rank. Every answer has
a deadline; whatever is left is killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from jax_flux.tools import shared_gpu
from tests.processes import free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
_START_S = 240.0


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where W ranks run: ``processes`` of ``world / processes`` devices each."""

    world: int
    processes: int
    shared: bool  # all on one GPU

    @property
    def devices(self) -> int:
        return self.world // self.processes


@dataclasses.dataclass(frozen=True)
class Answer:
    """What one process said: ``value`` of the case, or ``error`` (its exception as text)."""

    value: Any
    error: str | None
    seconds: float


class RanksError(AssertionError):
    """A rank died, hung or failed where the test expected an answer; holds every rank's log."""


def _gpus(first: int, count: int) -> str:
    """CUDA_VISIBLE_DEVICES for so many of the GPUs that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(n) for n in range(first + count)]
    return ",".join(name.strip() for name in names[first : first + count])


Environment = Mapping[str, str | Sequence[str]]  # a sequence has one value per process


def environment(placement: Placement, process: int, extra: Environment) -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    env["JAX_PLATFORMS"] = "cuda"
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    env["NCCL_NVLS_ENABLE"] = "0"
    env["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    env["JAX_FLUX_TIMEOUT_S"] = "60"
    env["OPENBLAS_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // placement.processes))
    # Ranks that compile different programs must not wait for each other's tuning results.
    # Nothing here is timed, and tuning XLA's own matmuls costs more than all of the rest.
    env["XLA_FLAGS"] = (
        "--xla_gpu_shard_autotuning=false --xla_gpu_autotune_level=0 "
        "--xla_gpu_graph_min_graph_size=1"
    )
    if placement.shared:
        library = shared_gpu.nccl()
        assert library is not None
        env["LD_PRELOAD"] = library
        env["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        env["CUDA_VISIBLE_DEVICES"] = _gpus(0, 1)
        env["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{min(0.2, 0.8 / placement.world):.3f}"
    else:
        # Each process sees its own GPUs alone: its ranks are all the devices that it has.
        env["CUDA_VISIBLE_DEVICES"] = _gpus(process * placement.devices, placement.devices)
    for key, values in extra.items():
        value = values if isinstance(values, str) else values[process]
        env[key] = f"{env['XLA_FLAGS']} {value}" if key == "XLA_FLAGS" else value
    return env


class Ranks:
    """The running processes of one placement."""

    def __init__(self, placement: Placement, env: Environment | None = None) -> None:
        self.placement = placement
        self.world = placement.world
        self._logs: list[pathlib.Path] = []
        self._processes: list[subprocess.Popen[str]] = []
        self._answers: list[queue.Queue[str | None]] = []
        self._pumps: list[threading.Thread] = []
        self.alive = True
        # JAX_FLUX_TEST_LOGS names a folder where the logs outlive the run.
        kept = os.environ.get("JAX_FLUX_TEST_LOGS")
        self._folder = tempfile.TemporaryDirectory(
            prefix="jax_flux_ranks_", dir=kept, delete=kept is None
        )
        port = free_port()
        for process in range(placement.processes):
            log = pathlib.Path(self._folder.name) / f"{process}.log"
            self._logs.append(log)
            with log.open("w") as stream:
                child = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "tests.gpu.worker",
                        str(process),
                        str(placement.processes),
                        str(placement.devices),
                        str(port),
                    ],
                    cwd=ROOT,
                    env=environment(placement, process, env or {}),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stream,
                    text=True,
                    start_new_session=True,
                )
            self._processes.append(child)
            answers: queue.Queue[str | None] = queue.Queue()
            self._answers.append(answers)
            pump = threading.Thread(target=_pump, args=(child.stdout, answers), daemon=True)
            pump.start()
            self._pumps.append(pump)
        self._collect(list(range(placement.processes)), _START_S)

    def send(self, process: int, case: str, **arguments: Any) -> None:
        """Starts a case on one process."""
        stdin = self._processes[process].stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps({"case": case, "arguments": arguments}) + "\n")
            stdin.flush()
        except BrokenPipeError:
            raise self._broken(f"process {process} had died before {case}") from None

    def run(
        self, case: str, *, timeout_s: float = 120.0, errors: bool = False, **arguments: Any
    ) -> list[Any]:
        """Runs a case on all processes; their values, or their `Answer`s with ``errors``."""
        return self.run_each(
            [(case, arguments)] * self.placement.processes, timeout_s=timeout_s, errors=errors
        )

    def run_each(
        self,
        calls: list[tuple[str, dict[str, Any]]],
        *,
        timeout_s: float = 120.0,
        errors: bool = False,
    ) -> list[Any]:
        """Runs another case on each process, in the order of the processes."""
        for process, (case, arguments) in enumerate(calls):
            self.send(process, case, **arguments)
        answers = self._collect(list(range(len(calls))), timeout_s, deaths=errors)
        if errors:
            return answers
        bad = {rank: answer.error for rank, answer in enumerate(answers) if answer.error}
        if bad:
            raise self._broken(f"{calls[0][0]} failed: {bad}")
        return [answer.value for answer in answers]

    def log(self, process: int) -> str:
        """What a process has written to stderr so far."""
        return self._logs[process].read_text(errors="replace")

    def exits(self, timeout_s: float) -> list[int | None]:
        """Asks every process to end; exit codes, None for one that had to be killed."""
        for child in self._processes:
            if child.stdin is not None:
                child.stdin.close()
        end = time.monotonic() + timeout_s
        codes: list[int | None] = []
        for child in self._processes:
            try:
                codes.append(child.wait(max(0.1, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                codes.append(None)
        self.close()
        return codes

    def close(self) -> None:
        """Kills what is left; the logs are gone afterwards."""
        if not self.alive:
            return
        self.alive = False
        for child in self._processes:
            if child.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait(10)
            if child.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    child.stdin.close()
        for pump in self._pumps:
            pump.join(10)
        if "JAX_FLUX_TEST_LOGS" not in os.environ:
            self._folder.cleanup()

    def _collect(
        self, processes: list[int], timeout_s: float, deaths: bool = False
    ) -> list[Answer]:
        """One answer per process; with ``deaths`` a process that ended is an answer as well."""
        end = time.monotonic() + timeout_s
        answers = []
        for process in processes:
            try:
                text = self._answers[process].get(timeout=max(0.1, end - time.monotonic()))
            except queue.Empty:
                raise self._broken(
                    f"process {process} gave no answer within {timeout_s:.0f} s"
                ) from None
            if text is None:
                code = self._processes[process].wait(10)
                if deaths:
                    answers.append(Answer(None, f"ended with exit code {code}", timeout_s))
                    continue
                raise self._broken(f"process {process} died (exit {code})")
            answers.append(Answer(**json.loads(text)))
        return answers

    def _broken(self, what: str, lines: int = 25) -> RanksError:
        """Ends all processes and words what happened with the ends of their logs."""
        for child in self._processes:
            if child.poll() is None:
                child.send_signal(signal.SIGUSR1)  # worker.py writes its stacks to the log
        time.sleep(0.5)
        tails = "\n".join(
            f"--- process {process} ---\n" + "\n".join(self.log(process).splitlines()[-lines:])
            for process in range(len(self._logs))
        )
        self.close()
        return RanksError(f"{what}\n{tails}")


_MARK = "@@jax_flux "


def _pump(stream: Any, answers: queue.Queue[str | None]) -> None:
    with stream:
        for line in stream:
            if line.startswith(_MARK):
                answers.put(line[len(_MARK) :])
    answers.put(None)
