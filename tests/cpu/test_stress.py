# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The loop of randomly mixed calls: its draws, that it holds here, and that it finds faults."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys

import jax
import numpy as np
import pytest

import jax_flux
from jax_flux.tools import paths, random_calls, random_programs, stress
from tests.processes import told_by_two

ENV = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"}
PLAIN = random_programs.Layout((8,), ("tp",), ("tp",))


def _call(op="ag_matmul", **rest):
    return random_calls.Call(**(dict(op=op, world=8, m=16, n=(24,), k=16) | rest))


@pytest.fixture(scope="module")
def data():
    return random_programs.Data(jax.devices(), PLAIN, 1 << 14)


def _loop(data, burst=4):
    loop = stress.Loop(jax.devices(), 5, "small", burst)
    loop.data[PLAIN] = data
    return loop


def _fixed(loop, monkeypatch, *calls):
    """The loop with programs of these calls."""
    made = lambda number: random_programs.Program(list(calls), loop.data[PLAIN], True)
    monkeypatch.setattr(loop, "make", made)
    return loop


# ---- draws ---------------------------------------------------------------------------------------


def test_draws_follow_from_the_seed():
    calls = [
        [random_calls.draw(np.random.default_rng([3, i]), 4, random_calls.FULL) for i in range(20)]
        for _ in range(2)
    ]
    assert calls[0] == calls[1]
    assert len(set(calls[0])) > 15


def test_draws_cover_what_the_ops_offer():
    rng = np.random.default_rng(0)
    calls = [random_calls.draw(rng, 8, random_calls.FULL) for _ in range(300)]
    assert {c.op for c in calls} == set(random_calls.SHARE)
    assert {c.dtype for c in calls} == {"bfloat16", "float16", "float32"}
    assert {len(c.n) for c in calls} == {1, 2, 3}
    assert max(c.size for c in calls) <= random_calls.LARGEST
    forced = [c.config for c in calls if c.config is not None]
    for name, values in (random_calls.PLAN | random_calls.PLAN_OF_GATHERS).items():
        assert {getattr(config, name) for config in forced} == {None, *values}
    assert all(c.config.transport is None for c in calls if c.config and c.op != "ag_matmul")
    for field in ("transpose_w", "bias", "return_gathered", "gradient"):
        assert {getattr(c, field) for c in calls} == {True, False}
    assert all(c.activation is None for c in calls if c.op != "ag_matmul")


@pytest.mark.parametrize(("devices", "worlds"), [(2, {2}), (3, {3}), (4, {4, 2}), (8, {8, 4, 2})])
def test_layouts_use_every_device_and_parts_of_the_mesh(devices, worlds):
    found = random_programs.layouts(devices)
    assert {layout.world for layout in found} == worlds
    assert all(np.prod(layout.sizes) == devices for layout in found)
    assert len(set(found)) == len(found)


def test_a_call_is_forced_where_the_library_has_a_kernel(monkeypatch):
    """With its config if there is one for it, else without; else it is left to the op."""
    asked = []

    def explain(*args, implementation, config, **_):
        asked.append(config)
        fused = config is None and args[3] == "bfloat16"
        return argparse.Namespace(implementation="fused" if fused else "xla")

    monkeypatch.setattr(jax_flux, "explain", explain)
    config = jax_flux.Config(chunk_rows=64)
    told = random_calls.forced(_call(config=config), jax.devices()[0])
    assert told == dict(implementation="fused", config=None) and asked == [config, None]
    assert random_calls.forced(_call(dtype="float32"), jax.devices()[0]) == {}


def test_a_call_is_told_by_what_is_not_the_default():
    text = _call("matmul_rs", transpose_w=True).words()
    assert text == "matmul_rs(world=8, m=16, n=(24,), k=16, transpose_w=True)"


# ---- the loop ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        _call(n=(24, 8), return_gathered=True, bias=True, activation="gelu", lead=(2,)),
        _call("matmul_rs", bias=True, gradient=True, rest=(2,), dtype="float32"),
        _call("matmul_ar", transpose_w=True, gradient=True, dtype="float16"),
    ],
    ids=lambda call: call.op,
)
def test_a_round_holds_and_is_counted(data, monkeypatch, call):
    loop = _fixed(_loop(data), monkeypatch, call)
    loop.round(0)
    assert loop.counts["executions"] == 4
    assert loop.counts["judged"] == stress.DATA_SETS * len(loop.alive[0].program.shapes)
    assert loop.counts["fused call sites"] == 0 < loop.counts["call sites"]


