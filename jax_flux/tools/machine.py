# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""GPUs, driver and links of this machine, asked through cuda-python; creates no CUDA context.

``cuda.bindings`` imports on a machine without a driver and fails at the first call, so every
question may come back unanswered: `read` says why in ``Machine.problem``.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

NVLINK, PCIE = "NVLink", "PCIe"


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU as CUDA counts them in this process. None where the driver does not say.

    ``clock_mhz`` is the highest SM clock, ``clock_now_mhz`` the one of this moment, ``nvlinks``
    the number of active NVLinks of the board.
    """

    ordinal: int
    name: str
    capability: tuple[int, int]
    num_sms: int
    memory_bytes: int
    clock_mhz: int | None = None
    clock_now_mhz: int | None = None
    nvlinks: int | None = None


@dataclasses.dataclass(frozen=True)
class Machine:
    """What the driver says; ``links[a, b]`` is "NVLink", "PCIe" or None for no peer access."""

    driver: str | None = None
    driver_cuda: tuple[int, int] | None = None
    bindings: str | None = None
    gpus: tuple[Gpu, ...] = ()
    links: dict[tuple[int, int], str | None] = dataclasses.field(default_factory=dict)
    problem: str | None = None


def read() -> Machine:
    """Asks cuda-python for all of it; never raises for want of hardware or of a library."""
    try:
        import cuda.bindings
        from cuda.bindings import runtime
    except ImportError:
        return Machine(problem="cuda-python is not installed (pip install cuda-python)")
    bindings = str(cuda.bindings.__version__)
    try:
        version = _ask(runtime.cudaDriverGetVersion)
        if not version:
            return Machine(bindings=bindings, problem="no NVIDIA driver answers")
        gpus = tuple(_gpu(runtime, i) for i in range(_ask(runtime.cudaGetDeviceCount)))
        links = {
            (a.ordinal, b.ordinal): _link(runtime, a.ordinal, b.ordinal)
            for a in gpus
            for b in gpus
            if a is not b
        }
    except (CudaError, RuntimeError) as error:  # RuntimeError: cuda-python finds no driver
        return Machine(bindings=bindings, problem=str(error))
    return Machine(
        driver=_driver_release(),
        driver_cuda=(version // 1000, version % 1000 // 10),
        bindings=bindings,
        gpus=gpus,
        links=links,
    )


class CudaError(Exception):
    """A CUDA call returned an error."""


def _ask(call: Any, *arguments: Any) -> Any:
    """The answer of a ``cuda.bindings.runtime`` call, which returns (error, answer)."""
    error, answer = call(*arguments)
    if int(error) != 0:
        raise CudaError(f"{call.__name__} returned {getattr(error, 'name', error)}")
    return answer


def _gpu(runtime: Any, ordinal: int) -> Gpu:
    properties = _ask(runtime.cudaGetDeviceProperties, ordinal)
    name = properties.name.decode() if isinstance(properties.name, bytes) else properties.name
    clock = None
    with contextlib.suppress(CudaError):
        kilohertz = runtime.cudaDeviceAttr.cudaDevAttrClockRate
        clock = _ask(runtime.cudaDeviceGetAttribute, kilohertz, ordinal) // 1000
    now, nvlinks = _from_nvml(_ask(runtime.cudaDeviceGetPCIBusId, 32, ordinal))
    return Gpu(
        ordinal=ordinal,
        name=name,
        capability=(properties.major, properties.minor),
        num_sms=properties.multiProcessorCount,
        memory_bytes=properties.totalGlobalMem,
        clock_mhz=clock,
        clock_now_mhz=now,
        nvlinks=nvlinks,
    )


def _link(runtime: Any, a: int, b: int) -> str | None:
    """How ``a`` reaches ``b``'s memory. Native atomics between two GPUs exist over NVLink only."""
    attributes = runtime.cudaDeviceP2PAttr
    ask = runtime.cudaDeviceGetP2PAttribute
    if not _ask(ask, attributes.cudaDevP2PAttrAccessSupported, a, b):
        return None
    return NVLINK if _ask(ask, attributes.cudaDevP2PAttrNativeAtomicSupported, a, b) else PCIE


# ---- NVML: only newer cuda-python has it, and containers may hide it ---------------------------


def _nvml() -> Any:
    """The initialised module, or None where it or its library is missing."""
    try:
        from cuda.bindings import nvml

        nvml.init_v2()
        return nvml
    except Exception:  # NvmlError, a missing library, or an older cuda-python: all mean "no answer"
        return None


def _driver_release() -> str | None:
    nvml = _nvml()
    with contextlib.suppress(Exception):
        return str(nvml.system_get_driver_version())
    return None


def _from_nvml(bus_id: Any) -> tuple[int | None, int | None]:
    """(SM clock now in MHz, active NVLinks); None for what NVML does not say."""
    nvml, clock, links = _nvml(), None, None
    text = bus_id.decode().strip("\0") if isinstance(bus_id, bytes) else str(bus_id)
    with contextlib.suppress(Exception):
        handle = nvml.device_get_handle_by_pci_bus_id_v2(text)
        with contextlib.suppress(Exception):
            clock = int(nvml.device_get_clock_info(handle, nvml.ClockType.CLOCK_SM))
        for link in range(nvml.NVLINK_MAX_LINKS):
            # Links beyond those of the board are an error, not an answer.
            with contextlib.suppress(Exception):
                links = (links or 0) + (int(nvml.device_get_nvlink_state(handle, link)) == 1)
    return clock, links
