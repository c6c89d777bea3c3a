# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which plans are tried, how they are searched on made-up times, and what gets recorded."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace

import numpy as np
import pytest

import jax_flux
from jax_flux import _cost, _plan, _records, _tuning
from jax_flux.tools import cases, paths, search, space, trials, tune, tuner
from jax_flux.tools.space import Candidate
from tests.cpu.plans import AG, KERNELS, instance

KIND = "NVIDIA H200"
NAME = instance("ag_matmul").name


# ---- the plans -----------------------------------------------------------------------------------


@pytest.mark.parametrize("op", _plan.FUSED_OPS)
@pytest.mark.parametrize("m, k, world", [(1, 8, 2), (512, 12288, 2), (100, 4104, 8), (8192, 64, 3)])
def test_every_plan_that_is_tried_is_one_that_config_takes(op, m, k, world):
    problem = _plan.Problem(op, 1, m, (1536,), (k,), world, "bfloat16", "bfloat16")
    starts = space.starts(problem, KERNELS.instances, _cost.REFERENCE)
    assert all(c.config() for c in starts)
    assert len(set(starts)) == len(starts)
    assert {c.instance for c in starts} == {
        row.name
        for row in KERNELS.instances
        if (row.op, row.layout, row.dtype) == (op, "nn", "bfloat16")
    }
    names = set()
    for name, values in space.coordinates(problem, KERNELS.instances):
        names.add(name)
        assert len(set(values)) == len(values) > 0
        for value in values:
            config = starts[0].but(name, value).config()
            forced = getattr(config, name)
            assert value == (forced if name == "transport" else int(forced))
    assert ("depth_outer" in names) == (op == "ag_matmul")
    assert ("chunk_depth" in names) == (op == "ag_matmul" and k > 256)
    assert ("sweep_segments" in names) == (world > 2)
    copies = any("copy" in row.transports for row in KERNELS.instances if row.op == op)
    assert ("transport" in names) == copies


def test_the_most_promising_kernel_is_tried_first():
    problem = _plan.Problem("ag_matmul", 1, 4096, (4096,), (8192,), 2, "bfloat16", "bfloat16")
    first = space.starts(problem, KERNELS.instances, _cost.REFERENCE)[0]
    assert first.instance == NAME.replace("128x192", "128x256")


def test_a_candidate_knows_its_plan_in_words():
    candidate = Candidate("kernel").but("depth_outer", 1).but("chunk_rows", 64)
    assert str(candidate) == "kernel chunk_rows=64 depth_outer=1"
    assert candidate.config() == jax_flux.Config(instance="kernel", chunk_rows=64, depth_outer=True)
    assert candidate.but("chunk_rows", 64) == candidate


# ---- the search ----------------------------------------------------------------------------------


class Surface:
    """Made-up times: seconds per kernel, times a factor per number, with noise and a meter."""

    def __init__(self, kernels, factors=(), noise=0.0, budget=10**6):
        self.kernels, self.factors = kernels, dict(factors)
        self.noise, self.budget = noise, budget
        self.random = np.random.default_rng(0)
        self.broken: dict[Candidate, str] = {}
        self.seen: dict[Candidate, None] = {}

    @property
    def tried(self):
        return len(self.seen)

    def exact(self, candidate):
        seconds = self.kernels[candidate.instance]
        for part in candidate.numbers:
            seconds *= self.factors.get(part, 1.0)
        return seconds

    def times(self, candidates, repeats):
        out = []
        for candidate in candidates:
            if candidate not in self.seen and self.tried >= self.budget:
                self.broken[candidate] = trials.NO_TIME
                out.append(None)
                continue
            self.seen[candidate] = None
            if self.kernels[candidate.instance] is None:
                self.broken[candidate] = "WRONG RESULT: relative error 1.00e+00 against XLA"
                out.append(None)
                continue
            samples = self.exact(candidate) * self.random.normal(1, self.noise, repeats)
            out.append(float(np.median(samples)))
        return out

    def left(self):
        return self.tried < self.budget

    def against_xla(self, candidates, repeats):
        return [self.exact(c) for c in candidates], 300e-6


