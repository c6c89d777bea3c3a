# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What `bench` makes of times: its arithmetic on made-up ones, its table, its record."""

from __future__ import annotations

import errno
import os

import pytest

from jax_flux.tools import bench, cases, figures, group, measure, paths, report, targets
from tests.cpu import programs


def _row(kind="ag", **times):
    """A measured row of 1 GFLOP and 1 MB with these medians in us."""
    implementations = {n: {"samples_s": [t * 1e-6] * 7} for n, t in times.items()}
    return dict(name=f"{kind}-row", flops=1e9, wire_bytes=1e6, implementations=implementations)


def _cpu_group(world=4):
    return group.Group(programs.make_mesh((world,), ("tp",)), group.CPU, "smoke")


# ---- arithmetic ----------------------------------------------------------------------------------


def test_exposed_time_is_total_less_matmul():
    assert figures.ect(297.0, 217.0) == 80.0
    assert figures.ect(200.0, 217.0) == -17.0


def test_efficiency_is_one_when_all_is_hidden_and_negative_when_worse():
    assert figures.efficiency(0.0, 80.0) == 1.0
    assert figures.efficiency(80.0, 80.0) == 0.0
    assert figures.efficiency(160.0, 80.0) == -1.0
    assert figures.efficiency(-8.0, 80.0) == pytest.approx(1.1)


def test_efficiency_is_none_where_xla_exposes_nothing():
    assert figures.efficiency(1.0, 0.0) is None
    assert figures.efficiency(1.0, -2.0) is None


def test_limit_is_the_longer_of_matmul_and_link():
    assert figures.limit(8e12, 8e14, 1e6, 1e9) == (1e-2, "gemm")
    assert figures.limit(8e10, 8e14, 1e6, 1e9) == (1e-3, "link")
    assert figures.limit(8e10, 8e14, 1e6, None) == (1e-4, "gemm")


def test_peak_is_never_below_a_matmul_of_the_same_run():
    assert figures.peak_of(5e12, [(1e9, 1e-3), (1e9, 1e-4)]) == 1e13
    assert figures.peak_of(5e13, [(1e9, 1e-4)]) == 5e13


def test_finish_fills_every_figure():
    row = _row(gemm=100, xla=180, jax_flux=104, pallas=140)
    row["implementations"]["jax_flux"]["ran"] = "fused"
    top = figures.finish([row], 2e13, 1e11, real=True)
    assert top["peak_flops"] == 2e13
    entries = row["implementations"]
    assert (row["limit_s"], row["bound"]) == (pytest.approx(5e-5), "gemm")
    assert entries["xla"]["ect_s"] == pytest.approx(80e-6)
    assert entries["jax_flux"]["E"] == pytest.approx(0.95)
    assert entries["jax_flux"]["speed_up"] == pytest.approx(180 / 104)
    assert entries["jax_flux"]["fraction_of_limit"] == pytest.approx(50 / 104)
    assert entries["pallas"]["E"] == pytest.approx(0.5)
    assert "E" not in entries["xla"] and "ect_s" not in entries["gemm"]


def test_finish_leaves_E_blank_where_ranks_are_not_real():
    row = _row(gemm=100, xla=180, jax_flux=104)
    figures.finish([row], 2e13, 1e11, real=False)
    assert "E" not in row["implementations"]["jax_flux"]
    assert row["implementations"]["jax_flux"]["speed_up"] == pytest.approx(180 / 104)


def test_finish_leaves_E_blank_where_the_op_took_xla():
    row = _row(gemm=100, xla=180, jax_flux=170)
    row["implementations"]["jax_flux"]["ran"] = "xla"
    figures.finish([row], 2e13, 1e11, real=True)
    assert "E" not in row["implementations"]["jax_flux"]


def test_finish_without_xla_has_no_speed_up():
    row = _row(gemm=100, jax_flux=104)
    figures.finish([row], 2e13, 1e11, real=True)
    entry = row["implementations"]["jax_flux"]
    assert entry["ect_s"] == pytest.approx(4e-6)
    assert not {"E", "speed_up"} & set(entry)


def test_chain_is_longer_for_shorter_ops_and_bounded():
    short, long = cases.Case("ag", 16, 6144, 12288), cases.Case("ag", 8192, 6144, 12288)
    lengths = [figures.chain_length(c, 2, 2, small=False) for c in (short, long)]
    assert lengths == [24, 4]
    assert figures.chain_length(long, 2, 2, small=True) == 2


