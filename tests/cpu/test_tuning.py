# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""How dispatch obeys the records of a tuning file."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import jax_flux
from jax_flux import _ffi, _plan, _records, _tuning, errors
from tests.cpu.plans import AG, KERNELS, attributes, call
from tests.cpu.tunings import KIND, NAME, NUMBERS, decide, file, forget, record, tuning

__all__ = ["file", "forget"]  # fixtures


def test_a_record_decides_with_its_plan_and_says_so():
    decision = decide(tuning(record(source="here.json")))
    assert decision.implementation == "fused"
    assert decision.reason == "tuned: 289 us fused against 301 us by XLA, record of 2026-12-01"
    assert decision.source == "here.json"
    plan = decision.plan
    assert (plan.instance, plan.expected_ns) == (NAME, 289000)
    assert {name: getattr(plan, name) for name in NUMBERS} == NUMBERS
    assert (plan.raster_group, plan.sm_margin) == (0, 0)


def test_a_record_that_xla_won_takes_xla_and_says_so():
    decision = decide(tuning(record(fused_us=301.0, xla_us=289.0, source="here.json")))
    assert (decision.implementation, decision.unsupported) == ("xla", False)
    assert decision.reason == "tuned: 289 us by XLA against 301 us fused, record of 2026-12-01"


@pytest.mark.parametrize("implementation", ["fused", _plan.PREFER])
def test_a_demanded_kernel_takes_the_recorded_plan_even_where_xla_won(implementation):
    decision = decide(tuning(record(fused_us=301.0, xla_us=289.0)), implementation=implementation)
    assert decision.implementation == "fused"
    assert decision.plan.chunk_rows == 64


def test_a_record_overrides_the_model_both_ways():
    few = dataclasses.replace(AG, m=16)
    assert "16 rows per rank are fewer" in decide(_tuning.NONE, few).reason
    assert decide(tuning(record(few)), few).implementation == "fused"
    assert decide(_tuning.NONE).implementation == "fused"
    assert decide(tuning(record(xla_us=1.0))).implementation == "xla"


def test_bias_and_activation_take_the_record_of_the_bare_call():
    more = dataclasses.replace(AG, biases=(True,), activation="gelu")
    assert decide(tuning(record()), more).plan.chunk_rows == 64


@pytest.mark.parametrize(
    "change",
    [
        dict(m=513),
        dict(n=(1528,)),
        dict(k=(4104,)),
        dict(world=4),
        dict(batch=2),
        dict(transpose_w=True),
        dict(return_gathered=True),
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_call_is_not_the_recorded_one(change):
    other = dataclasses.replace(AG, **change)
    assert "tuned" not in decide(tuning(record()), other).reason


@pytest.mark.parametrize("kind", [None, "NVIDIA H100 80GB HBM3"])
def test_a_record_of_another_device_kind_does_not_count(kind):
    assert "tuned" not in decide(tuning(record()), device_kind=kind).reason


def test_a_forced_part_leaves_the_record_aside():
    decision = decide(tuning(record()), config=jax_flux.Config(sm_margin=4))
    assert (decision.plan.sm_margin, decision.plan.chunk_rows) == (4, 0)
    assert "cost model" in decision.source
    assert decide(tuning(record()), config=jax_flux.Config()).plan.chunk_rows == 64


def test_forced_numbers_reach_the_plan():
    config = jax_flux.Config(instance=NAME, depth_outer=False, raster_group=8, chunk_depth=256)
    plan = decide(_tuning.NONE, config=config).plan
    assert plan.instance == NAME
    assert (plan.depth_outer, plan.raster_group, plan.chunk_depth, plan.chunk_rows) == (
        0,
        8,
        256,
        0,
    )


def test_a_kernel_that_is_not_there_is_ignored_with_one_warning_that_names_the_file():
    gone = tuning(record(instance="a kernel of tomorrow", source="here.json"))
    with pytest.warns(errors.TuningWarning, match=r"here\.json.*ignored") as caught:
        decisions = [decide(gone) for _ in range(3)]
    assert len(caught) == 1
    assert all("cost model" in decision.source for decision in decisions)


def test_a_carrier_that_the_kernel_does_not_offer_is_ignored_alike():
    bare = tuple(dataclasses.replace(row, transports=("tma",)) for row in KERNELS.instances)
    with pytest.warns(errors.TuningWarning, match="ignored"):
        # The record says "transport": "copy".
        decision = decide(tuning(record(source="here.json")), installed=_plan.Installed(bare))
    assert decision.plan.transport == "tma" and "cost model" in decision.source


def test_a_device_kind_without_figures_takes_xla_unless_tuned():
    kind = "NVIDIA GH200 480GB"
    decision = decide(_tuning.NONE, device_kind=kind)
    assert decision.implementation == "xla"
    assert f"no figures of {kind}" in decision.reason
    assert "python -m jax_flux tune" in decision.reason
    assert decide(_tuning.NONE, device_kind=kind, implementation="fused").plan is not None
    tuned = record(key=_records.Key.of(AG, kind))
    assert decide(tuning(tuned), device_kind=kind).implementation == "fused"


def test_explain_names_the_file(file, monkeypatch):
    monkeypatch.setattr(_ffi, "compiled", lambda: KERNELS)
    path = file(record())
    shapes = ("ag_matmul", (512, 4096), (4096, 1536), "bfloat16", 8)
    told = jax_flux.explain(*shapes, device_kind=KIND)
    assert told.source == str(path)
    assert told.reason.startswith("tuned: 289 us fused")
    assert told.plan.chunk_depth == 512
    assert jax_flux.explain(*shapes).source == "the cost model's figures of NVIDIA H200"
    assert jax_flux.explain(*shapes, platform="cpu").source == ""


def test_the_numbers_reach_the_custom_call_and_the_digest_its_hashes(monkeypatch, mesh):
    monkeypatch.setattr(_ffi, "installed", lambda: KERNELS)
    monkeypatch.setattr(_ffi, "register", lambda: None)
    numbers = dict(
        chunk_rows=32,
        chunk_depth=256,
        raster_group=4,
        sweep_segments=3,
        push_peers=2,
        push_ctas=64,
        depth_outer=True,
    )
    config = jax_flux.Config(**numbers, sm_margin=2)
    fn, x, w = call(mesh, jnp.bfloat16, n=64, implementation="fused", config=config)
    rows = []
    for digest in ("one", "two"):
        _tuning.use(_tuning.Tuning({}, digest))
        rows += attributes(abstract_text(fn, x, w), "jax_flux_ag_matmul_v1")
    assert {name: rows[0][name] for name in numbers} == numbers
    assert rows[0]["sm_margin"] == 2
    for name in ("plan_hash", "tuning_digest", "site"):
        assert rows[0][name] != rows[1][name], name


def abstract_text(fn, x, w):
    """Lowered for CUDA on a mesh that names no device, so that "fused" may be demanded here."""
    mesh = jax.sharding.AbstractMesh(
        (2, 4), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2
    )
    body = fn.__wrapped__ if hasattr(fn, "__wrapped__") else fn
    fn = jax.shard_map(body, mesh=mesh, in_specs=(P("tp"), P(None, "tp")), out_specs=P(None, "tp"))
    shape = lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype)
    traced = jax.jit(fn).trace(shape(x), shape(w))
    return traced.lower(lowering_platforms=("cuda",)).as_text()
