# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""``python -m jax_flux bench``: its rows, its words, and runs on the CPU."""

from __future__ import annotations

import argparse
import errno
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import jax_flux
from jax_flux.tools import bench, cases, contenders, group, measure, paths, patience
from tests.cpu import programs
from tests.processes import told_by_two

ENV = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"}
COMMAND = (sys.executable, "-m", "jax_flux", "bench")


def _cpu_group(world=4):
    return group.Group(programs.make_mesh((world,), ("tp",)), group.CPU, "smoke")


# ---- rows ----------------------------------------------------------------------------------------


def test_rows_have_distinct_names_and_known_ops():
    names = [case.name for case in cases.CASES]
    assert len(set(names)) == len(names)
    assert {case.kind for case in cases.CASES} == set(cases.OPS)


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_row_divides_over_the_usual_worlds(case):
    for world in cases.WORLDS:
        assert case.obstacle(world) is None
    assert case.n % 8 == case.k % 8 == 0
    assert case.kind in case.tags and len(case.tags) >= 2


@pytest.mark.parametrize(
    ("term", "names"),
    [
        ("pallas+w8", ["ag-8192x4096x4096"]),
        ("triton+w4", ["rs-4096x4096x2048", "rs-8192x8192x7392"]),
        ("squares+w2", ["ag-16384x8192x16384", "rs-16384x16384x8192"]),
        ("tp8+rs", [f"rs-{m}x12288x6144" for m in (1024, 2048, 4096, 8192, 64, 512)]),
    ],
)
def test_rows_that_others_quote_are_tagged(term, names):
    assert [case.name for case in cases.select(term)] == names


@pytest.mark.parametrize("world", cases.WORLDS)
def test_rows_of_others_have_their_global_sizes(world):
    (pallas,) = cases.select(f"pallas+w{world}")
    assert (pallas.x_shape(world), pallas.w_shape) == ((1024, 4096), (4096, 4096))
    assert [c.k * world for c in cases.select(f"triton+w{world}")] == [8192, 29568]
    ag, rs = cases.select(f"squares+w{world}")
    assert ag.n * world == ag.m == ag.k == rs.k * world == rs.n == rs.m == 16384


def test_rows_of_the_front_page_are_there():
    assert len(cases.select("gpt3")) == 12
    assert cases.select("gpt3+rs")[0].name == "rs-1024x12288x6144"
    assert [c.name for c in cases.select("smoke")] == [
        f"{kind}-256x128x256" for kind in ("ag", "rs", "ar")
    ]
    assert cases.select("all") == cases.CASES


@pytest.mark.parametrize(
    ("kind", "x", "wire"),
    [
        ("ag", (64, 32), 3 * 64 * 32 * 2),
        ("rs", (256, 32), 3 * 64 * 16 * 2),
        ("ar", (256, 32), 2 * 3 * 64 * 16 * 2),
    ],
)
def test_sizes_follow_from_a_row(kind, x, wire):
    case = cases.Case(kind, 256, 16, 32)
    assert case.x_shape(4) == x
    assert case.wire_bytes(4, 2) == wire
    assert case.flops == 2 * 256 * 16 * 32


def test_a_row_that_does_not_divide_says_so():
    told = cases.Case("ag", 16, 8, 8).obstacle(3)
    assert "m = 16 does not divide over 3 ranks" in told and "give a multiple of 3" in told
    assert cases.Case("ar", 16, 8, 8).obstacle(3) is None


@pytest.mark.parametrize("text", ["nothing", "ag-0x8x8", "ag-8x8", "gpt3+smoke", ","])
def test_unknown_rows_are_refused_in_words(text):
    with pytest.raises(ValueError, match="Name a tag"):
        cases.select(text)


# ---- measuring -----------------------------------------------------------------------------------


def test_chained_ops_all_run():
    counted = []

    def op(x, w):
        counted.append(1)
        return x @ w

    text = jax.jit(measure.chained(op, 3)).lower(jnp.ones((4, 4)), jnp.ones((4, 4))).as_text()
    assert len(counted) == 3
    assert text.count("stablehlo.dot_general") == 3
    assert text.count("optimization_barrier") == 3


def test_the_fastest_configuration_is_measured_at_full_length():
    ranks = _cpu_group()
    x, w = measure.operands(ranks, "float32", (16, 64), (64, 64))
    # Slower by far, so that a busy machine does not turn the two around.
    slow = lambda x, w: x @ jax.lax.fori_loop(0, 500, lambda _, v: v @ w, w)
    entry = {}
    ops = [("slow", slow), ("quick", contenders.gemm)]
    program, op = measure._best(ranks, ops, x, w, 4, entry)
    assert (entry["config"], op, program.length) == ("quick", contenders.gemm, 4)
    assert entry["prepared_in_s"] > 0


