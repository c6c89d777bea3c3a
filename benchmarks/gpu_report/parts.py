# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a report is made of: parts, each a few minutes of one command, planned for a machine."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Sequence

from jax_flux.tools import cases, shared_gpu

LIMIT_S = 520.0  # every part is over before nine minutes
MODELS = {"one": "one process with all GPUs", "each": "one process per GPU"}
AGAINST = "xla,xla-lhs"
# Nothing is timed where XLA's own tuning is off: it costs more than all of the rest.
UNTUNED = "--xla_gpu_shard_autotuning=false --xla_gpu_autotune_level=0"
GRAPHS = "--xla_gpu_graph_min_graph_size=1 --xla_gpu_enable_command_buffer=FUSION,CUSTOM_CALL"


@dataclasses.dataclass(frozen=True)
class Machine:
    """GPUs by name, and the NCCL (path) with which ranks can share one; None: they cannot.

    ``visible`` is the CUDA_VISIBLE_DEVICES of every part, None for the inherited one.
    """

    gpus: tuple[str, ...]
    sharing_nccl: str | None = None
    visible: str | None = None

    @property
    def real(self) -> bool:
        """Whether every rank has a GPU of its own."""
        return len(self.gpus) > 1

    @property
    def stem(self) -> str:
        """Of file names: "2x_nvidia_h200"."""
        kind = self.gpus[0].lower().replace(" ", "_").replace("/", "_")
        return f"{len(self.gpus)}x_{kind}" + ("" if self.real else "_shared")


def look() -> Machine:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, asked of nvidia-smi: no CUDA starts here.

    Rows divide over 2, 4 and 8 ranks, so of another number of GPUs the first so many are taken.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return Machine(())
    query = [program, "--query-gpu=name", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=120, check=False)
    names = answer.stdout.strip().splitlines() if answer.returncode == 0 else []
    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = [str(at) for at in range(len(names))] if told is None else told.split(",")
    visible = [v.strip() for v in visible if v.strip() not in ("", "-1")]
    count = min(len(names), len(visible))
    taken = next((world for world in sorted(cases.WORLDS, reverse=True) if world <= count), count)
    gpus = tuple(name.strip() for name in names[:taken])
    return Machine(gpus, shared_gpu.nccl(), None if taken == count else ",".join(visible[:taken]))


