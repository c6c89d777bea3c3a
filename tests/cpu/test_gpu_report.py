# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""`make gpu-report` without GPUs: its plan, that it is killed and goes on, its page, comparing."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from benchmarks import block
from benchmarks.gpu_report import __main__ as command
from benchmarks.gpu_report import compare, page, parts, pictures, record, state
from jax_flux.tools import bench, cases, group, stress
from tests.cpu import gpu_reports as made

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _machine(count):
    return parts.Machine(("NVIDIA H200",) * count, "/nccl")


# ---- the plan ------------------------------------------------------------------------------------


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


# ---- running, being killed, going on -------------------------------------------------------------

DRIVER = """
import pathlib, sys
from benchmarks.gpu_report import __main__ as command, parts, runner
runner.GRACE_S = runner.TERM_S = 1.0
here = pathlib.Path(sys.argv[1])
plan = [
    parts.Part(name, "stress", name, ("-c", (here / f"{name}.py").read_text(), "{out}", str(here)),
               "one", int(processes), float(limit))
    for name, processes, limit in (word.split(":") for word in sys.argv[2].split(","))
]
machine = parts.Machine(("NVIDIA Test",) * 2)
flags = ["--work", str(here / "work"), "--out", str(here / "out"), *sys.argv[3:]]
sys.exit(command.main(flags, machine, plan))
"""
GOOD = """
import json, pathlib, sys
with open(pathlib.Path(sys.argv[2]) / "ran", "a") as ran: print("good", file=ran)
record = dict(seed=0, done=True, failure=None, counts={"rounds": 1})
pathlib.Path(sys.argv[1]).write_text(json.dumps(record))
"""
BAD = "import sys; print('it broke here'); sys.exit(3)"
# Writes the ids of itself and of a child that left the session and ignores SIGTERM.
STUCK = """
import os, pathlib, signal, subprocess, sys, time
here = pathlib.Path(sys.argv[2])
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True)"
child = subprocess.Popen([sys.executable, "-c", code + "; time.sleep(300)"],
                         start_new_session=True, stdout=subprocess.PIPE)
child.stdout.read(1)
(here / "pids.part").write_text(f"{os.getpid()} {child.pid}")
(here / "pids.part").replace(here / "pids")
time.sleep(300)
"""


def _scripts(folder, **codes):
    for name, code in codes.items():
        (folder / f"{name}.py").write_text(code)


def _start(folder, plan, *flags):
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(folder), plan, *flags],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(driver):
    try:
        out, err = driver.communicate(timeout=90)
    finally:
        driver.kill()
    return driver.returncode, out, err


def _alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _wait_for(path):
    end = time.monotonic() + 60
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.05)
    return path.read_text()


def _statuses(folder):
    (path,) = (folder / "work").glob("*/state.json")
    return {name: e["status"] for name, e in json.loads(path.read_text())["parts"].items()}


def test_parts_end_as_they_end(tmp_path):
    """One holds, one fails on one of its ranks while the other hangs, one reaches its limit."""
    hangs = "import sys, time\nif sys.argv[-3] == '0': print('it broke here'); sys.exit(3)\n"
    _scripts(tmp_path, good=GOOD, bad=hangs + "time.sleep(300)", slow=STUCK)
    code, out, err = _finish(_start(tmp_path, "good:1:60,bad:2:60,slow:1:8"))
    assert code == 1
    assert _statuses(tmp_path) == {"good": "held", "bad": "failed", "slow": "killed"}
    assert "it broke here" in err and "ended by its limit of 8 s" in _page(tmp_path)
    assert "Parts: 1 held, 1 failed, 1 killed." in out
    assert not any(_alive(pid) for pid in (tmp_path / "pids").read_text().split())


def _page(folder):
    (path,) = (folder / "out").glob("*.md")
    return path.read_text()


