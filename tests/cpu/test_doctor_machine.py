# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""How doctor reads the machine: this one, and injected answers of CUDA and NVML."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from jax_flux.tools import doctor, machine


def test_real_machine_is_judged_without_an_exception():
    report = doctor.examine()
    assert report.verdict.sentence().startswith("ag_matmul of x bfloat16[1024, 12288]")


def test_machine_without_cuda_python_says_how_to_get_it(monkeypatch):
    for name in ("cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, None)
    assert machine.read().problem == "cuda-python is not installed (pip install cuda-python)"


class Runtime:
    """``cuda.bindings.runtime`` of two GPUs: every call returns (error, answer)."""

    cudaDeviceAttr = SimpleNamespace(cudaDevAttrClockRate="clock")
    cudaDeviceP2PAttr = SimpleNamespace(
        cudaDevP2PAttrAccessSupported="access", cudaDevP2PAttrNativeAtomicSupported="atomics"
    )

    def __init__(self, access=1, atomics=1, version=13000):
        self.p2p, self.version = {"access": access, "atomics": atomics}, version

    def cudaDriverGetVersion(self):
        return 0, self.version

    def cudaGetDeviceCount(self):
        return 0, 2

    def cudaGetDeviceProperties(self, ordinal):
        properties = dict(major=9, minor=0, multiProcessorCount=132, totalGlobalMem=150_754_820_096)
        return 0, SimpleNamespace(name=b"NVIDIA H200", **properties)

    def cudaDeviceGetAttribute(self, attribute, ordinal):
        return 0, 1_980_000

    def cudaDeviceGetPCIBusId(self, length, ordinal):
        return 0, b"0000:1b:00.0\0"

    def cudaDeviceGetP2PAttribute(self, attribute, a, b):
        return 0, self.p2p[attribute]


class Nvml:
    """``cuda.bindings.nvml`` of boards with 4 of 18 links, 3 of them active."""

    NVLINK_MAX_LINKS = 18
    ClockType = SimpleNamespace(CLOCK_SM=1)

    def init_v2(self):
        pass

    def system_get_driver_version(self):
        return "580.95.05"

    def device_get_handle_by_pci_bus_id_v2(self, text):
        assert text == "0000:1b:00.0"
        return 7

    def device_get_clock_info(self, handle, kind):
        return 345

    def device_get_nvlink_state(self, handle, link):
        if link >= 4:
            raise RuntimeError("invalid argument")
        return int(link != 2)


def _bindings(monkeypatch, runtime, nvml=None):
    package = SimpleNamespace(__version__="13.4.4", __path__=[], runtime=runtime)
    if nvml is not None:
        package.nvml = nvml
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(bindings=package, __path__=[]))
    for name, module in (("", package), (".runtime", runtime), (".nvml", nvml)):
        monkeypatch.setitem(sys.modules, f"cuda.bindings{name}", module)


def test_machine_reads_gpus_and_links(monkeypatch):
    _bindings(monkeypatch, Runtime(), Nvml())
    found = machine.read()
    assert found.problem is None
    assert (found.driver, found.driver_cuda) == ("580.95.05", (13, 0))
    assert found.gpus[1] == machine.Gpu(
        1, "NVIDIA H200", (9, 0), 132, 150_754_820_096, 1980, 345, nvlinks=3
    )
    assert found.links == {(0, 1): "NVLink", (1, 0): "NVLink"}


def test_machine_without_nvml_leaves_its_answers_open(monkeypatch):
    _bindings(monkeypatch, Runtime())
    found = machine.read()
    assert found.driver is None
    assert (found.gpus[0].nvlinks, found.gpus[0].clock_now_mhz) == (None, None)
    assert found.gpus[0].clock_mhz == 1980


@pytest.mark.parametrize(
    ("access", "atomics", "link"), [(1, 1, "NVLink"), (1, 0, "PCIe"), (0, 0, None)]
)
def test_machine_tells_links_apart(monkeypatch, access, atomics, link):
    _bindings(monkeypatch, Runtime(access, atomics))
    assert machine.read().links == {(0, 1): link, (1, 0): link}


def test_machine_without_driver_says_so(monkeypatch):
    _bindings(monkeypatch, Runtime(version=0))
    assert machine.read().problem == "no NVIDIA driver answers"


def test_machine_with_failing_call_names_it(monkeypatch):
    runtime = Runtime()
    runtime.cudaGetDeviceCount = lambda: (35, None)
    runtime.cudaGetDeviceCount.__name__ = "cudaGetDeviceCount"
    _bindings(monkeypatch, runtime)
    assert machine.read().problem == "cudaGetDeviceCount returned 35"