# ---- goals ---------------------------------------------------------------------------------------


def _judged(name="ag-2048x6144x12288", world=2, bound="gemm", limit=1.0, **entry):
    m = int(name.split("-")[1].split("x")[0])
    entries = {
        "gemm": {"median_s": 400e-6},
        "xla": {"median_s": 500e-6},
        "xla-lhs": {"median_s": 480e-6},
        "jax_flux": dict(ran="fused", median_s=410e-6) | entry,
    }
    row = dict(name=name, m=m, world=world, bound=bound, limit_s=limit, implementations=entries)
    return {v.goal: (v.met, v.value) for v in targets.judge(row)}


def test_goals_of_a_gather_on_two_ranks():
    assert _judged(E=0.96) == {
        "speed >= 1 x XLA": (True, pytest.approx(480 / 410)),
        "E >= 0.95": (True, 0.96),
    }
    assert _judged(E=0.94)["E >= 0.95"] == (False, 0.94)


@pytest.mark.parametrize(
    ("name", "world", "goal"),
    [
        ("ag-1024x8x8", 2, "E >= 0.85"),
        ("rs-1024x8x8", 2, "E >= 0.8"),
        ("rs-8192x8x8", 2, "E >= 0.93"),
        ("ag-1024x8x8", 8, "E >= 0.7"),
        ("ag-4096x8x8", 4, "E >= 0.9"),
        ("rs-4096x8x8", 8, "E >= 0.85"),
        ("ag-256x8x8", 2, "speed >= 1.15 x XLA"),
        ("ag-4096x4096x4096", 4, "time <= 187 us"),
        ("ag-8192x4096x4096", 8, "time <= 375 us"),
        ("rs-8192x8192x3696", 8, "time <= 720 us"),
    ],
)
def test_goal_of_a_row(name, world, goal):
    assert goal in _judged(name, world, E=0.5)


def test_faster_than_both_of_xlas_programs_or_missed():
    assert _judged(median_s=490e-6, E=0.1)["speed >= 1 x XLA"][0] is False


def test_a_row_that_the_link_limits_is_judged_by_the_link():
    goals = _judged(bound="link", limit=400e-6)
    assert goals["time <= 1.08 x link"] == (True, pytest.approx(410 / 400))
    assert not any(goal.startswith("E") for goal in goals)


def test_an_op_that_took_xla_is_no_slower_but_hides_nothing():
    goals = _judged(ran="xla", median_s=505e-6)
    assert goals["speed >= 1 x XLA"] == (True, 1.0)
    assert goals["E >= 0.95"] == (False, 0.0)


def test_a_wrong_result_meets_no_goal():
    assert {met for met, _ in _judged(wrong=True, E=0.99).values()} == {False}


def test_real_rows_are_judged_and_shared_ones_are_not():
    row = _row(gemm=100, xla=180, jax_flux=104) | dict(name="ag-2048x8x8", m=2048, world=2)
    row["implementations"]["jax_flux"]["ran"] = "fused"
    bench._finished([row], 2e13, 1e11, False)
    assert "goals" not in row
    bench._finished([row], 2e13, 1e11, True)
    assert report.goals_met(row) == "2/2"
    assert "goals met" in report.as_text(_record([row], against=("xla",)))
    row["goals"][1]["met"] = False
    assert report.goals_met(row) == "1/2: E >= 0.95 missed"


# ---- report --------------------------------------------------------------------------------------


def _record(rows, against=("xla", "pallas")):
    ceilings = figures.finish(rows, 2e13, 1e11, real=True)
    return dict(
        group=dict(world=2, label=group.REAL, note=""),
        machine=dict(device_kind="NVIDIA H200"),
        settings=dict(dtype="bfloat16", against=list(against)),
        ceilings=ceilings,
        rows=rows,
        stopped=None,
    )


def test_table_has_losses_plans_and_reasons():
    row = _row(gemm=100, xla=180, jax_flux=200)
    ours = row["implementations"]["jax_flux"]
    ours |= dict(ran="fused", plan=dict(instance="ag_128x192", expected_ns=120_000))
    row["implementations"]["pallas"] = {"error": "no tile fits"}
    text = report.as_text(_record([row]))
    line = next(line for line in text.splitlines() if line.startswith("ag-row "))
    assert line.split()[1:] == [
        "100.0",
        "180.0",
        "(80.0)",
        "-",
        "200.0",
        "(100.0)",
        "fused",
        "0.90",
        "-0.25",
        "25%",
    ]
    assert "ag-row: pallas did not run: no tile fits" in text
    assert "ran ag_128x192, expected 120.0 us" in text


