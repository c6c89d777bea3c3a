# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What benchmarks/native/preset.py records, and which calls its flags pick: no torch, no GPU."""

from __future__ import annotations

import importlib
import json
import shlex
import subprocess
import sys
import types
from unittest import mock

import pytest

from tests.cpu import records

NATIVE = records.ROOT / "benchmarks" / "native"
UNLINKED = ("preset_h200", "packed_h200")
CARD = {"name": "NVIDIA H200", "driver_version": "580.1"}


@pytest.fixture
def load(monkeypatch):
    """Imports a script of benchmarks/native as they do each other; torch is a stand-in."""
    torch = mock.MagicMock(__version__="2.11", version=types.SimpleNamespace(cuda="13.0"))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.syspath_prepend(NATIVE)
    yield importlib.import_module
    for path in NATIVE.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture
def flags(load):
    return load("preset_flags")


@pytest.fixture
def preset(load, monkeypatch):
    """preset.py with kernels that take no time, run in this process."""
    script = load("preset_time")
    compiled = mock.Mock(instances=lambda **_: instances())
    monkeypatch.setattr(script, "Library", lambda path: compiled)
    monkeypatch.setattr(script, "Rank", mock.MagicMock())
    monkeypatch.setattr(script, "measure", lambda runs, repetitions: dict.fromkeys(runs, 12.34))
    monkeypatch.setattr(script.preset_record, "gpu", lambda: CARD)
    monkeypatch.setattr(script, "in_child", lambda seconds, body: body() or 0)
    return load("preset")


def instances():
    """Names of the product's kernels without timestamps."""
    table = {"struct": types.SimpleNamespace}
    exec((records.ROOT / "cuda" / "kernels" / "instances.bzl").read_text(), table)
    return [row["name"] for row in table["GEMM_INSTANCES"] if "_traced_" not in row["name"]]


def words(command):
    """Arguments of a record's command."""
    python, script, *words = shlex.split(command)
    assert (python, script) == ("python", "benchmarks/native/preset.py")
    return words


def arguments(flags, name):
    return flags.parser("").parse_args(words(records.record(name)["command"]))


@pytest.mark.parametrize("name", UNLINKED)
def test_a_records_command_picks_its_rows_and_kernels(flags, name):
    picked = arguments(flags, name)
    rows = records.rows(name)
    assert flags.shapes(picked) == [(row["m"], row["n"], row["k"]) for row in rows]
    compiled = instances()
    for row in rows:
        calls = flags.calls(flags.instances(picked, compiled), row["m"], picked.worlds)
        labels = {label for _, _, label in calls}
        kept = {label for label in row["us"] if f"sm90_{label}".partition(" ")[0] in compiled}
        assert kept <= labels
        # Kernels compiled since the record was taken are of the same kinds.
        kinds = lambda labels: {
            (k.dtype, k.packed, k.op, k.world) for k in map(records.kernel, labels) if k
        }
        assert kinds(labels) == kinds(row["us"])


def test_the_paced_records_command_picks_its_rows(flags):
    picked = arguments(flags, "paced_h200")
    rows = [(row["op"], row["m"], row["n"], row["k"]) for row in records.rows("paced_h200")]
    assert rows == [(op, *row) for _ in picked.worlds for op, row in flags.linked_rows(picked)]


def test_the_records_commands_stand_in_the_readme():
    text = (records.ROOT / "benchmarks" / "README.md").read_text()
    for name in (*UNLINKED, "paced_h200"):
        # All but the library's path, the file's and the commit.
        flags = records.record(name)["command"].partition(" time ")[2].partition(" --json")[0]
        assert f"time {flags} --json" in text, flags


