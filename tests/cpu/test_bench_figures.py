# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What `bench` makes of times: its arithmetic on made-up ones, its table, its record."""

from __future__ import annotations

import pytest

from jax_flux.tools import bench, cases, figures, group, measure, report
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


@pytest.mark.parametrize("text", [None, "{", "{}", "[]"])
def test_a_file_that_is_no_record_is_refused_in_words(tmp_path, capsys, text):
    old = tmp_path / "old.json"
    if text is not None:
        old.write_text(text)
    assert bench.main(["--show", str(old)]) == 1
    assert "is no record of bench" in capsys.readouterr().err


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
    found, ceilings, stopped = bench._measure(two, _cpu_group(), settings, lambda _: None)
    assert len(found) == 1 and ceilings["peak_flops"] == 2e13
    assert stopped == f"{two[1].name}: RuntimeError: a rank is missing"
