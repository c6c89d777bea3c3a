# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The page of `make gpu-report`, on made-up records, and comparing two of them."""

from __future__ import annotations

import json

import pytest

from benchmarks.gpu_report import __main__ as command
from benchmarks.gpu_report import compare, page, pictures, record
from tests.cpu import gpu_reports as made

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