def run(script, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["preset.py", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        script.main()
    return ended.value.code


@pytest.mark.parametrize("name", UNLINKED)
def test_a_record_is_retaken_in_its_own_form(preset, monkeypatch, tmp_path, name):
    kept = records.record(name)
    retaken = tmp_path / "F"
    retaken.write_text("an older record")
    command = [retaken if word == "F" else word for word in words(kept["command"])]
    assert not run(preset, monkeypatch, *command, "--commit", "abc1234")
    assert list(tmp_path.iterdir()) == [retaken]
    record = json.loads(retaken.read_text())
    assert list(record) == list(kept)
    assert record["label"] == kept["label"]
    assert words(record["command"]) == [*map(str, command), "--commit", "abc1234"]
    assert record["machine"] == "one NVIDIA H200"
    assert (record["driver"], record["torch"], record["cuda"]) == ("580.1", "2.11", "13.0")
    assert record["commit"] == "abc1234"
    assert "medians in us of 9 x 3 launches" in record["what"]
    assert "medians in us of 9 x 3 launches" in kept["what"]
    shapes = lambda record: [(row["m"], row["n"], row["k"]) for row in record["rows"]]
    assert shapes(record) == shapes(kept)
    for row, old in zip(record["rows"], kept["rows"], strict=True):
        assert list(row) == list(old)
        assert set(row["us"].values()) == {12.3}
        baselines = {label for label in old["us"] if records.kernel(label) is None}
        assert baselines == {label for label in row["us"] if records.kernel(label) is None}


def test_the_paced_record_is_retaken_in_its_own_form(load, preset, monkeypatch, tmp_path):
    kept = records.record("paced_h200")
    times = {(r["op"], r["m"], r["n"], r["k"], r["world"]): r for r in kept["rows"]}
    derived = ("limit_us", "ect_us", "e_wire", "of_limit", "of_wire")

    def time_row(library, op, row, world, rate, wanted, repetitions):
        old = times[op, *row, world]
        measured = {key: value for key, value in old.items() if key not in derived}
        measured["instances"] = {
            name: {key: value for key, value in us.items() if key not in derived}
            for name, us in old["instances"].items()
        }
        return measured

    monkeypatch.setattr(load("preset_link"), "time_row", time_row)
    command = [tmp_path / "F" if word == "F" else word for word in words(kept["command"])]
    assert not run(preset, monkeypatch, *command)
    record = json.loads((tmp_path / "F").read_text())
    same = ("label", "link_gb_per_s", "commit", "times", "peak_tflops", "rows")
    assert set(record) == set(kept)
    assert {key: record[key] for key in same} == {key: kept[key] for key in same}


def test_times_say_how_many_launches_the_code_takes(load):
    record = load("preset_record")
    assert record.times(7) == f"medians in us of 7 x {record.LAUNCHES} launches"
    for name in ("preset_time", "preset_link"):
        assert load(name).measure.__defaults__ == (record.LAUNCHES,)


@pytest.mark.parametrize("problem", [FileNotFoundError(), subprocess.TimeoutExpired("x", 60)])
def test_times_are_kept_where_nvidia_smi_does_not_answer(load, monkeypatch, problem):
    record = load("preset_record")
    monkeypatch.setattr(record.subprocess, "run", mock.Mock(side_effect=problem))
    assert record.gpu() == {}


def test_a_shape_that_fails_is_named_in_the_record(load, preset, monkeypatch, tmp_path):
    def in_child(seconds, body):
        return 1 if next(numbers) == 2 else body() or 0

    numbers = iter(range(1, 4))
    monkeypatch.setattr(load("preset_time"), "in_child", in_child)
    words = ("lib", "time", "_pack_", "--rows", "16", "64", "--columns", "6144", "--json")
    assert run(preset, monkeypatch, *words, tmp_path / "F")
    record = json.loads((tmp_path / "F").read_text())
    assert record["failed"] == ["(64, 6144, 12288)"]
    assert [row["m"] for row in record["rows"]] == [16]


def test_nothing_is_written_where_every_shape_failed(load, preset, monkeypatch, tmp_path):
    monkeypatch.setattr(load("preset_time"), "in_child", lambda seconds, body: -9)
    for link in ((), ("--link", "350")):
        words = ("lib", "time", "--rows", "1024", *link, "--json", tmp_path / "F")
        assert run(preset, monkeypatch, *words)
    assert not list(tmp_path.iterdir())


def test_rows_of_a_body_that_dies_are_kept(load):
    def dies():
        yield {"m": 1}
        yield {"m": 2}
        raise RuntimeError("a kernel hung")

    def child(body):
        try:
            body()
        except RuntimeError:
            return 1

    rows, failed = load("preset_record").gather({"W 2": dies, "W 4": lambda: [{"m": 3}]}, child)
    assert rows == [{"m": 1}, {"m": 2}, {"m": 3}]
    assert failed == ["W 2"]


@pytest.mark.parametrize("rest", [("check",), ("time", "--link", "350")])
def test_without_is_refused_where_it_would_do_nothing(preset, monkeypatch, capsys, rest):
    assert run(preset, monkeypatch, "lib", *rest, "--without", "_pack_") == 2
    assert "--without is for time without --link" in capsys.readouterr().err


@pytest.mark.parametrize("rest", [("check",), ("check", "--link", "350"), ("waits",)])
def test_modes_that_check_have_cases_for_every_kernel(load, preset, monkeypatch, rest):
    def check(path, names, seconds, cases, paced=False):
        found.update((name, list(cases(name))) for name in instances())
        assert paced == ("--link" in rest)
        return []

    found = {}
    monkeypatch.setattr(load("preset_check"), "check", check)
    monkeypatch.setattr(load("preset_check"), "check_deadline", lambda path: [])
    assert not run(preset, monkeypatch, "lib", *rest)
    assert all(cases for name, cases in found.items() if not name.endswith("_plain"))
    if "--link" in rest:  # copy engines send past the link
        every = [case for cases in found.values() for case in cases]
        assert all(case["link"] == 350 for case in every)
        assert not any(case.get("plan", {}).get("transport") for case in every)
