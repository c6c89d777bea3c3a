# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""``python -m jax_flux doctor``: a sentence per finding, and the verdict that follows."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from jax_flux import _records, _tuning
from jax_flux.tools import doctor, environment, machine
from jax_flux.tools.findings import NOTE, OK, STOP
from tests.cpu.machines import H200, TWO_H200, Native, given, missing, only

# ---- the verdict ---------------------------------------------------------------------------------


def test_verdict_two_h200_can_run_fused():
    report = doctor.examine(given())
    assert report.can_run
    assert [f for f in report.findings if f.level != OK] == []


def test_tuning_file_is_counted_or_refused_in_words():
    report = doctor.examine(given())
    assert "the cost model decides" in only(report, "tuning", OK)
    read = lambda: _tuning.Tuning({"a call": "a record"}, "digest", "here.json")
    report = doctor.examine(given(tuning=read))
    assert only(report, "tuning", OK) == "1 tuning record of here.json."

    def refused():
        return _records.parse("{", "here.json")

    report = doctor.examine(given(tuning=refused))
    assert not report.can_run
    told = only(report, "tuning", STOP)
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

    report = doctor.examine(given(explain=explain))
    assert report.can_run
    assert only(report, "verdict", OK).endswith(words)


def test_verdict_one_thing_missing_takes_its_words_as_the_reason():
    report = doctor.examine(given(ffi=dict(nccl_version=lambda: (2, 27, 7))))
    assert not report.can_run
    sentence = only(report, "verdict", STOP)
    assert 'would run "xla": NCCL 2.27.7 is loaded' in sentence
    assert "Mend what is marked STOP above (nccl)" in sentence


def test_verdict_no_gpu_says_platform():
    report = doctor.examine(given(cuda_devices=lambda: ((), "Unknown backend cuda")))
    sentence = only(report, "verdict", STOP)
    assert "would run \"xla\": the mesh is on platform 'cpu'" in sentence


# ---- one finding each ----------------------------------------------------------------------------


def test_python_other_system_stops():
    report = doctor.examine(given(system=("Darwin", "arm64")))
    assert "Linux x86_64 only" in only(report, "python", STOP)


def test_jax_ffi_api_too_old_names_remedy():
    report = doctor.examine(given(ffi=dict(ffi_api=lambda: (0, 3))))
    sentence = only(report, "jax", STOP)
    assert "Jaxlib 0.11.2 has FFI API 0.3" in sentence
    assert "Install jaxlib>=0.11.2,<0.13" in sentence


def test_jax_newer_than_tried_is_noted():
    report = doctor.examine(given(ffi=dict(jaxlib_version=lambda: (0, 13, 0))))
    assert "tried with jax below 0.13" in only(report, "jax", NOTE)
    assert report.can_run


def test_native_missing_says_make_native():
    report = doctor.examine(given(ffi=dict(load_native=missing)))
    sentence = only(report, "native", STOP)
    assert "is missing or does not load" in sentence
    assert "`make native`" in sentence


def test_native_other_version_says_rebuild():
    report = doctor.examine(given(native=Native(library="0.0.9")))
    sentence = only(report, "native", STOP)
    assert "The native library is version 0.0.9" in sentence
    assert "Rebuild with `make native`" in sentence


def test_native_versions_and_kernels_are_listed():
    report = doctor.examine(given())
    assert "built for FFI API 0.4 and CUDA 13.0, protocol 1" in only(report, "native", OK)
    assert "1 of ag_matmul, 1 of matmul_rs" in only(report, "kernels", OK)


def test_kernels_without_a_fused_op_stops():
    report = doctor.examine(given(native=Native(ops=("all_gather_copy",))))
    assert "no fused kernel of ag_matmul, matmul_rs" in only(report, "kernels", STOP)
    assert "no ag_matmul kernel for bfloat16" in only(report, "verdict", STOP)


def test_driver_too_old_stops():
    old = dataclasses.replace(TWO_H200, driver="550.54", driver_cuda=(12, 4))
    sentence = only(doctor.examine(given(machine=lambda: old)), "driver", STOP)
    assert "NVIDIA driver 550.54, serving CUDA up to 12.4" in sentence
    assert "release 580 or newer" in sentence


