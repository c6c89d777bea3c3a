# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Meshes of the eight host devices, one settled profile of hypothesis, fresh counts,
the kernels that a lowering for CUDA finds, the example.

`lm` and `tiny_run` are examples/train_lm.py: its modules, and one whole run of it.
"""

from __future__ import annotations

import contextlib
import io
from types import SimpleNamespace

import hypothesis
import jax
import pytest

import jax_flux
from jax_flux import _ffi, _plan
from tests.cpu import plans, programs, train_lm

# On a machine with GPUs too: these tests are about the host mesh. Tests on GPUs run in processes of
# their own (tests/gpu/ranks.py), which this does not reach.
jax.config.update("jax_platforms", "cpu")

hypothesis.settings.register_profile(
    "cpu",
    deadline=None,  # the first example of a shape compiles
    derandomize=True,
    max_examples=25,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    database=None,
)
hypothesis.settings.load_profile("cpu")


@pytest.fixture
def mesh() -> jax.sharding.Mesh:
    """dp = 2 x tp = 4, Auto axes."""
    return programs.make_mesh((2, 4), ("dp", "tp"))


@pytest.fixture
def tp8() -> jax.sharding.Mesh:
    """tp = 8, Auto axes."""
    return programs.make_mesh((8,), ("tp",))


@pytest.fixture(params=[True, False], ids=["vma", "novma"])
def check_vma(request) -> bool:
    return request.param


@pytest.fixture
def kernels(monkeypatch):
    """Lowering for CUDA without a GPU: the library's answers are given, nothing is registered.

    The programs here are tiny, so nobody is asked what is faster.
    """
    monkeypatch.setattr(_plan, "_slower", lambda *_: None)
    monkeypatch.setattr(_ffi, "installed", lambda: plans.KERNELS)
    monkeypatch.setattr(_ffi, "register", lambda: None)


@pytest.fixture(autouse=True)
def fresh_stats():
    jax_flux.stats_reset()
    yield
    jax_flux.stats_reset()


@pytest.fixture(scope="session")
def lm():
    return train_lm.load()


@pytest.fixture(scope="session")
def tiny_run(lm, tmp_path_factory):
    """One whole run on the default mesh of 8 host devices."""
    out = tmp_path_factory.mktemp("train_lm")
    with train_lm.quick_compiler(), contextlib.redirect_stdout(io.StringIO()) as log:
        status = lm.main([*train_lm.TINY, "--out", str(out)])
    records = lm.metrics.read(out / "metrics.jsonl")
    return SimpleNamespace(status=status, log=log.getvalue(), out=out, records=records)