@dataclasses.dataclass(frozen=True)
class Part:
    """One command, run by ``processes`` processes at once.

    ``argv`` follows the interpreter; "{out}" in it is the file that process 0 writes. ``kind``
    tells what that file is: "bench", "stress", "block" or "tests". ``model`` says how ranks lie:
    "one", "each" (GPU i for process i) or "shared" (all on GPU 0).
    """

    name: str
    kind: str
    title: str
    argv: tuple[str, ...]
    model: str = "one"
    processes: int = 1
    limit_s: float = LIMIT_S
    xla_flags: str = ""

    def environment(self, machine: Machine) -> dict[str, str]:
        """What a process of this part has set besides its inheritance."""
        env = {} if machine.visible is None else {"CUDA_VISIBLE_DEVICES": machine.visible}
        if self.kind == "tests":  # tests/gpu sets up its own ranks
            cpu = {} if "tests/gpu" in self.argv else {"JAX_PLATFORMS": "cpu"}
            return env | cpu | {"PYTEST_TIMEOUT": f"{self.limit_s / 2:.0f}"}
        env |= {
            "NCCL_NVLS_ENABLE": os.environ.get("NCCL_NVLS_ENABLE", "0"),
            "JAX_FLUX_TIMEOUT_S": "30",
            "JAX_FLUX_GRACE_S": "10",
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {self.xla_flags}".strip(),
        }
        if self.kind != "bench":
            env["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        if self.model == "shared":
            assert machine.sharing_nccl is not None
            env |= {
                "LD_PRELOAD": machine.sharing_nccl,
                "NCCL_MULTI_RANK_GPU_ENABLE": "1",
                "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
                "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{min(0.2, 0.8 / self.processes):.3f}",
            }
        return env

    def commands(self, out: pathlib.Path, port: int) -> list[list[str]]:
        """The command line of each process; ranks meet at ``port``."""
        lines = []
        for process in range(self.processes):
            line = [sys.executable, *(a.replace("{out}", str(out)) for a in self.argv)]
            if self.processes > 1:
                gpu = 0 if self.model == "shared" else process
                line += ["--coordinator", f"127.0.0.1:{port}", "--processes", str(self.processes)]
                line += ["--process", str(process), "--gpu", str(gpu)]
            lines.append(line)
        return lines


def plan(machine: Machine, quick: bool = False) -> list[Part]:
    """Every part that the machine can run, the most telling first."""
    if not machine.gpus:
        return []
    return _real(len(machine.gpus), quick) if machine.real else _shared(machine, quick)


def _real(count: int, quick: bool) -> list[Part]:
    one, each = ("one", 1), ("each", count)
    gpt3, small = ("gpt3+ag", "gpt3+rs"), ("small+ag", "small+rs")
    rest = ["layers+ag", "layers+rs", "gpt3+ar", "small+ar"]
    if count in (2, 4, 8):
        rest = [f"{peer}+w{count}" for peer in ("pallas", "triton", "squares")] + rest
    return [
        *(_stress(f"smoke-{m}", m, p, 45, "--rounds=5") for m, p in (one, each)),
        *(_bench(rows, *one) for rows in gpt3),
        *_tests(),
        *(_stress(f"stress-{m}", m, p, 20 if quick else 120) for m, p in (one, each)),
        *(_bench(rows, *each) for rows in gpt3),
        *(_bench(rows, *one) for rows in small),
        *(_block(*model) for model in (one, each)),
        *_meshes(count),
        *(_bench(rows, *one) for rows in rest),
        *(_bench(rows, *each) for rows in (*small, *rest)),
    ]


def _meshes(count: int) -> list[Part]:
    """Groups that are parts of the mesh: neighbours, and devices that are not."""
    if count < 4 or count % 2:
        return []
    rows = "ag-1024x6144x12288,ag-4096x6144x12288,rs-1024x12288x6144,rs-4096x12288x6144"
    half, parts = count // 2, []
    for mesh in (f"dp=2,tp={half}", f"tp={half},dp=2"):
        for model, processes in (("one", 1), ("each", count)):
            parts.append(_bench(rows, model, processes, mesh))
    return parts


def _shared(machine: Machine, quick: bool) -> list[Part]:
    """Ranks that take turns on one GPU: what is right shows, what is fast does not."""
    if machine.sharing_nccl is None:
        return _tests()
    seconds = 15 if quick else 120
    parts = [_stress(f"stress-shared{w}", "shared", w, seconds) for w in (3, 8, 2)]
    rows = "ag-512x512x1024,rs-512x1024x512,ag-1024x6144x12288"
    argv = ("-m", "jax_flux", "bench", "--plain", "--json={out}", f"--rows={rows}")
    title = "bench, two ranks sharing the GPU"
    argv += (f"--against={AGAINST}", "--implementation=fused")
    parts.append(Part("bench-shared", "bench", title, argv, "shared", 2, xla_flags=UNTUNED))
    small = ("--width=512", "--hidden=1024", "--heads=16", "--kv-heads=8", "--seq=512")
    title = "a small transformer block, two ranks sharing the GPU"
    argv = ("-m", "benchmarks.block", "--json={out}", *small)
    parts.append(Part("block-shared", "block", title, argv, "shared", 2, xla_flags=UNTUNED))
    return parts + _tests()


def _stress(name: str, model: str, processes: int, seconds: float, *flags: str) -> Part:
    argv = ("-m", "jax_flux", "stress", f"--seconds={seconds:g}", "--json={out}", *flags)
    how = MODELS.get(model, f"{processes} ranks sharing the GPU")
    title = f"randomly mixed calls, {how}"
    limit = min(LIMIT_S, seconds + 150)
    return Part(name, "stress", title, argv, model, processes, limit, f"{UNTUNED} {GRAPHS}")


def _bench(rows: str, model: str, processes: int, mesh: str = "") -> Part:
    # Pallas' kernels wait for peers without a deadline, so they run in one process only.
    gathers = any(part.startswith("ag-") or "ag" in part.split("+") for part in rows.split(","))
    pallas = model == "one" and not mesh and (gathers or rows.startswith(("pallas", "squares")))
    against = AGAINST + (",pallas" if pallas else "")
    argv = ("-m", "jax_flux", "bench", "--plain", "--json={out}", f"--rows={rows}")
    argv += (f"--against={against}",) + ((f"--mesh={mesh}",) if mesh else ())
    name = "bench-" + (f"mesh-{mesh.replace('=', '').replace(',', '-')}" if mesh else rows)
    title = f"bench {f'on mesh {mesh}' if mesh else rows}, {MODELS[model]}"
    return Part(f"{name}-{model}", "bench", title, argv, model, processes)


def _block(model: str, processes: int) -> Part:
    title = f"a transformer block forward and backward, {MODELS[model]}"
    argv = ("-m", "benchmarks.block", "--json={out}")
    return Part(f"block-{model}", "block", title, argv, model, processes)


TEST_GROUPS = ("tp2", "tp3", "tp4", "tp8")


def _tests() -> list[Part]:
    """tests/gpu by number of ranks, what is left of it, and tests/multiprocess."""
    rest = " and ".join(f"not {name}" for name in TEST_GROUPS)
    wanted = [(name, "tests/gpu", name) for name in TEST_GROUPS]
    wanted += [("other", "tests/gpu", rest), ("multiprocess", "tests/multiprocess", "")]
    parts = []
    for name, folder, words in wanted:
        argv = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml={out}", folder)
        argv += ("-k", words) if words else ()
        parts.append(Part(f"tests-{name}", "tests", f"{folder}, {words or 'all'}", argv))
    return parts


def chosen(parts: Sequence[Part], only: str | None) -> list[Part]:
    """Those whose name holds one of the words between commas; ValueError where none does."""
    words = [word for word in (only or "").split(",") if word]
    found = [part for part in parts if not words or any(word in part.name for word in words)]
    if not found:
        raise ValueError(f"{only!r} names no part of {', '.join(part.name for part in parts)}")
    return found