def test_driver_cuda_python_missing_is_noted_and_fused_still_runs():
    problem = "cuda-python is not installed (pip install cuda-python)"
    report = doctor.examine(given(machine=lambda: machine.Machine(problem=problem)))
    assert "pip install cuda-python" in only(report, "driver", NOTE)
    assert report.can_run


def test_gpus_seen_by_the_driver_only_names_jax_cuda13():
    report = doctor.examine(given(cuda_devices=lambda: ((), "Unknown backend cuda.")))
    sentence = only(report, "gpus", STOP)
    assert "JAX has no CUDA device (Unknown backend cuda)" in sentence
    assert "install jax[cuda13]" in sentence


def test_gpus_absent_says_what_fused_needs():
    nothing = machine.Machine(problem="no NVIDIA driver answers")
    report = doctor.examine(
        given(cuda_devices=lambda: ((), "Unknown backend cuda"), machine=lambda: nothing)
    )
    assert "two or more NVIDIA Hopper GPUs" in only(report, "gpus", STOP)


def test_gpus_single_has_no_peer():
    report = doctor.examine(given(cuda_devices=lambda: ((H200,), None)))
    assert "One GPU has no peer" in only(report, "gpus", STOP)
    assert not report.can_run


def test_gpus_other_architecture_stops():
    a100 = SimpleNamespace(device_kind="NVIDIA A100-SXM4-80GB", compute_capability="8.0")
    report = doctor.examine(given(cuda_devices=lambda: ((a100, a100), None)))
    assert "compute capability 8.0" in only(report, "gpus", STOP)
    assert "sm_90 (Hopper), not NVIDIA A100" in only(report, "verdict", STOP)


def test_nccl_loaded_and_wheel_are_both_named():
    sentence = only(doctor.examine(given()), "nccl", OK)
    assert "NCCL 2.28.9, tried range 2.28.0 to 2.30.7" in sentence
    assert "nvidia-nccl-cu13 2.28.9" in sentence


def test_nccl_outside_range_names_wheel_and_range():
    report = doctor.examine(given(ffi=dict(nccl_version=lambda: (2, 32, 3))))
    sentence = only(report, "nccl", STOP)
    assert "NCCL 2.32.3 is loaded" in sentence
    assert "Install nvidia-nccl-cu13 within 2.28.0 to 2.30.7" in sentence


def test_nccl_missing_on_gpus_stops():
    report = doctor.examine(
        given(ffi=dict(nccl_version=lambda: None), wheel_version=lambda name: None)
    )
    sentence = only(report, "nccl", STOP)
    assert "No libnccl.so.2 is loaded and no NCCL wheel is installed" in sentence
    assert "wheel installed: none" in sentence


def test_nccl_not_loaded_without_gpus_is_only_noted():
    report = doctor.examine(
        given(
            cuda_devices=lambda: ((), "Unknown backend cuda"), ffi=dict(nccl_version=lambda: None)
        )
    )
    assert "o NCCL that fits, and no CUDA device" in only(report, "nccl", NOTE)


def test_links_without_peer_access_names_pairs():
    report = doctor.examine(given(ffi=dict(pairs_without_peer_access=lambda: [(0, 1)])))
    sentence = only(report, "links", STOP)
    assert "[(0, 1)]" in sentence
    assert "nvidia-smi topo -p2p r" in sentence


def test_links_over_pcie_are_noted():
    pcie = dataclasses.replace(TWO_H200, links={(0, 1): machine.PCIE, (1, 0): machine.PCIE})
    report = doctor.examine(given(machine=lambda: pcie))
    assert "over PCIe only" in only(report, "links", NOTE)
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


@pytest.mark.parametrize("name", ["WARN", "TIMEOUT", "QUEUE", "GRACE"])
def test_environment_judges_every_number_of_seconds(name):
    (sentence,) = _judge(**{f"JAX_FLUX_{name}_S": "x"})[NOTE]
    assert f"JAX_FLUX_{name}_S='x' is not a number of seconds" in sentence


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