def test_a_run_that_is_told_to_end_leaves_no_process_and_is_gone_on_with(tmp_path):
    _scripts(tmp_path, good=GOOD, stuck=STUCK, last=GOOD)
    plan = "good:1:60,stuck:1:200,last:1:60"
    driver = _start(tmp_path, plan)
    pids = _wait_for(tmp_path / "pids").split()
    driver.send_signal(signal.SIGTERM)
    code, out, err = _finish(driver)
    assert code == 1 and "SIGTERM; the next run goes on from here" in err
    assert not any(_alive(pid) for pid in pids)
    assert _statuses(tmp_path) == {"good": "held", "stuck": "killed"}
    assert "1 held, 1 killed, 1 missing" in out and "| last | missing |" in _page(tmp_path)
    _scripts(tmp_path, stuck=GOOD)
    code, out, err = _finish(_start(tmp_path, plan))
    assert code == 0, err
    assert "Parts: 3 held." in out
    # What never had its turn comes first, and what held did not run again.
    assert err.index("last: last") < err.index("stuck: stuck") and "good: good" not in err
    assert (tmp_path / "ran").read_text().split() == ["good"] * 3


def test_a_run_that_is_killed_outright_is_gone_on_with(tmp_path):
    _scripts(tmp_path, stuck=STUCK)
    driver = _start(tmp_path, "stuck:1:200")
    pids = [int(pid) for pid in _wait_for(tmp_path / "pids").split()]
    driver.kill()
    _finish(driver)
    end = time.monotonic() + 10
    while _alive(pids[0]) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _alive(pids[0])  # the kernel ended it with its parent
    os.kill(pids[1], signal.SIGKILL)
    assert _statuses(tmp_path) == {"stuck": "running"}
    _scripts(tmp_path, stuck=GOOD)
    code, _, err = _finish(_start(tmp_path, "stuck:1:60"))
    assert code == 0, err
    assert _statuses(tmp_path) == {"stuck": "held"}


def test_nothing_starts_that_ends_after_the_time_given(tmp_path):
    _scripts(tmp_path, good=GOOD, other=GOOD)
    code, out, err = _finish(_start(tmp_path, "good:1:60,other:1:60", "--seconds", "5"))
    assert code == 1 and "time is over, 2 parts left" in err
    assert "Parts: 2 missing." in out


def test_a_further_run_of_the_same_code_is_kept_apart(tmp_path):
    _scripts(tmp_path, good=GOOD)
    for flags in ((), ("--run", "b"), ()):
        assert _finish(_start(tmp_path, "good:1:60", *flags))[0] == 0
    assert (tmp_path / "ran").read_text().split() == ["good"] * 2
    names = sorted(path.name for path in (tmp_path / "out").glob("*.json"))
    assert len(names) == 2 and names[1] == names[0].replace(".json", "_b.json")


# ---- the page ------------------------------------------------------------------------------------


def test_page_has_every_row_goals_losses_and_what_failed():
    text = page.markdown(made.report(), ["a.png"])
    assert "# 2 × NVIDIA H200, 2026-01-02" in text
    assert (
        "| ag-2048x6144x12288 | 200 | 281 (81) | 279 (79) | 290 (90) | 204 (4) | sm90_ag |" in text
    )
    assert "Slower than XLA: ag-1024x6144x12288." in text
    assert "Goals: 3 of 6 met." in text
    assert "`t.one`" in text and "| bench-b | missing | – |  |" in text
    assert "| tests-tp2 | failed | 1 | exit status 1 |" in text
    assert "![a](a.png)" in text


def test_page_of_shared_ranks_quotes_no_time():
    text = page.markdown(made.report(real=False))
    assert "ranks sharing the GPU, no figures of speed" in text
    assert "| ag-2048x6144x12288 | fused | 1.0e-03 |" in text
    for figure in ("204 (", "281 (", "µs", "TFLOP", "1.100", "20.000"):
        assert figure not in text


def test_a_failed_loop_is_told_with_its_seed():
    failed = {"stress-one": made.stress_record("seed 0, round 7, matmul_rs(...) is wrong")}
    text = page.markdown(made.report(stress=failed))
    assert "**no**" in text and "`seed 0, round 7" in text


def test_front_page_has_losses_and_what_xla_ran():
    lines = page.front_page(made.report()).splitlines()
    assert lines[0].startswith("| op | m | matmul alone | XLA | XLA, latency-hiding | Pallas |")
    assert lines[2].startswith("| all_gather + matmul | 1024 | 100 | 150 (50) | 151 (51) | – |")
    assert "| 160 (60) | 0.94 × (slower) | -0.20 |" in lines[2]
    assert "| 290 (90) | 204 (4) | 1.37 × | 0.95 |" in lines[3]
    assert "282 (82) by XLA" in lines[4]
    assert len({line.count("|") for line in lines}) == 1