def test_a_wrong_result_is_noticed():
    ranks = _cpu_group()
    arrays = measure.operands(ranks, "float32", (16, 32), (32, 8))
    right = contenders.flux(cases.Case("ag", 64, 8, 32), "xla")
    assert measure.difference(ranks, right, right, arrays) == 0.0
    wrong = lambda x, w: right(x, w).at[3].set(0)
    assert measure.difference(ranks, wrong, right, arrays) > 0.05
    nan = lambda x, w: right(x, w) * jnp.nan
    assert not measure.difference(ranks, nan, right, arrays) <= 1.0


def test_ranks_have_data_of_their_own():
    x, _ = measure.operands(_cpu_group(), "float32", (16, 32), (32, 8))
    blocks = x.reshape(4, 16, 32)
    assert x.shape == (64, 32)
    assert float(jnp.abs(blocks[0] - blocks[1]).min()) > 0
    assert 0.8 < float(x.std()) < 1.2


def test_forced_fused_on_the_cpu_is_said_and_not_replaced():
    settings = measure.Settings("bfloat16", 7, ("xla",), "fused")
    row = measure.row(cases.select("smoke+ag")[0], _cpu_group(), settings)
    entry = row["implementations"]["jax_flux"]
    assert "platform 'cpu'" in entry["error"]
    assert "samples_s" not in entry
    assert not bench._good([row], None)


def test_pallas_says_why_it_does_not_run():
    ag, rs = cases.Case("ag", 256, 128, 256), cases.Case("rs", 256, 128, 256)
    assert contenders.no_pallas(rs, _cpu_group(), "bfloat16") == "it gathers only"
    assert contenders.no_pallas(ag, _cpu_group(), "bfloat16") == "it needs GPUs"
    on_gpu = group.Group(_cpu_group().mesh, group.REAL, "")
    assert "takes no float32" in contenders.no_pallas(ag, on_gpu, "float32")


# ---- the command ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--rows", "nothing"], "'nothing' names no row"),
        (["--against", "torch"], "--against names 'torch'; it takes xla, xla-lhs, pallas"),
        (["--against", ""], "names nothing"),
        (["--repeats", "3"], "a median wants 7 or more"),
        (["--dtype", "int8"], "int8"),
        (["--json", "/no/such/folder/f.json"], "a folder that exists"),
        (["--plot", "bars.pdf"], "end the name in .png"),
        (["--mesh", "dp=2"], "run over tp"),
        (["--mesh", "dp=2,tp"], "'tp' is no axis with a size"),
        (["--mesh", "tp=2,tp=2"], "is no axis"),
        (["--processes", "2"], "belong together"),
        (["--gpu", "0"], "one process takes all GPUs"),
    ],
)
def test_bad_flags_are_refused_in_words(flags, words, capsys):
    with pytest.raises(SystemExit) as left:
        bench.main(flags)
    assert left.value.code == 2
    assert words in capsys.readouterr().err