def found(surface, coordinates=()):
    starts = [Candidate(name) for name in surface.kernels]
    return search.search(starts, coordinates, surface.times, surface.left)


NUMBERS = (("chunk_rows", (64, 128, 256)), ("chunk_depth", (256, 512)), ("sm_margin", (0, 4)))


def test_search_finds_kernel_and_numbers():
    kernels = {f"k{i}": (300 + 10 * i) * 1e-6 for i in range(8)} | {"best": 280e-6, "bad": None}
    factors = {("chunk_rows", 64): 0.9, ("chunk_depth", 512): 0.95, ("sm_margin", 4): 1.05}
    surface = Surface(kernels, factors, noise=0.002)
    result = found(surface, NUMBERS)
    assert result.default == Candidate("best")
    assert dict(result.best.numbers) == {"chunk_rows": 64, "chunk_depth": 512}
    assert len(surface.broken) == 1
    assert result.complete
    assert surface.tried < 10 + 2 * 7  # no grid: 10 kernels x 12 settings are 120


def test_search_keeps_the_librarys_numbers_where_gains_are_noise():
    surface = Surface({"a": 300e-6}, {("chunk_rows", 64): 0.995}, noise=0.001)
    assert found(surface, NUMBERS).best == Candidate("a")


def test_search_stops_when_the_budget_is_over_and_still_answers():
    for budget in range(1, 12):
        surface = Surface({f"k{i}": (300 + i) * 1e-6 for i in range(6)}, budget=budget)
        result = found(surface, NUMBERS)
        assert result.best == Candidate("k0")
        assert not result.complete
        assert surface.tried <= budget


def test_search_of_kernels_that_are_all_wrong_finds_nothing():
    assert found(Surface({"a": None, "b": None}), NUMBERS) is None
    assert search.search([], NUMBERS, Surface({}).times, lambda: True) is None


# ---- rows and their records ----------------------------------------------------------------------


def place(**changes):
    standard = dict(
        world=8,
        dtype="bfloat16",
        batch=1,
        device_kind=KIND,
        installed=KERNELS,
        shared=False,
        versions=(("jax_flux", jax_flux.__version__),),
        today="2026-12-01",
    )
    return tuner.Place(**(standard | changes))


CALL = tuner.Call(cases.Case("ag", 4096, 1536, 4096), "nn")


def tuned(surface_of, calls=(CALL,), at=None):
    said, saved = [], []
    try:
        done = tuner.tune_rows(calls, at or place(), surface_of, said.append, saved.append)
    except tuner.Stopped as stopped:
        done = stopped.done
        assert "stopped." in said[-1]
    assert done == len(saved)
    return saved, "\n".join(said)


def every_kernel(seconds, **changes):
    kernels = {row.name: seconds for row in KERNELS.instances} | changes
    return lambda call: Surface(kernels, {("chunk_depth", 512): 0.9})


def test_a_row_becomes_the_record_that_dispatch_obeys(tmp_path, monkeypatch):
    saved, said = tuned(every_kernel(310e-6))
    tune.write(tmp_path / "new" / "tuning.json", saved)
    monkeypatch.setenv(_records.VARIABLE, str(tmp_path / "new" / "tuning.json"))
    _tuning.use(None)
    decision = _plan.plan(
        AG,
        implementation=None,
        config=None,
        platform="cuda",
        device_kind=KIND,
        installed=KERNELS,
        tuning=_tuning.active(),
    )
    _tuning.use(None)
    assert decision.reason == "tuned: 279 us fused against 300 us by XLA, record of 2026-12-01"
    assert decision.plan.chunk_depth == 512
    assert "279 us fused against 300 us by XLA; ag_matmul_" in said
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["tuning.json"]


def test_a_row_that_xla_wins_says_so_in_its_record():
    (record,), said = tuned(every_kernel(400e-6))
    assert not record.fused_wins
    assert (record.fused_us, record.xla_us) == (pytest.approx(360.0), pytest.approx(300.0))
    assert "300 us by XLA against 360 us fused" in said