@pytest.mark.parametrize(
    ("changed", "words"), [(dict(real=False), "say nothing"), (dict(bench={}), "no row of GPT-3")]
)
def test_front_page_is_refused_where_there_is_none(changed, words):
    with pytest.raises(ValueError, match=words):
        page.front_page(made.report() | changed)


def test_pictures_are_drawn_per_op(tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    names = pictures.write(made.report(), tmp_path, "r")
    assert names == ["r_one_ag.png", "r_one_rs.png"]
    assert all((tmp_path / name).read_bytes()[:4] == b"\x89PNG" for name in names)
    assert pictures.write(made.report(real=False), tmp_path, "s") == []


def test_tests_are_counted_from_their_file(tmp_path):
    path = tmp_path / "t.xml"
    path.write_text(
        '<testsuites><testsuite tests="4" failures="1" errors="0" skipped="1">'
        '<testcase classname="a" name="x"/><testcase classname="a" name="y"><failure/></testcase>'
        '<testcase classname="a" name="z"><skipped/></testcase><testcase classname="a" name="w"/>'
        "</testsuite></testsuites>"
    )
    assert record.tests(path) == dict(passed=2, failed=1, skipped=1, failures=["a.y"])


def test_a_row_of_several_parts_counts_once_and_meshes_stay_apart():
    mesh = made.bench_record(made.row("ag-1024x6144x12288", ours=150), mesh={"dp": 2, "tp": 2})
    changed = made.report()
    changed["bench"] |= {"bench-c": mesh, "bench-d": changed["bench"]["bench-a"]}
    changed["parts"] += [made.part("bench-c", "bench"), made.part("bench-d", "bench")]
    assert len(record.rows(changed, "one")) == 3
    assert record.meshes(changed) == ["dp 2 x tp 2"]
    assert "## One process with all GPUs, mesh dp 2 x tp 2" in page.markdown(changed)


def test_page_compares_the_process_models():
    changed = made.report()
    changed["bench"]["bench-e"] = made.bench_record(made.row("ag-2048x6144x12288", ours=210.0))
    changed["parts"].append(made.part("bench-e", "bench", "each"))
    assert "| ag-2048x6144x12288 | 204 | 210 | 1.029 |" in page.markdown(changed)
    assert "in both process models" not in page.markdown(made.report())


# ---- comparing -----------------------------------------------------------------------------------


def _write(path, written):
    path.write_text(json.dumps(written | dict(what="")))
    return path


def test_two_runs_within_the_bar_agree(tmp_path, capsys):
    a = _write(tmp_path / "a.json", made.report())
    changed = made.report()
    ours = changed["bench"]["bench-a"]["rows"][0]["implementations"]["jax_flux"]
    ours["median_s"] *= 1.02
    b = _write(tmp_path / "b.json", changed)
    assert command.main(["--compare", str(a), str(b)]) == 0
    told = capsys.readouterr().out
    assert "3 ratios to XLA in both" in told and "largest 2.0%; 0 beyond 3%" in told
    assert "rs-2048x12288x6144" not in told  # XLA ran it in both


def test_two_runs_beyond_the_bar_do_not_agree(tmp_path, capsys):
    a = _write(tmp_path / "a.json", made.report())
    slow = dict(block={"block-one": made.block_record(1.0)}, code="other")
    assert compare.main(a, _write(tmp_path / "b.json", made.report(**slow))) == 1
    told = capsys.readouterr().out
    assert "note: code differs: abc and other" in told
    assert "10.0%  beyond the bar" in told and "1 beyond 3%" in told


def test_shared_ranks_and_other_files_are_not_compared(tmp_path, capsys):
    shared = _write(tmp_path / "s.json", made.report(real=False))
    assert compare.main(shared, shared) == 1
    assert "no speed to compare" in capsys.readouterr().out
    (tmp_path / "x.json").write_text("{}")
    assert compare.main(shared, tmp_path / "x.json") == 1
    assert "is no report" in capsys.readouterr().err