def test_missing_matplotlib_is_said_before_measuring(monkeypatch, capsys):
    monkeypatch.setattr(bench.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        bench.main(["--plot", "bars.png"])
    assert "pip install matplotlib" in capsys.readouterr().err


def test_one_device_has_no_peer(monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: jax.local_devices()[:1])
    options = argparse.Namespace(
        coordinator=None, distributed=False, gpu=None, mesh=None, axis_size=None
    )
    with pytest.raises(group.GroupError, match="no peer"):
        group.join(options)


@pytest.mark.timeout(180)
def test_smoke_run_writes_table_record_and_picture(tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    files = ("--json", tmp_path / "b.json", "--plot", tmp_path / "b.png")
    flags = ("--against", "xla,xla-lhs,pallas", *files)
    done = subprocess.run(
        [*COMMAND, *map(str, flags)], env=ENV, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    assert "smoke sizes" in done.stdout and "pallas did not run: it needs GPUs" in done.stdout
    assert (tmp_path / "b.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    record = json.loads((tmp_path / "b.json").read_text())
    assert record["versions"]["jax_flux"] == jax_flux.__version__
    assert record["group"]["world"] == group.CPU_DEVICES
    assert record["stopped"] is None and "goals" not in record["rows"][0]
    assert list(record["settings"]["options"]) == ["xla-lhs"]
    assert [row["op"] for row in record["rows"]] == list(cases.OPS.values())
    for row in record["rows"]:
        entries = row["implementations"]
        for name in ("gemm", "xla", "xla-lhs", "jax_flux"):
            assert len(entries[name]["samples_s"]) == record["settings"]["repeats"]
            assert entries[name]["median_s"] > 0
        assert entries["jax_flux"]["ran"] == "xla" and "E" not in entries["jax_flux"]
        assert entries["jax_flux"]["error_to_xla"] < 1e-2


@pytest.mark.parametrize("sizes", [{"dp": 2, "tp": 4}, {"tp": 4, "dp": 2}])
def test_groups_of_a_larger_mesh_measure_at_once(sizes):
    """A group has its own W ranks and data; the second mesh's groups are not neighbours."""
    mesh = programs.make_mesh(tuple(sizes.values()), tuple(sizes))
    ranks = group.Group(mesh, group.CPU, "smoke")
    settings = measure.Settings("float32", 7, ("xla",), None)
    assert ranks.world == 4
    row = measure.row(cases.select("smoke+ag")[0], ranks, settings)
    entry = row["implementations"]["jax_flux"]
    assert row["world"] == 4 and len(entry["samples_s"]) == 7
    assert entry["error_to_xla"] < 1e-5 and not entry["wrong"]
    x, _ = measure.operands(ranks, "float32", (8, 8), (8, 8))
    assert x.shape == (64, 8) and len(set(map(float, x[::8, 0]))) == 8


@pytest.mark.parametrize(
    ("rows", "what"), [("gpt3", "12 rows"), ("ag-4096x6144x12288", "ag-4096x6144x12288")]
)
def test_sizes_of_gpus_are_refused_at_once_on_cpu_devices(rows, what, monkeypatch, capsys):
    def no_row(*_):
        raise AssertionError("a row was measured")

    monkeypatch.setattr(measure, "ceilings", no_row)
    assert bench.main(["--rows", rows]) == 2
    told = capsys.readouterr().err
    assert f"JAX runs on 8 CPU devices, where {what} would take about" in told
    assert "hours" in told and "--rows smoke" in told and "--slow" in told


def test_slow_runs_them_all_the_same(monkeypatch, capsys):
    measured = []
    monkeypatch.setattr(bench, "_measure", lambda rows, *_: (measured.extend(rows) or [], {}, "x"))
    assert bench.main(["--rows", "gpt3", "--slow", "--plain"]) == 1
    assert tuple(measured) == cases.select("gpt3")


def test_small_rows_and_gpus_need_no_patience():
    settings = measure.Settings("bfloat16", 9, contenders.RIVALS, None)
    for rows, label in (("smoke", group.CPU), ("gpt3,layers", group.REAL)):
        ranks = group.Group(_cpu_group().mesh, label, "")
        flop = measure.flop(cases.select(rows), ranks, settings)
        assert flop > 0 and patience.refusal(ranks, flop, "", "") is None


def test_what_was_measured_is_kept_when_a_run_is_killed(monkeypatch, tmp_path):
    """The record on disk after each row is whole, and says that it is not finished."""
    seen = []
    measured = measure.row

    def row(case, *rest):
        if (tmp_path / "b.json").exists():
            seen.append(json.loads((tmp_path / "b.json").read_text()))
        return measured(case, *rest)

    monkeypatch.setattr(measure, "row", row)
    assert bench.main(["--rows", "smoke", "--plain", "--json", str(tmp_path / "b.json")]) == 0
    assert [len(record["rows"]) for record in seen] == [1, 2]
    assert all(record["stopped"] == "not finished" for record in seen)
    assert [f.name for f in tmp_path.iterdir()] == ["b.json"]


@pytest.mark.parametrize("broken", [None, "a row: it gave up"])
def test_a_disk_that_fills_up_loses_no_result(broken, monkeypatch, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    left = []

    def measured(rows, ranks, settings, step, save):
        save([], {})
        return [], {}, broken

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(bench, "_measure", measured)
    monkeypatch.setattr(paths, "write", full)
    leave = lambda status, broken: left.append((status, broken)) or status
    monkeypatch.setattr(group, "leave", leave)
    files = ["--json", str(tmp_path / "b.json"), "--plot", str(tmp_path / "b.png")]
    assert bench.main(["--plain", *files]) == 1
    told = capsys.readouterr()
    assert "8 x cpu" in told.out and left == [(1, broken is not None)]
    why = "could not be written: No space left on device. Make room, or name another place."
    assert told.err.count(f"--json {tmp_path / 'b.json'} {why}") == 2  # after a row, and at the end
    assert told.err.count(f"--plot {tmp_path / 'b.png'} {why}") == 1


@pytest.mark.timeout(180)
def test_two_processes_measure_together_and_one_prints():
    told = told_by_two([*COMMAND, "--rows", "smoke+ag"], ENV, 150)
    assert "2 x cpu" in told[0][0] and "ag-256x128x256" in told[0][0]
    assert "256x128x256" not in told[1][0] + told[1][1]
