# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""A machine of two H200 on which all is well, for doctor; tests change one answer at a time."""

from __future__ import annotations

from types import SimpleNamespace

import jax_flux
from jax_flux import _ffi, _plan
from jax_flux.tools import doctor, machine

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
        self.ops, self.version = ops, library

    def versions(self):
        return dict(
            library=self.version, ffi_api_major=0, ffi_api_minor=4, cuda=13000, protocol=1, nccl=0
        )

    def instances(self):
        return [dict(ROW, name=f"{op}_kernel", op=op) for op in self.ops]

    def registrations(self):
        return {}

    def last_failure(self):
        return None


def missing(*_):
    raise ImportError("No module named 'jax_flux._native'")


def given(*, native=None, ffi=None, **changed):
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


def only(report, topic, level):
    """The one finding of this topic at this level, as a sentence."""
    found = [f for f in (*report.findings, report.verdict) if (f.topic, f.level) == (topic, level)]
    assert len(found) == 1, report
    return found[0].sentence()
