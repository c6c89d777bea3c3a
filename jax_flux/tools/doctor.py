# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""``python -m jax_flux doctor``: what this machine offers, what is missing, what to do about it.

Exit status 0 where the fused kernels can run, 1 where they cannot; works without a GPU, without
the native library and without cuda-python. The checks are those of _ffi.py, which a CUDA lowering
makes too; each question to the machine is a field of `Probes`, so that tests inject answers.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jax_flux import _explain, _ffi, _plan, _probes, _tuning
from jax_flux._version import __version__
from jax_flux.tools import environment, machine
from jax_flux.tools.findings import NOTE, OK, STOP, Finding, show

JAX_BELOW = (0, 13)
NCCL_WHEELS = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
CAPABILITY = (9, 0)
# The call that the verdict is about: one GPU's share of GPT-3 175B's first MLP matmul at TP 8.
X_SHAPE, W_SHAPE, DTYPE = (1024, 12288), (12288, 6144), "bfloat16"


def _cuda_devices() -> tuple[tuple[Any, ...], str | None]:
    """JAX's CUDA devices, or JAX's own words why there are none. Loads NCCL where there are."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # others may use the GPUs now
    try:
        return tuple(jax.local_devices(backend="cuda")), None
    except RuntimeError as error:
        return (), str(error)


def _wheel_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@dataclasses.dataclass(frozen=True)
class Probes:
    """What `examine` asks; a test replaces a field to inject an answer."""

    ffi: _probes.Probes = dataclasses.field(default_factory=_probes.Probes)
    cuda_devices: Callable[[], tuple[tuple[Any, ...], str | None]] = _cuda_devices
    machine: Callable[[], machine.Machine] = machine.read
    wheel_version: Callable[[str], str | None] = _wheel_version
    explain: Callable[..., _explain.Explanation] = _explain.explain
    tuning: Callable[[], _tuning.Tuning] = _tuning.active
    environ: Mapping[str, str] = dataclasses.field(default_factory=lambda: os.environ)
    python: tuple[int, ...] = tuple(sys.version_info[:3])
    system: tuple[str, str] = (platform.system(), platform.machine())
    jax_version: str = jax.__version__


@dataclasses.dataclass(frozen=True)
class Report:
    """All findings, the hardware behind them, and whether the fused kernels can run."""

    findings: tuple[Finding, ...]
    machine: machine.Machine
    verdict: Finding

    @property
    def can_run(self) -> bool:
        """Whether the fused kernels can run here."""
        return self.verdict.level == OK


def examine(probes: Probes | None = None) -> Report:
    """Asks everything once and judges it."""
    probes = probes or Probes()
    devices, jax_says = probes.cuda_devices()  # first: it is what makes JAX load NCCL
    hardware = probes.machine()
    checks = _ffi.problems(probes.ffi)
    findings = [
        _python(probes),
        _jax(probes, checks["jaxlib"]),
        *_native(probes, checks["native"]),
        *_gpus(hardware, devices, jax_says),
        _nccl(probes, checks["nccl"], bool(devices)),
        *_links(hardware, devices, checks["peers"]),
        *environment.judge(probes.environ, has_gpus=bool(hardware.gpus)),
        environment.tuning(probes.tuning),
    ]
    return Report(tuple(findings), hardware, _verdict(probes, findings, devices))


# ---- one function per topic --------------------------------------------------------------------


def _python(probes: Probes) -> Finding:
    version, (system, arch) = ".".join(map(str, probes.python)), probes.system
    text = f"Python {version} on {system} {arch}"
    if (system, arch) != ("Linux", "x86_64"):
        return Finding(STOP, "python", text, "The native library is built for Linux x86_64 only")
    return Finding(OK, "python", text)


def _jax(probes: Probes, complaint: str | None) -> Finding:
    if complaint is not None:
        return Finding(STOP, "jax", *_split(complaint))
    jaxlib, api = probes.ffi.jaxlib_version(), probes.ffi.ffi_api()
    text = f"jax {probes.jax_version}, jaxlib {_dotted(jaxlib)}, FFI API {_dotted(api)}"
    if jaxlib[:2] >= JAX_BELOW:
        return Finding(
            NOTE, "jax", text, f"Untried: the package was tried with jax below {_dotted(JAX_BELOW)}"
        )
    return Finding(OK, "jax", text)


def _native(probes: Probes, complaint: str | None) -> list[Finding]:
    if complaint is not None:
        return [Finding(STOP, "native", *_split(complaint))]
    native = probes.ffi.load_native()
    versions = native.versions()
    cuda = versions["cuda"]
    text = (
        f"Native library {versions['library']}, built for FFI API {versions['ffi_api_major']}."
        f"{versions['ffi_api_minor']} and CUDA {cuda // 1000}.{cuda % 1000 // 10}, "
        f"protocol {versions['protocol']}"
    )
    found = [Finding(OK, "native", text)]
    ops = [row["op"] for row in native.instances()]
    counts = ", ".join(f"{ops.count(op)} of {op}" for op in dict.fromkeys(ops)) or "none"
    missing = [op for op in _plan.FUSED_OPS if op not in ops]
    if missing:
        remedy = f"It has no fused kernel of {', '.join(missing)}: those ops run through XLA"
        found.append(Finding(STOP, "kernels", f"Compiled kernels: {counts}", remedy))
    else:
        found.append(Finding(OK, "kernels", f"Compiled kernels: {counts}"))
    return found


def _gpus(
    hardware: machine.Machine, devices: tuple[Any, ...], jax_says: str | None
) -> list[Finding]:
    found = []
    if hardware.driver_cuda is not None:
        release = f"NVIDIA driver {hardware.driver}" if hardware.driver else "NVIDIA driver"
        text = f"{release}, serving CUDA up to {_dotted(hardware.driver_cuda)}"
        fits = hardware.driver_cuda >= (13, 0)
        remedy = "" if fits else "Install a driver of release 580 or newer: the wheels are CUDA 13"
        found.append(Finding(OK if fits else STOP, "driver", text, remedy))
    elif devices:
        found.append(Finding(NOTE, "driver", f"Driver and links not asked: {hardware.problem}", ""))
    if not devices:
        why = jax_says or "it lists none"
        remedy = (
            "The driver sees GPUs, JAX does not: install jax[cuda13], and leave JAX_PLATFORMS unset"
            if hardware.gpus
            else "Fused kernels need two or more NVIDIA Hopper GPUs; ops run through XLA here"
        )
        found.append(Finding(STOP, "gpus", f"JAX has no CUDA device ({why.rstrip('.')})", remedy))
        return found
    kinds = ", ".join(dict.fromkeys(str(d.device_kind) for d in devices))
    capabilities = {_capability(d) for d in devices}
    text = f"JAX sees {len(devices)} x {kinds}"
    if capabilities != {CAPABILITY}:
        shown = ", ".join(sorted(map(_dotted, capabilities)))
        remedy = f"The kernels are for compute capability {_dotted(CAPABILITY)} (Hopper)"
        found.append(Finding(STOP, "gpus", f"{text}, compute capability {shown}", remedy))
    elif len(devices) == 1:
        remedy = (
            "One GPU has no peer. Run where two or more are joined by NVLink (to try the kernels, "
            "`make demo` lets two ranks share one GPU); if CUDA_VISIBLE_DEVICES hides the others, "
            "unset it for this check"
        )
        found.append(Finding(STOP, "gpus", text, remedy))
    else:
        found.append(Finding(OK, "gpus", text))
    return found


def _nccl(probes: Probes, complaint: str | None, has_devices: bool) -> Finding:
    installed = [
        f"{name} {version}" for name in NCCL_WHEELS if (version := probes.wheel_version(name))
    ]
    wheel = f"wheel installed: {', '.join(installed) or 'none'}"
    oldest, newest = map(_dotted, _ffi.NCCL_TRIED)
    if complaint is None:
        version = _dotted(probes.ffi.nccl_version() or ())
        return Finding(OK, "nccl", f"NCCL {version}, tried range {oldest} to {newest} ({wheel})")
    if not has_devices:
        text = f"No NCCL that fits, and no CUDA device to use it ({wheel})"
        return Finding(
            NOTE, "nccl", text, f"On a GPU machine, the kernels take NCCL {oldest} to {newest}"
        )
    given, rest = _split(complaint)
    return Finding(STOP, "nccl", f"{given} ({wheel})", rest)


def _links(
    hardware: machine.Machine, devices: tuple[Any, ...], complaint: str | None
) -> list[Finding]:
    if complaint is not None:
        return [Finding(STOP, "links", *_split(complaint))]
    if len(devices) < 2 or not hardware.links:
        return []
    kinds = set(hardware.links.values())
    if machine.PCIE in kinds:
        text = "Some GPUs reach each other over PCIe only"
        remedy = "It works, but NVLink is what makes overlapped communication cheap"
        return [Finding(NOTE, "links", text, remedy)]
    return [Finding(OK, "links", "Every GPU reads and writes every other's memory over NVLink")]


def _verdict(probes: Probes, findings: Sequence[Finding], devices: tuple[Any, ...]) -> Finding:
    """What ag_matmul would run here, and whether it could run fused, by the ops' own planner."""
    world = max(2, len(devices))

    def ask(implementation: str | None) -> _explain.Explanation:
        return probes.explain(
            "ag_matmul",
            X_SHAPE,
            W_SHAPE,
            DTYPE,
            world,
            implementation=implementation,
            platform="cuda" if devices else "cpu",
            device_kind=str(devices[0].device_kind) if devices else None,
        )

    call = f"ag_matmul of x {DTYPE}{list(X_SHAPE)} and w {DTYPE}{list(W_SHAPE)} over {world} ranks"
    stops = [finding for finding in findings if finding.level == STOP]
    chosen, forced = ask(None), ask("fused")
    if stops or forced.implementation != "fused":
        reason = stops[0].text if forced.implementation == "fused" else forced.reason
        topics = ", ".join(dict.fromkeys(finding.topic for finding in stops))
        remedy = f"Mend what is marked STOP above ({topics})" if stops else ""
        return Finding(STOP, "verdict", f'{call} would run "xla": {reason.rstrip(".")}', remedy)
    text = f'{call} would run "{chosen.implementation}": {chosen.reason}'
    instance = forced.plan.instance if forced.plan else "?"
    if chosen.implementation == "fused":
        return Finding(OK, "verdict", text, f"Its kernel is {instance}")
    return Finding(OK, "verdict", text, f'With implementation="fused" it would run {instance}')


# ---- words ---------------------------------------------------------------------------------------


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def _capability(device: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in str(getattr(device, "compute_capability", "0.0")).split("."))


def _split(complaint: str) -> tuple[str, str]:
    """A message of errors.py as (what was found, rule and remedy)."""
    given, _, rest = complaint.removeprefix("jax_flux: ").partition(". ")
    return given[:1].upper() + given[1:], rest.rstrip(".")


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the report; returns 0 where fused kernels can run, else 1."""
    parser = argparse.ArgumentParser(prog="python -m jax_flux doctor", description=_DESCRIPTION)
    parser.add_argument("--plain", action="store_true", help="plain text on a terminal too")
    options = parser.parse_args(argv)
    report = examine()
    title = f"jax_flux {__version__} on this machine"
    show(title, (*report.findings, report.verdict), report.machine, plain=options.plain)
    return 0 if report.can_run else 1


_DESCRIPTION = (
    "Says what this machine offers, what is missing, and which implementation an ag_matmul would "
    "take here. Exit status 0 where the fused kernels can run, 1 where they cannot."
)