def test_a_wrong_kernel_is_named_and_never_recorded():
    wrong = NAME
    (record,), said = tuned(every_kernel(310e-6, **{wrong: None}))
    assert record.instance != wrong
    assert f"{wrong}: WRONG RESULT" in said
    saved, said = tuned(lambda call: Surface({row.name: None for row in KERNELS.instances}))
    assert not saved
    assert "no kernel ran and was right" in said


@pytest.mark.parametrize(
    "case, change, words",
    [
        (cases.Case("ar", 4096, 1536, 4096), {}, "matmul_ar has no fused kernel"),
        (cases.Case("ag", 4099, 1536, 4096), {}, "does not divide over 8 ranks"),
        (cases.Case("ag", 4096, 1537, 4096), {}, "n = 1537 is not a multiple of 8"),
        (CALL.case, dict(device_kind="NVIDIA A100-SXM4-80GB"), "sm_90"),
        (CALL.case, dict(installed=_plan.Installed(problem="no library here")), "no library here"),
    ],
    ids=str,
)
def test_a_row_without_a_plan_says_why(case, change, words):
    saved, said = tuned(every_kernel(1.0), [tuner.Call(case, "nn")], place(**change))
    assert not saved
    assert "not tuned" in said and words in said


def test_a_run_that_breaks_keeps_what_it_has():
    rows = [CALL, tuner.Call(cases.Case("rs", 4096, 1536, 4096), "nn"), CALL]

    def surface_of(call):
        if call.case.kind == "rs":
            raise RuntimeError("a peer is gone")
        return every_kernel(310e-6)(call)

    saved, said = tuned(surface_of, rows)
    assert len(saved) == 1
    assert "[2/3] rs-4096x1536x4096 nn: stopped. RuntimeError: a peer is gone" in said


@pytest.mark.parametrize("breaks", [True, False])
def test_a_broken_run_leaves_without_waiting_for_its_peers(tmp_path, monkeypatch, breaks):
    def rows(*_):
        if breaks:
            raise tuner.Stopped(0)
        return 1

    left = []
    monkeypatch.setattr(tune.group, "join", lambda options: SimpleNamespace(on_gpu=True))
    monkeypatch.setattr(tune, "_place", lambda *_: place())
    monkeypatch.setattr(tune, "tune_rows", rows)
    monkeypatch.setattr(
        tune.group, "leave", lambda status, broken: left.append((status, broken)) or status
    )
    flags = ["--rows", "ag-64x64x64", "--out", str(tmp_path / "t.json")]
    assert tune.main(flags) == int(breaks)
    assert left == [(int(breaks), breaks)]
    _tuning.use(None)


@pytest.mark.parametrize("fails", [1, 9], ids=["once", "always"])
def test_a_disk_that_fills_up_loses_no_record(fails, tmp_path, monkeypatch, capsys):
    (record,), _ = tuned(every_kernel(310e-6))
    left, really = [fails], paths.write

    def full(*given):
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        really(*given)

    monkeypatch.setattr(tune.group, "join", lambda options: SimpleNamespace(on_gpu=True))
    monkeypatch.setattr(tune, "_place", lambda *_: place())
    monkeypatch.setattr(tune, "tune_rows", lambda *given: given[-1](record) or 1)
    monkeypatch.setattr(tune.group, "leave", lambda status, broken: status)
    monkeypatch.setattr(paths, "write", full)
    out = tmp_path / "t.json"
    assert tune.main(["--rows", "ag-64x64x64", "--out", str(out)]) == int(fails > 1)
    _tuning.use(None)
    told = capsys.readouterr()
    assert f"--out {out} could not be written: No space left on device" in told.err
    if fails > 1:
        head, text = told.out.split("\n", 1)
        assert head == f"1 of 1 rows measured. What {out} should hold:" and not out.exists()
    else:
        text = out.read_text()
        assert told.out == f"1 of 1 rows recorded in {out}\n"
    assert _records.parse(text, record.source) == [record]


def test_records_of_shared_gpus_and_batches_are_marked():
    (record,), _ = tuned(every_kernel(310e-6), at=place(shared=True, batch=2))
    assert record.shared_gpus
    assert (record.key.batch, record.key.m) == (2, 512)
