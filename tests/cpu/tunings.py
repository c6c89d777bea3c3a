# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Records and files of made-up tuning, and the fixtures that keep them apart."""

from __future__ import annotations

import dataclasses

import pytest

import jax_flux
from jax_flux import _plan, _records, _tuning
from tests.cpu.plans import AG, KERNELS, instance

NAME = instance("ag_matmul").name
KIND = "NVIDIA H200"
NUMBERS = {
    "chunk_rows": 64,
    "chunk_depth": 512,
    "depth_outer": 1,
    "sweep_segments": 2,
    "transport": "copy",
}


def record(problem=AG, fused_us=289.0, xla_us=301.0, **changes):
    made = _records.Record(
        key=_records.Key.of(problem, KIND),
        instance=NAME,
        numbers=tuple(sorted(NUMBERS.items())),
        fused_us=fused_us,
        xla_us=xla_us,
        date="2026-12-01",
        shared_gpus=False,
        versions=(("jax_flux", jax_flux.__version__), ("nccl", None)),
    )
    return dataclasses.replace(made, **changes)


def tuning(*records):
    return _tuning.Tuning({one.key: one for one in records}, "digest", "here.json")


@pytest.fixture(autouse=True)
def forget():
    _tuning.use(None)
    yield
    _tuning.use(None)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Writes records (or any text) into the user's file."""

    def write(*records, text=None):
        path = tmp_path / "tuning.json"
        path.write_text(_records.dumps(records) if text is None else text)
        monkeypatch.setenv(_records.VARIABLE, str(path))
        _tuning.use(None)
        return path

    return write


def decide(
    records,
    problem=AG,
    implementation=None,
    config=None,
    device_kind=KIND,
    installed=KERNELS,
):
    return _plan.plan(
        problem,
        implementation=implementation,
        config=config,
        platform="gpu",
        device_kind=device_kind,
        installed=installed,
        tuning=records,
    )
