# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""``python -m jax_flux tune``: its trials on CPU devices, its flags, its words."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import jax
import pytest

from jax_flux import _config, _plan, _records, _tuning
from jax_flux.tools import cases, group, trials, tune
from jax_flux.tools.space import Candidate
from tests.cpu import programs

# ---- trials on devices, here of the CPU ----------------------------------------------------------


def cpu_trials(ops, *, kind="ag", layout="nn", budget_s=1e6, clock=None, batch=1):
    ranks = group.Group(programs.make_mesh((4,), ("tp",)), group.CPU, "smoke")
    case = cases.Case(kind, 64, 16, 32)
    right = trials.flux(case, layout == "nt", None)

    def op_of(candidate):
        return right if candidate is None else ops[candidate.instance](right)

    return trials.Trials(
        case,
        ranks,
        dtype="bfloat16",
        transpose_w=layout == "nt",
        batch=batch,
        budget_s=budget_s,
        op_of=op_of,
        **({"clock": clock} if clock else {}),
    )


def slow(right):
    return lambda x, w: right(x, w) + 0 * sum(right(x * i, w) for i in range(1, 20))


def wrong(right):
    return lambda x, w: right(x, w).at[..., 3].set(0)


def refuses(right):
    def op(x, w):
        raise ValueError("this kernel takes no such sizes")

    return op


@pytest.mark.parametrize("kind, layout, batch", [("ag", "nn", 1), ("rs", "nt", 1), ("ag", "nt", 3)])
def test_trials_check_and_time_plans(kind, layout, batch):
    ops = {"right": lambda right: right, "slow": slow, "wrong": wrong, "refuses": refuses}
    on = cpu_trials(ops, kind=kind, layout=layout, batch=batch)
    every = [Candidate(name) for name in ops]
    took = on.times(every, 3)
    assert took[0] is not None and took[1] is not None
    assert took[2:] == [None, None]
    assert "WRONG RESULT" in on.broken[every[2]]
    assert on.broken[every[3]] == "ValueError: this kernel takes no such sizes"
    assert on.times(every[2:], 3) == [None, None]  # known, and not tried again
    assert on.tried == 4
    fused, xla = on.against_xla(every[:1], 3)
    assert len(fused) == 1 and fused[0] > 0 and xla > 0


def test_trials_stop_at_the_budget_but_try_one_plan():
    ticks = itertools.count()
    on = cpu_trials(
        {"a": lambda right: right, "b": lambda right: right},
        budget_s=1,
        clock=lambda: float(next(ticks)),
    )
    took = on.times([Candidate("a"), Candidate("b")], 1)
    assert took[0] is not None and took[1] is None
    assert on.broken[Candidate("b")] == trials.NO_TIME
    assert not on.left()


def test_trials_of_the_real_ops_say_that_a_cpu_has_no_kernel():
    ranks = group.Group(programs.make_mesh((4,), ("tp",)), group.CPU, "smoke")
    on = trials.Trials(
        cases.Case("ag", 64, 16, 32),
        ranks,
        dtype="bfloat16",
        transpose_w=False,
        batch=1,
        budget_s=60,
    )
    assert on.times([Candidate("kernel")], 1) == [None]
    assert "platform 'cpu'" in on.broken[Candidate("kernel")]


# ---- the command ---------------------------------------------------------------------------------


def run(*flags, **env):
    keep = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    return subprocess.run(
        [sys.executable, "-m", "jax_flux", "tune", *flags],
        env=keep | {"JAX_PLATFORMS": "cpu"} | env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_on_a_cpu_there_is_nothing_to_tune(tmp_path):
    answer = run("--rows", "smoke", "--out", str(tmp_path / "t.json"))
    assert answer.returncode == 1
    assert "every call takes XLA: there is no plan to measure" in answer.stderr
    assert not (tmp_path / "t.json").exists()


def test_in_a_process_that_has_started_jax_its_devices_stay(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XLA_FLAGS", "")  # else nobody would be told how many CPU devices to make
    jax.devices()
    assert tune.main(["--rows", "smoke", "--out", str(tmp_path / "t.json")]) == 1
    assert "there is no plan to measure" in capsys.readouterr().err
    _tuning.use(None)


def test_an_old_file_that_is_bad_stops_the_run_before_it_measures(tmp_path):
    (tmp_path / "t.json").write_text("{")
    answer = run("--out", str(tmp_path / "t.json"))
    assert answer.returncode == 1
    assert "no JSON" in answer.stderr and "--fresh" in answer.stderr


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--rows", "nothing"], "'nothing' names no row"),
        (["--budget", "0"], "seconds, more than 0"),
        (["--batch", "0"], "at least 1"),
        (["--layouts", "tt"], "nn, nt, or nn,nt"),
        (["--axis-size", "1"], "--axis-size is a whole number from 2"),
        (["--coordinator", "here:1"], "belong together"),
        (["--out", "."], "that is a folder"),
    ],
    ids=str,
)
def test_bad_flags_are_refused_in_words(flags, words, capsys):
    with pytest.raises(SystemExit) as stop:
        tune.main(["--out", "t.json", *flags])
    assert stop.value.code == 2
    assert words in capsys.readouterr().err


def test_without_a_users_file_one_must_be_named(capsys, monkeypatch):
    monkeypatch.setenv(_records.VARIABLE, "off")
    with pytest.raises(SystemExit):
        tune.main([])
    assert "--out" in capsys.readouterr().err


def test_backward_rows_are_the_mirror_op_with_w_transposed():
    parser = tune._parser()
    options = parser.parse_args(
        ["--shapes", "ag-1024x6144x12288", "rs-64x32x16", "--backward", "--out", "t.json"]
    )
    names = [call.name for call in tune._judged(parser, options)]
    assert names == [
        "ag-1024x6144x12288 nn",
        "rs-64x32x16 nn",
        "rs-1024x12288x6144 nt",
        "ag-64x16x32 nt",
    ]


def test_numbers_of_a_plan_have_one_list():
    fields = set(_plan.Plan.__dataclass_fields__)
    assert {*_config.NUMBERS, "depth_outer", "sm_margin", "instance"} <= fields


def test_axis_size_makes_groups_of_all_devices():
    assert group._around(8, None) == {"tp": 8}
    assert group._around(8, 8) == {"tp": 8}
    assert group._around(8, 2) == {"dp": 4, "tp": 2}
    told = "--axis-size 3 does not divide 8 devices, .*: give 2 or 4 or 8"
    with pytest.raises(group.FlagError, match=told):
        group._around(8, 3)
