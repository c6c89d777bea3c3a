# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""``python -m jax_flux doctor``: a sentence per finding, and the exit status that follows.

This hardware cannot give most answers, so they are injected: a machine of two H200 on which all is
well, and one answer changed at a time.
"""

from __future__ import annotations

import builtins
import dataclasses
import io
import subprocess
import sys
from types import SimpleNamespace

import pytest

import jax_flux
from jax_flux import __main__ as cli
from jax_flux import _ffi, _plan, _records, _tuning
from jax_flux.tools import doctor, environment, findings, machine
from jax_flux.tools.findings import NOTE, OK, STOP

H200 = SimpleNamespace(device_kind="NVIDIA H200", compute_capability="9.0")
GPUS = tuple(
    machine.Gpu(i, "NVIDIA H200", (9, 0), 132, 150_754_820_096, 1980, 345, 18) for i in range(2)
)
TWO_H200 = machine.Machine(
    driver="580.95.05",
    driver_cuda=(13, 0),
    bindings="13.4.4",
    gpus=GPUS,
    links={(0, 1): machine.NVLINK, (1, 0): machine.NVLINK},
)
ROW = dict(dtype="bfloat16", layout="nn", tile=(128, 192, 64), cluster=(2, 1))


class Native:
    """The native library as Python sees it."""

    def __init__(self, ops=("ag_matmul", "matmul_rs"), library=jax_flux.__version__):
        self.ops, self.library = ops, library

    def versions(self):
        return dict(
            library=self.library, ffi_api_major=0, ffi_api_minor=4, cuda=13000, protocol=1, nccl=0
        )

    def instances(self):
        return [dict(ROW, name=f"{op}_kernel", op=op) for op in self.ops]

    def registrations(self):
        return {}

    def last_failure(self):
        return None


def _missing(*_):
    raise ImportError("No module named 'jax_flux._native'")


def _given(*, native=None, ffi=None, **changed):
    """Two H200 on which everything fits, with some answers changed."""
    native = native or Native()
    answers = dict(
        load_native=lambda: native,
        jaxlib_version=lambda: (0, 11, 2),
        ffi_api=lambda: (0, 4),
        nccl_version=lambda: (2, 28, 9),
        pairs_without_peer_access=list,
    )
    asked = _ffi.Probes(**(answers | (ffi or {})))
    rows = _ffi._read_instances(native)

    def explain(op, x_shape, w_shape, dtype, world, *, implementation, platform, device_kind):
        problem = _plan.Problem(
            op, 1, x_shape[0], (w_shape[1],), (x_shape[1],), world, dtype, dtype
        )
        return _plan.plan(
            problem,
            implementation=implementation,
            config=None,
            platform=platform,
            device_kind=device_kind,
            installed=_plan.Installed(rows),
        )

    defaults = dict(
        ffi=asked,
        cuda_devices=lambda: ((H200, H200), None),
        machine=lambda: TWO_H200,
        wheel_version=lambda name: "2.28.9" if name == "nvidia-nccl-cu13" else None,
        explain=explain,
        environ={},
        python=(3, 12, 3),
        system=("Linux", "x86_64"),
        jax_version="0.11.2",
    )
    return doctor.Probes(**(defaults | changed))


def _only(report, topic, level):
    """The one finding of this topic at this level, as a sentence."""
    found = [f for f in (*report.findings, report.verdict) if (f.topic, f.level) == (topic, level)]
    assert len(found) == 1, report
    return found[0].sentence()


# ---- the verdict ---------------------------------------------------------------------------------


def test_verdict_two_h200_can_run_fused():
    report = doctor.examine(_given())
    assert report.can_run
    assert [f for f in report.findings if f.level != OK] == []


def test_tuning_file_is_counted_or_refused_in_words():
    report = doctor.examine(_given())
    assert "the cost model decides" in _only(report, "tuning", OK)
    read = lambda: _tuning.Tuning({"a call": "a record"}, "digest", "here.json")
    report = doctor.examine(_given(tuning=read))
    assert _only(report, "tuning", OK) == "1 tuning record of here.json."

    def refused():
        return _records.parse("{", "here.json")

    report = doctor.examine(_given(tuning=refused))
    assert not report.can_run
    told = _only(report, "tuning", STOP)
    assert told.startswith("Tuning file here.json: it is no JSON")
    assert "remove it" in told


@pytest.mark.parametrize(
    ("default", "words"),
    [
        ("fused", 'would run "fused": why. Its kernel is name.'),
        ("xla", 'would run "xla": why. With implementation="fused" it would run name.'),
    ],
)
def test_verdict_says_the_default_and_what_could_run(default, words):
    plan = SimpleNamespace(instance="name")

    def explain(*_, implementation, **__):
        answer = implementation or default
        return SimpleNamespace(
            implementation=answer, reason="why", plan=plan if answer == "fused" else None
        )

    report = doctor.examine(_given(explain=explain))
    assert report.can_run
    assert _only(report, "verdict", OK).endswith(words)


def test_verdict_one_thing_missing_takes_its_words_as_the_reason():
    report = doctor.examine(_given(ffi=dict(nccl_version=lambda: (2, 27, 7))))
    assert not report.can_run
    sentence = _only(report, "verdict", STOP)
    assert 'would run "xla": NCCL 2.27.7 is loaded' in sentence
    assert "Mend what is marked STOP above (nccl)" in sentence


def test_verdict_no_gpu_says_platform():
    report = doctor.examine(_given(cuda_devices=lambda: ((), "Unknown backend cuda")))
    sentence = _only(report, "verdict", STOP)
    assert "would run \"xla\": the mesh is on platform 'cpu'" in sentence


# ---- one finding each ----------------------------------------------------------------------------


def test_python_other_system_stops():
    report = doctor.examine(_given(system=("Darwin", "arm64")))
    assert "Linux x86_64 only" in _only(report, "python", STOP)


def test_jax_ffi_api_too_old_names_remedy():
    report = doctor.examine(_given(ffi=dict(ffi_api=lambda: (0, 3))))
    sentence = _only(report, "jax", STOP)
    assert "Jaxlib 0.11.2 has FFI API 0.3" in sentence
    assert "Install jaxlib>=0.11.2,<0.13" in sentence


def test_jax_newer_than_tried_is_noted():
    report = doctor.examine(_given(ffi=dict(jaxlib_version=lambda: (0, 13, 0))))
    assert "tried with jax below 0.13" in _only(report, "jax", NOTE)
    assert report.can_run


def test_native_missing_says_make_native():
    report = doctor.examine(_given(ffi=dict(load_native=_missing)))
    sentence = _only(report, "native", STOP)
    assert "is missing or does not load" in sentence
    assert "`make native`" in sentence


def test_native_other_version_says_rebuild():
    report = doctor.examine(_given(native=Native(library="0.0.9")))
    sentence = _only(report, "native", STOP)
    assert "The native library is version 0.0.9" in sentence
    assert "Rebuild with `make native`" in sentence


def test_native_versions_and_kernels_are_listed():
    report = doctor.examine(_given())
    assert "built for FFI API 0.4 and CUDA 13.0, protocol 1" in _only(report, "native", OK)
    assert "1 of ag_matmul, 1 of matmul_rs" in _only(report, "kernels", OK)


def test_kernels_without_a_fused_op_stops():
    report = doctor.examine(_given(native=Native(ops=("all_gather_copy",))))
    assert "no fused kernel of ag_matmul, matmul_rs" in _only(report, "kernels", STOP)
    assert "no ag_matmul kernel for bfloat16" in _only(report, "verdict", STOP)


def test_driver_too_old_stops():
    old = dataclasses.replace(TWO_H200, driver="550.54", driver_cuda=(12, 4))
    sentence = _only(doctor.examine(_given(machine=lambda: old)), "driver", STOP)
    assert "NVIDIA driver 550.54, serving CUDA up to 12.4" in sentence
    assert "release 580 or newer" in sentence


def test_driver_cuda_python_missing_is_noted_and_fused_still_runs():
    problem = "cuda-python is not installed (pip install cuda-python)"
    report = doctor.examine(_given(machine=lambda: machine.Machine(problem=problem)))
    assert "pip install cuda-python" in _only(report, "driver", NOTE)
    assert report.can_run


def test_gpus_seen_by_the_driver_only_names_jax_cuda13():
    report = doctor.examine(_given(cuda_devices=lambda: ((), "Unknown backend cuda.")))
    sentence = _only(report, "gpus", STOP)
    assert "JAX has no CUDA device (Unknown backend cuda)" in sentence
    assert "install jax[cuda13]" in sentence


def test_gpus_absent_says_what_fused_needs():
    nothing = machine.Machine(problem="no NVIDIA driver answers")
    report = doctor.examine(
        _given(cuda_devices=lambda: ((), "Unknown backend cuda"), machine=lambda: nothing)
    )
    assert "two or more NVIDIA Hopper GPUs" in _only(report, "gpus", STOP)


def test_gpus_single_has_no_peer():
    report = doctor.examine(_given(cuda_devices=lambda: ((H200,), None)))
    assert "One GPU has no peer" in _only(report, "gpus", STOP)
    assert not report.can_run


def test_gpus_other_architecture_stops():
    a100 = SimpleNamespace(device_kind="NVIDIA A100-SXM4-80GB", compute_capability="8.0")
    report = doctor.examine(_given(cuda_devices=lambda: ((a100, a100), None)))
    assert "compute capability 8.0" in _only(report, "gpus", STOP)
    assert "sm_90 (Hopper), not NVIDIA A100" in _only(report, "verdict", STOP)


def test_nccl_loaded_and_wheel_are_both_named():
    sentence = _only(doctor.examine(_given()), "nccl", OK)
    assert "NCCL 2.28.9, tried range 2.28.0 to 2.30.7" in sentence
    assert "nvidia-nccl-cu13 2.28.9" in sentence


def test_nccl_outside_range_names_wheel_and_range():
    report = doctor.examine(_given(ffi=dict(nccl_version=lambda: (2, 32, 3))))
    sentence = _only(report, "nccl", STOP)
    assert "NCCL 2.32.3 is loaded" in sentence
    assert "Install nvidia-nccl-cu13 within 2.28.0 to 2.30.7" in sentence


def test_nccl_missing_on_gpus_stops():
    report = doctor.examine(
        _given(ffi=dict(nccl_version=lambda: None), wheel_version=lambda name: None)
    )
    sentence = _only(report, "nccl", STOP)
    assert "No libnccl.so.2 is loaded and no NCCL wheel is installed" in sentence
    assert "wheel installed: none" in sentence


def test_nccl_not_loaded_without_gpus_is_only_noted():
    report = doctor.examine(
        _given(
            cuda_devices=lambda: ((), "Unknown backend cuda"), ffi=dict(nccl_version=lambda: None)
        )
    )
    assert "o NCCL that fits, and no CUDA device" in _only(report, "nccl", NOTE)


def test_links_without_peer_access_names_pairs():
    report = doctor.examine(_given(ffi=dict(pairs_without_peer_access=lambda: [(0, 1)])))
    sentence = _only(report, "links", STOP)
    assert "[(0, 1)]" in sentence
    assert "nvidia-smi topo -p2p r" in sentence


def test_links_over_pcie_are_noted():
    pcie = dataclasses.replace(TWO_H200, links={(0, 1): machine.PCIE, (1, 0): machine.PCIE})
    report = doctor.examine(_given(machine=lambda: pcie))
    assert "over PCIe only" in _only(report, "links", NOTE)
    assert report.can_run


# ---- environment ---------------------------------------------------------------------------------


def _judge(has_gpus=True, **environ):
    found = environment.judge(environ, has_gpus=has_gpus)
    return {level: [f.sentence() for f in found if f.level == level] for level in (OK, NOTE, STOP)}


def test_environment_defaults_are_stated():
    said = _judge()
    assert said[NOTE] == said[STOP] == []
    text = " ".join(said[OK])
    assert (
        "reported after 30 s (JAX_FLUX_WARN_S) and fails after 600 s (JAX_FLUX_TIMEOUT_S)" in text
    )
    assert "NCCL_NVLS_ENABLE not set" in text
    assert "XLA_FLAGS not set" in text


def test_environment_values_are_shown():
    said = _judge(JAX_FLUX_TIMEOUT_S="45", NCCL_NVLS_ENABLE="0", XLA_FLAGS="--a=b")
    text = " ".join(said[OK])
    assert "fails after 45 s" in text
    assert "NCCL_NVLS_ENABLE=0" in text
    assert "XLA_FLAGS=--a=b" in text


@pytest.mark.parametrize("value", ["soon", "-1", "0", "nan", "inf", "1e10"])
def test_environment_bad_deadline_falls_back_in_words(value):
    (sentence,) = _judge(JAX_FLUX_TIMEOUT_S=value)[NOTE]
    assert "fails after 600 s" in sentence
    assert f"JAX_FLUX_TIMEOUT_S={value!r} is not a number of seconds" in sentence


def test_environment_deadline_before_warning_is_noted():
    (sentence,) = _judge(JAX_FLUX_TIMEOUT_S="20")[NOTE]
    assert "It fails before it warns" in sentence


@pytest.mark.parametrize(("name", "value"), environment.WINDOW_SWITCHES.items())
def test_environment_switch_without_windows_stops(name, value):
    (sentence,) = _judge(**{name: value})[STOP]
    assert f"Unset {name}" in sentence


def test_environment_platforms_hiding_gpus_stops():
    (sentence,) = _judge(JAX_PLATFORMS="cpu")[STOP]
    assert "hides the GPUs from JAX" in sentence
    assert _judge(JAX_PLATFORMS="cuda,cpu")[STOP] == []
    assert _judge(has_gpus=False, JAX_PLATFORMS="cpu")[STOP] == []


# ---- what is printed -----------------------------------------------------------------------------


def test_text_holds_every_finding_and_both_tables():
    report = doctor.examine(_given())
    text = findings.as_text("title", (*report.findings, report.verdict), report.machine)
    words = " ".join(text.split())
    for finding in (*report.findings, report.verdict):
        assert " ".join(finding.sentence().split()) in words
    assert "0    NVIDIA H200  9.0         132  140.4 GiB  345 MHz   1980 MHz  18" in text
    assert "0          -       NVLink" in text
    assert max(map(len, text.splitlines())) <= 100


def test_main_plain_text_off_a_terminal_and_exit_status(monkeypatch, capsys):
    good, bad = doctor.examine(_given()), doctor.examine(_given(ffi=dict(load_native=_missing)))
    for report, status in ((good, 0), (bad, 1)):
        monkeypatch.setattr(doctor, "examine", lambda report=report: report)
        assert doctor.main([]) == status
        printed = capsys.readouterr().out
        assert "verdict" in printed
        assert "\x1b" not in printed


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_main_on_a_terminal_draws_tables(monkeypatch):
    report = doctor.examine(_given())
    monkeypatch.setattr(sys, "stdout", _Terminal())
    findings.show("title", report.findings, report.machine, plain=False)
    assert "┃" in sys.stdout.getvalue()


def test_main_on_a_terminal_without_rich_is_plain(monkeypatch):
    report = doctor.examine(_given())
    real = builtins.__import__

    def without_rich(name, *args, **kwargs):
        if name.split(".")[0] == "rich":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_rich)
    monkeypatch.setattr(sys, "stdout", _Terminal())
    findings.show("title", report.findings, report.machine, plain=False)
    assert sys.stdout.getvalue().startswith("title\n")


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


# ---- the command line ----------------------------------------------------------------------------


def test_command_without_a_tool_lists_tools(capsys):
    assert cli.main([]) == 0
    assert "doctor" in capsys.readouterr().out


def test_command_unknown_tool_says_which_there_are(capsys):
    assert cli.main(["benchmark"]) == 2
    text = capsys.readouterr().err
    assert "no tool 'benchmark'" in text
    assert "doctor" in text


def test_command_doctor_runs_as_a_module():
    command = [sys.executable, "-m", "jax_flux", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout.startswith("jax_flux 0.1.0 on this machine")
    assert "verdict" in done.stdout
