# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Two ranks on one GPU, so that a machine with a single GPU runs the fused kernels too.

One process per rank, both on the same device, which NCCL allows from 2.30 on. The ranks take turns
on it in time slices: their results are real, their times say nothing about overlap.
``start`` decides and launches; the children find their place in ``TRAIN_LM_RANK`` by ``join``.
"""

import argparse
import contextlib
import importlib.metadata
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax

from jax_flux.tools import shared_gpu
from lm import preemption
from lm.rules import make_folder

WORLD = 2
VARIABLE = "TRAIN_LM_RANK"  # "rank coordinator-address" in a child
GRACE_S = 30.0  # for the other rank once one has ended
# Ranks take turns: a smaller model, and few steps.
DEFAULTS = ("--steps=40", "--layers=4", "--d-model=1024", "--seq=1024", "--batch=8")


class Choice(NamedTuple):
    """``nccl``: the library that lets ranks share the GPU, or None with a ``note`` why not."""

    nccl: str | None
    note: str | None


def joined() -> bool:
    """Whether this process is one of several ranks on one GPU."""
    return VARIABLE in os.environ


def join() -> None:
    """Takes this process's place among the ranks; nothing where it is the only process."""
    if joined():
        rank, address = os.environ[VARIABLE].split()
        jax.distributed.initialize(
            address, num_processes=WORLD, process_id=int(rank), local_device_ids=[0]
        )


def choose(typed: argparse.Namespace) -> Choice:
    """Whether to start ranks: on one GPU, unless the flags ask for another mesh or processes."""
    if (
        joined()
        or visible_gpus() != 1
        or typed.coordinator is not None
        or typed.distributed
        or typed.tp not in (None, WORLD)
        or typed.dp not in (None, 1)
    ):
        return Choice(None, None)
    library = shared_gpu.nccl()
    if library is not None:
        return Choice(library, None)
    oldest = ".".join(map(str, shared_gpu.OLDEST_NCCL))
    return Choice(
        None,
        f"one GPU, so tp=1 and nothing is fused: two ranks could share it through NCCL {oldest} or"
        f" newer, and {_installed_nccl()}. Install nvidia-nccl-cu13>={oldest}, or name its"
        " libnccl.so.2 in JAX_FLUX_TEST_NCCL.",
    )


def visible_gpus() -> int:
    """NVIDIA GPUs that JAX would use, counted without starting CUDA in this process."""
    wanted = os.environ.get("JAX_PLATFORMS", "")
    if wanted and not {"cuda", "gpu"} & set(wanted.split(",")):
        return 0
    program = shutil.which("nvidia-smi")
    if program is None or importlib.util.find_spec("jax_cuda13_plugin") is None:
        return 0
    answer = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=60)
    count = sum(line.startswith("GPU ") for line in answer.stdout.splitlines())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return count
    named = [part.strip() for part in visible.split(",")]
    return min(count, len([part for part in named if part not in ("", "-1")]))


def _installed_nccl() -> str:
    try:
        return f"nvidia-nccl-cu13 {importlib.metadata.version('nvidia-nccl-cu13')} is installed"
    except importlib.metadata.PackageNotFoundError:
        return "the nvidia-nccl-cu13 wheel is not installed"


def launch(argv: Sequence[str], typed: argparse.Namespace, library: str) -> int:
    """Runs this script once per rank; rank 0 talks, the others' errors are in ``rank<N>.log``.

    Returns:
        Exit status: 0 where every rank ended well, else that of the first that failed, 143 where
        SIGTERM ended the others; 128 + n where signal n ended it.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    make_folder(typed.out)
    print(f"one GPU: {WORLD} ranks share it (NCCL {library}); times say nothing", flush=True)
    ranks: list[subprocess.Popen[bytes]] = []
    # The ranks are in sessions of their own: a signal reaches them through here only.
    before = signal.signal(signal.SIGTERM, lambda *_: [process.terminate() for process in ranks])
    with contextlib.ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGTERM, before)
        for rank in range(WORLD):
            flags = [*DEFAULTS, f"--tp={WORLD}", *argv]
            if typed.implementation == "auto":
                flags.append("--implementation=fused")
            log = None
            if rank > 0:
                log = stack.enter_context((typed.out / f"rank{rank}.log").open("wb"))
            ranks.append(
                subprocess.Popen(
                    [sys.executable, sys.argv[0], *flags],
                    env=_environment(rank, address, library),
                    stdout=log,
                    stderr=subprocess.STDOUT if log else None,
                    start_new_session=True,
                )
            )
        try:
            return _wait(ranks, typed.out)
        finally:
            for rank_process in ranks:
                if rank_process.poll() is None:
                    os.killpg(rank_process.pid, signal.SIGKILL)
                    rank_process.wait()


def _environment(rank: int, address: str, library: str) -> dict[str, str]:
    return os.environ | {
        VARIABLE: f"{rank} {address}",
        "LD_PRELOAD": library,
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0"),
        "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.8 / WORLD:.2f}",
        # XLA tunes by the clock, which tells nothing here.
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0".strip(),
    }


def _wait(ranks: Sequence[subprocess.Popen[bytes]], out: Path) -> int:
    """Until all ranks have ended, or one has failed and the others had time to say so."""
    deadline = None
    while any(rank.poll() is None for rank in ranks):
        failed = any(rank.poll() not in (None, 0) for rank in ranks)
        if failed and deadline is None:
            deadline = time.monotonic() + GRACE_S
        if deadline is not None and time.monotonic() > deadline:
            break
        time.sleep(0.2)
    codes = [rank.poll() for rank in ranks]
    for number, code in enumerate(codes):
        if number > 0 and code not in (None, 0, preemption.STATUS):
            tail = (out / f"rank{number}.log").read_text(errors="replace").splitlines()[-20:]
            print(f"rank {number} ended with status {code}:", *tail, sep="\n", file=sys.stderr)
    ended = [code if code > 0 else 128 - code for code in codes if code]
    # A failure is told rather than the SIGTERM that another rank ended with.
    return next((code for code in ended if code != preemption.STATUS), ended[0] if ended else 0)
