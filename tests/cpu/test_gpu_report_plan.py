# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What `make gpu-report` plans for a machine, and its flags."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest

from benchmarks import block
from benchmarks.gpu_report import __main__ as command
from benchmarks.gpu_report import parts, state
from jax_flux.tools import bench, cases, group, stress


def _machine(count):
    return parts.Machine(("NVIDIA H200",) * count, "/nccl")


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_every_part_is_short_and_its_rows_exist(count):
    plan = parts.plan(_machine(count))
    assert len({part.name for part in plan}) == len(plan) > 8
    for part in plan:
        assert part.limit_s < 540
        for flag in part.argv:
            if flag.startswith("--rows="):
                world = count if part.model != "shared" else part.processes
                rows = cases.select(flag.removeprefix("--rows="))
                assert rows and all(row.obstacle(world) is None for row in rows)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_both_process_models_measure_the_same_rows(count):
    rows = {"one": set(), "each": set()}
    for part in parts.plan(_machine(count)):
        if part.kind == "bench":
            rows[part.model].add(next(flag for flag in part.argv if "--rows" in flag))
            assert part.processes == (1 if part.model == "one" else count)
    assert rows["one"] == rows["each"]
    assert f"--rows=triton+w{count}" in rows["one"]


def test_groups_of_the_mesh_are_measured_where_there_are_some():
    meshes = lambda count: {
        flag
        for part in parts.plan(_machine(count))
        for flag in part.argv
        if flag.startswith("--mesh")
    }
    assert meshes(2) == set()
    assert meshes(8) == {"--mesh=dp=2,tp=4", "--mesh=tp=4,dp=2"}


def test_pallas_waits_without_a_deadline_so_one_process_only():
    for part in parts.plan(_machine(2)):
        has = any("pallas" in flag for flag in part.argv if flag.startswith("--against"))
        assert not has or part.model == "one"
    named = {part.name: part for part in parts.plan(_machine(2))}
    assert "--against=xla,xla-lhs,pallas" in named["bench-gpt3+ag-one"].argv
    assert "--against=xla,xla-lhs" in named["bench-gpt3+rs-one"].argv


def test_parts_of_the_gpu_tests_leave_no_test_out():
    words = [p.argv[-1] for p in parts.plan(_machine(1)) if p.argv[-3:-2] == ("tests/gpu",)]
    assert words[:4] == ["tp2", "tp3", "tp4", "tp8"]
    assert words[4] == "not tp2 and not tp3 and not tp4 and not tp8"


def test_only_the_gpu_tests_touch_gpus():
    for part in parts.plan(_machine(2)):
        if part.kind == "tests":
            on_cpu = part.environment(_machine(2)).get("JAX_PLATFORMS") == "cpu"
            assert on_cpu == (part.name == "tests-multiprocess")


def test_one_gpu_runs_shared_ranks_only_where_nccl_lets_them():
    assert {p.model for p in parts.plan(_machine(1)) if p.kind != "tests"} == {"shared"}
    assert {p.kind for p in parts.plan(parts.Machine(("NVIDIA H200",)))} == {"tests"}
    env = parts.plan(_machine(1))[0].environment(_machine(1))
    assert env["LD_PRELOAD"] == "/nccl" and env["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"


def test_processes_meet_and_have_a_gpu_each():
    part = next(p for p in parts.plan(_machine(4)) if p.name == "smoke-each")
    lines = part.commands(pathlib.Path("/o/f.json"), 1234)
    assert len(lines) == 4 and lines[2][0] == sys.executable
    told = ["--coordinator", "127.0.0.1:1234", "--processes", "4", "--process", "2", "--gpu", "2"]
    assert lines[2][-8:] == told
    assert "--json=/o/f.json" in lines[0]


@pytest.mark.parametrize("count", [1, 2, 8])
def test_every_command_line_is_understood(count, tmp_path):
    parsers = {"bench": bench._parser, "stress": stress._parser, "block": block.parser}
    for part in parts.plan(_machine(count), quick=True):
        if part.kind == "tests":
            continue
        for line in part.commands(tmp_path / "f.json", 1234):
            options = parsers[part.kind]().parse_args(
                line[line.index("-m") + 2 :][_skipped(part) :]
            )
            assert group.complaint(options) is None and options.json == tmp_path / "f.json"


def _skipped(part):
    """Words between -m's module and the flags: the tool's name, for jax_flux's own."""
    return 1 if part.argv[1] == "jax_flux" else 0


@pytest.mark.parametrize(
    ("found", "told", "count", "visible"),
    [
        (8, None, 8, None),
        (6, None, 4, "0,1,2,3"),
        (8, "7, 5,3", 2, "7,5"),
        (8, "2,3", 2, None),
        (1, None, 1, None),
        (2, "-1", 0, None),
        (0, None, 0, None),
    ],
)
def test_as_many_gpus_as_rows_divide_over(found, told, count, visible, tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\n" + "echo NVIDIA H200\n" * found + f"exit {int(not found)}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if told is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", told)
    machine = parts.look()
    assert (len(machine.gpus), machine.visible) == (count, visible)
    for part in parts.plan(machine):
        assert part.environment(machine).get("CUDA_VISIBLE_DEVICES") == visible


def test_without_a_gpu_it_says_so(capsys):
    assert command.main([], machine=parts.Machine(())) == 1
    assert "no NVIDIA GPU is visible" in capsys.readouterr().err


def test_parts_are_listed_without_a_gpu_as_of_a_machine_with_two(capsys):
    assert command.main(["--list"], machine=parts.Machine(())) == 0
    printed = capsys.readouterr()
    assert [line.split()[0] for line in printed.out.splitlines()] == [
        part.name for part in parts.plan(_machine(2))
    ]
    assert "no NVIDIA GPU is visible here: the parts of a machine with two" in printed.err


def test_parts_are_listed_and_chosen_by_words(capsys):
    assert command.main(["--list", "--only", "stress,block"], machine=_machine(2)) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == ["stress-one", "stress-each", "block-one", "block-each"]
    with pytest.raises(SystemExit):
        command.main(["--only", "nothing"], machine=_machine(2))
    assert "'nothing' names no part of smoke-one" in capsys.readouterr().err


def test_digest_changes_with_the_code_and_not_with_results(tmp_path):
    (tmp_path / "jax_flux").mkdir()
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "jax_flux" / "a.py").write_text("1")
    first = state.digest(tmp_path)
    (tmp_path / "benchmarks" / "results" / "r.json").write_text("{}")
    assert state.digest(tmp_path) == first
    (tmp_path / "jax_flux" / "a.py").write_text("2")
    assert state.digest(tmp_path) != first
