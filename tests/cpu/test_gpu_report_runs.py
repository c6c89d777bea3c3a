# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""`make gpu-report` runs its parts, is killed, and goes on."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
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
