# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of a transformer block: it runs on CPU devices, and notices a wrong gradient."""

from __future__ import annotations

import argparse
import json
import re

import jax
import numpy as np
import pytest

from benchmarks import block
from jax_flux.tools import group, patience
from tests.cpu import programs

TINY = dict(width=32, hidden=64, heads=4, kv_heads=4, seq=16, batch=2)


@pytest.mark.timeout(400)
def test_block_writes_every_contender(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(block, "STEPS", 1)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]
    devices = jax.devices()[:2]
    monkeypatch.setattr(jax, "devices", lambda: devices)
    assert block.main([*flags, "--repeats=3", "--json", str(tmp_path / "b.json")]) == 0
    record = json.loads((tmp_path / "b.json").read_text())
    assert list(record["contenders"]) == list(block.CONTENDERS)
    for name, entry in record["contenders"].items():
        assert len(entry["samples_s"]) == 3 and entry["median_s"] > 0
        assert entry["fused_call_sites"] == 0
        if name.startswith("jax_flux"):
            assert entry["xla_call_sites"] == 8  # four ops of a block and their backwards
            assert entry["gradient_to_xla"] < block.WRONG and not entry["wrong"]
    assert record["sizes"] == TINY and "x the faster XLA" in capsys.readouterr().out


@pytest.mark.timeout(300)
def test_a_gradient_that_differs_is_measured():
    mesh = programs.make_mesh((2,), ("tp",))
    sizes = argparse.Namespace(**TINY)
    state = block.parameters(mesh, block.abstract(sizes, "xla")[1])
    x = jax.random.normal(jax.random.key(0), (2, 16, 32)).astype("bfloat16")
    right = block.gradients(mesh, sizes, "xla")

    def wrong(state, x):
        value, d_state, d_x = right(state, x)
        return value, d_state, d_x * 1.5

    assert block.compared(right, right, state, x) == [0.0, 0.0]
    np.testing.assert_allclose(block.compared(wrong, right, state, x)[1], 0.5, rtol=1e-2)


def test_the_default_block_is_refused_on_cpu_devices_and_the_small_one_is_not(monkeypatch, capsys):
    monkeypatch.setattr(block, "measure", lambda *_: pytest.fail("it was measured"))
    assert block.main([]) == 2
    told = capsys.readouterr().err
    assert "CPU devices, where the block would take about" in told and "--slow" in told
    small = re.findall(r"--[\w-]+ \d+", told)
    options = block.parser().parse_args([word for flag in small for word in flag.split()])
    assert block.flop(options, options.repeats) < patience.LONG_S * patience.CPU_FLOP_PER_S


@pytest.mark.parametrize(("flags", "words"), [(["--mesh", "dp=2,tp=2"], "runs on all devices")])
def test_bad_flags_are_refused_in_words(flags, words, capsys):
    with pytest.raises(SystemExit):
        block.main(flags)
    assert words in capsys.readouterr().err
    assert group.complaint(block.parser().parse_args([])) is None