def test_table_has_a_column_for_xlas_scheduler_where_it_ran():
    row = _row(gemm=100, xla=180, jax_flux=110)
    row["implementations"]["xla-lhs"] = {"samples_s": [170e-6] * 7}
    record = _record([row], against=("xla", "xla-lhs", "pallas"))
    assert report.columns(record)[2:5] == (
        "xla (exposed)",
        "xla-lhs (exposed)",
        "pallas (exposed)",
    )
    assert report.cells(row, record)[3:6] == ("170.0 (70.0)", "-", "110.0 (10.0)")
    assert "E" not in row["implementations"]["xla-lhs"]


def test_table_marks_a_wrong_result_and_a_skipped_row():
    row = _row(gemm=100, xla=180, jax_flux=110)
    row["implementations"]["jax_flux"] |= dict(ran="fused", wrong=True, error_to_xla=0.5)
    skipped = dict(name="ag-odd", flops=1, wire_bytes=1, skipped="m = 3 ...", implementations={})
    text = report.as_text(_record([row, skipped], against=("xla",)))
    assert "WRONG RESULT" in text and "0.5 away from XLA's result" in text
    assert "ag-odd: skipped: m = 3 ..." in text
    assert "pallas" not in text
    assert not bench._good([row], None)


def test_bars_end_at_the_measured_time():
    row = _row(gemm=100, xla=180, jax_flux=90)
    figures.finish([row], 2e13, 1e11, real=True)
    drawn = {name: (base, exposed) for _, name, base, exposed in report.bars([row])}
    assert drawn["gemm"] == pytest.approx((100, 0))
    assert drawn["xla"] == pytest.approx((100, 80))
    assert drawn["jax_flux"] == pytest.approx((90, 0))


def test_rich_table_has_the_same_words(capsys):
    pytest.importorskip("rich", reason="needs rich")
    row = _row(gemm=100, xla=180, jax_flux=110)
    report.show_rich(_record([row], against=("xla",)))
    assert "ag-row" in capsys.readouterr().out


def test_a_record_is_shown_again_without_measuring(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(group, "join", None)
    old = tmp_path / "old.json"
    report.write_json(_record([_row(gemm=100, xla=180, jax_flux=110)], against=("xla",)), old)
    assert bench.main(["--show", str(old), "--plain"]) == 0
    assert "NVIDIA H200" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "there is no such file"),
        ("a folder", "it cannot be read: Is a directory"),
        ("{", "is no record of bench: Expecting"),
        ("{}", "is no record of bench: a record has the keys"),
        ("[]", "is no record of bench"),
    ],
)
def test_a_file_that_is_no_record_is_refused_in_words(tmp_path, capsys, text, words):
    old = tmp_path / "old.json"
    if text == "a folder":
        old.mkdir()
    elif text is not None:
        old.write_text(text)
    assert bench.main(["--show", str(old)]) == 1
    told = capsys.readouterr().err
    assert f"--show {old}: {words}" in told and "Errno" not in told
    assert "Name a file that bench --json wrote." in told


def test_a_picture_that_cannot_be_written_comes_after_the_table(tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    old, drawn = tmp_path / "old.json", tmp_path / "b.png"
    report.write_json(_record([_row(gemm=100, xla=180, jax_flux=110)], against=("xla",)), old)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(paths, "write", full)
    assert bench.main(["--show", str(old), "--plain", "--plot", str(drawn)]) == 1
    told = capsys.readouterr()
    assert "ag-row" in told.out and f"--plot {drawn} could not be written: No space" in told.err


def test_what_was_measured_survives_a_failure(monkeypatch):
    rows = iter([_row(gemm=100, xla=180, jax_flux=110)])

    def fails_second(*_):
        try:
            return next(rows)
        except StopIteration:
            raise RuntimeError("a rank is missing") from None

    monkeypatch.setattr(measure, "row", fails_second)
    monkeypatch.setattr(measure, "ceilings", lambda *_: (2e13, 1e11))
    settings = measure.Settings("bfloat16", 7, ("xla",), None)
    two = cases.select("smoke")[:2]
    found, ceilings, stopped = bench._measure(
        two, _cpu_group(), settings, lambda _: None, lambda *_: None
    )
    assert len(found) == 1 and ceilings["peak_flops"] == 2e13
    assert stopped == f"{two[1].name}: RuntimeError: a rank is missing"