def test_a_wrong_result_names_seed_round_and_call(data, monkeypatch):
    right = jax_flux.matmul_rs

    def wrong(*args, **keywords):
        y = right(*args, **keywords)
        return y if keywords.get("implementation") == "xla" else y.at[..., 0].add(1)

    monkeypatch.setattr(jax_flux, "matmul_rs", wrong)
    loop = _fixed(_loop(data), monkeypatch, _call("matmul_rs"))
    words = r"seed 5, round 7, mesh tp 8, axis tp.*matmul_rs\(world=8.*result 0 .*is wrong"
    with pytest.raises(stress.StressError, match=words):
        loop.round(7)


def test_a_result_that_changes_names_the_execution(data, monkeypatch):
    loop = _fixed(_loop(data), monkeypatch, _call())
    admit = loop.admit

    def other(*given):
        one = admit(*given)
        one.kept = [(offset, (y.at[3, 2, 1].add(1),)) for offset, (y,) in one.kept]
        return one

    monkeypatch.setattr(loop, "admit", other)
    words = r"seed 5, round 2, execution 0.*device \d late.*ag_matmul.*1 values of result 0 differ"
    with pytest.raises(stress.StressError, match=words):
        loop.round(2)


def test_results_start_as_nan_whatever_ran_before(data):
    program = random_programs.Program([_call()], data, False)
    first = program.run(0)
    kept = program.run(0)
    counts = program.differing(first, kept)
    assert int(sum(counts)[0]) == 0
    assert all(bool(np.isnan(np.asarray(p, np.float32)).all()) for p in program._poison)
    assert int(program.differing(program.run(64), kept)[0].sum()) > 0  # other data


def test_bits_must_repeat_where_all_is_fused_and_values_elsewhere(data):
    program = random_programs.Program([_call(gradient=True)], data, False)
    assert program._exact() == [False, False, False]
    program.fused = program.sites
    assert program._exact() == [True, False, False]


# ---- the command ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--seed", "-1"], "count from 0"),
        (["--burst", "0"], "--burst and --rounds from 1"),
        (["--rounds", "-1"], "--burst and --rounds from 1"),
        (["--json", "no/such/folder/s.json"], "in a folder that exists"),
        (["--processes", "2"], "belong together"),
    ],
)
def test_bad_flags_are_refused_in_words(flags, words, capsys):
    with pytest.raises(SystemExit) as left:
        stress.main(flags)
    assert left.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.timeout(240)
def test_two_processes_hold_together_and_one_writes(tmp_path):
    command = [sys.executable, "-m", "jax_flux", "stress", "--rounds", "2", "--burst", "4"]
    told = told_by_two([*command, "--json", str(tmp_path / "s.json")], ENV, 200)
    assert "held: 2 programs" in told[0][0] and "held" not in told[1][0]
    record = json.loads((tmp_path / "s.json").read_text())
    assert record["done"] and record["failure"] is None
    assert record["counts"]["executions"] == 8
    assert record["group"] == dict(devices=2, processes=2, label="CPU devices, smoke sizes")


def test_a_disk_that_fills_up_ends_no_run(monkeypatch, tmp_path, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(stress.Loop, "round", lambda loop, _: loop.counts.update(["rounds"]))
    monkeypatch.setattr(paths, "write", full)
    file = tmp_path / "s.json"
    assert stress.main(["--rounds", "2", "--json", str(file)]) == 1
    told = capsys.readouterr()
    assert "held: 2 programs" in told.out
    assert told.err.count(f"--json {file} could not be written: No space left on device") == 3


@pytest.mark.timeout(240)
def test_one_round_of_a_seed_runs_alone(monkeypatch, tmp_path, capsys):
    flags = ["--seed", "1", "--round", "1", "--burst", "2", "--json", str(tmp_path / "s.json")]
    assert stress.main(flags) == 0
    assert "held: 1 programs" in capsys.readouterr().out
    record = json.loads((tmp_path / "s.json").read_text())
    assert record["counts"]["rounds"] == 1 and record["seed"] == 1
