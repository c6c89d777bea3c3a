# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the native side lacks, in words, by injected answers; warnings of fallbacks."""

from __future__ import annotations

import warnings

import jax.numpy as jnp
import pytest

import jax_flux
from jax_flux import _dispatch, _ffi, _plan, _probes, _stats, errors
from tests.cpu.messages import raises

# ---- messages of the native side, with injected answers ------------------------------------------


class Native:
    """Stands for the extension module."""

    def __init__(self, library=None, api=(0, 4)):
        self.version = library or jax_flux.__version__
        self.api = api

    def versions(self):
        return {"library": self.version, "ffi_api_major": self.api[0], "ffi_api_minor": self.api[1]}

    def registrations(self):
        return {"jax_flux_all_gather_copy_v1": {"execute": object()}}

    def instances(self):
        return [
            dict(
                name="i",
                op="ag_matmul",
                dtype="bf16",
                layout="nn",
                tile=(128, 192, 64),
                cluster=(2, 1),
                transports=("tma", "copy"),
            )
        ]

    def last_failure(self):
        return "ag_matmul: rank 1 waited for rank 0"


def probes(**answers):
    registered = []
    good = dict(
        load_native=Native,
        jaxlib_version=lambda: (0, 11, 2),
        ffi_api=lambda: (0, 4),
        nccl_version=lambda: (2, 28, 9),
        pairs_without_peer_access=list,
        register_target=lambda name, stages, platform: registered.append((name, platform)),
    )
    return _probes.Probes(**(good | answers)), registered


@pytest.fixture
def unregistered():
    _ffi.reset_for_tests()
    yield
    _ffi.reset_for_tests()


def missing():
    raise ImportError("No module named 'jax_flux._native'")


@pytest.mark.parametrize(
    "answers, parts",
    [
        (
            dict(jaxlib_version=lambda: (0, 11, 1)),
            ("jaxlib 0.11.1", "collectives extension", "jaxlib>=0.11.2"),
        ),
        (dict(ffi_api=lambda: (0, 3)), ("FFI API 0.3", "FFI API 0.4", "Install jaxlib")),
        (
            dict(load_native=lambda: Native(api=(0, 5))),
            ("built for FFI API 0.5", "jaxlib has 0.4", "make native"),
        ),
        (
            dict(load_native=missing),
            ("missing or does not load", "No module named", "make native", "make wheel"),
        ),
        (
            dict(load_native=lambda: Native(library="0.0.9")),
            ("version 0.0.9", jax_flux.__version__, "Rebuild"),
        ),
        (dict(load_native=object), ("lists no kernels", "Rebuild")),
        (
            dict(nccl_version=lambda: None),
            ("no libnccl.so.2", "never load a second one", "nvidia-nccl-cu13"),
        ),
        (
            dict(nccl_version=lambda: (2, 27, 7)),
            ("NCCL 2.27.7", "2.28.0 to 2.30.7", "nvidia-nccl-cu13"),
        ),
        (
            dict(nccl_version=lambda: (2, 31, 0)),
            ("NCCL 2.31.0", "2.28.0 to 2.30.7", "Install nvidia-nccl-cu13 within"),
        ),
        (
            dict(pairs_without_peer_access=lambda: [(0, 1)]),
            ("peer access", "[(0, 1)]", "NVLink", 'implementation="xla"'),
        ),
    ],
    ids=[
        "jaxlib",
        "ffi-api",
        "library-newer-api",
        "library-missing",
        "library-version",
        "library-empty",
        "nccl-missing",
        "nccl-old",
        "nccl-new",
        "peers",
    ],
)
def test_native_side_says_what_is_missing(answers, parts, unregistered):
    given, registered = probes(**answers)
    with raises(errors.NativeError, "jax_flux", *parts):
        _ffi.register(given)
    assert not registered, "a target was registered in spite of the error"
    assert parts[0] in _ffi.installed(given).problem


@pytest.mark.parametrize("version", [(2, 28, 0), (2, 28, 9), (2, 30, 7)], ids=str)
def test_register_once_accepts_the_tried_range(version, unregistered):
    given, registered = probes(nccl_version=lambda: version)
    _ffi.register(given)
    _ffi.register(given)
    assert registered == [("jax_flux_all_gather_copy_v1", "CUDA")]
    assert _ffi.installed(given).instances[0].dtype == "bfloat16"
    assert jax_flux.last_failure() == "ag_matmul: rank 1 waited for rank 0"


def test_real_probes_answer_on_this_machine():
    real = _probes.Probes()
    assert real.jaxlib_version() >= (0, 11, 2)
    assert real.ffi_api() >= (0, 4)
    assert real.pairs_without_peer_access() == []
    assert real.nccl_version() is None or len(real.nccl_version()) == 3


# ---- warnings ------------------------------------------------------------------------------------


def gpu_spec():
    return _dispatch.Spec(
        "ag_matmul", ("tp",), 4, jnp.dtype("float32"), platform="gpu", device_kind="NVIDIA H200"
    )


def announce(spec, dtype="float32"):
    problem = _plan.Problem("ag_matmul", 1, 8, (8,), (8,), 4, dtype, dtype)
    decision = _plan.plan(
        problem,
        implementation=spec.implementation,
        config=None,
        platform=spec.platform,
        device_kind=spec.device_kind,
        installed=_plan.Installed(),
    )
    _dispatch.announce(spec, decision, "")


def test_unsupported_call_on_a_gpu_warns_once_per_call_site():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            announce(gpu_spec())
        announce(gpu_spec())
    assert len(caught) == 1  # one line of the package's caller: announce() above
    assert issubclass(caught[0].category, errors.FallbackWarning)
    assert 'implementation="xla"' in str(caught[0].message)
    assert caught[0].filename == __file__
    assert jax_flux.stats()["ag_matmul"]["xla"] == 4


def test_chosen_xla_on_a_gpu_does_not_warn():
    import dataclasses

    announce(dataclasses.replace(gpu_spec(), implementation="xla"))
    assert jax_flux.stats()["ag_matmul"]["xla"] == 1


def test_warned_call_sites_are_told_apart():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _stats.warn_once("ag_matmul", "a reason")
        _stats.warn_once("ag_matmul", "a reason")
    assert len(caught) == 2
