# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tuning files: what is read, what is refused and in which words, and how dispatch obeys them."""

from __future__ import annotations

import dataclasses
import json
import warnings

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import jax_flux
from jax_flux import _compat, _ffi, _plan, _records, _tuning, errors
from tests.cpu.test_plan import AG, KERNELS, attributes, call, cuda_text, instance

NAME = instance("ag_matmul").name
KIND = "NVIDIA H200"
NUMBERS = {
    "chunk_rows": 64,
    "chunk_depth": 512,
    "depth_outer": 1,
    "sweep_segments": 2,
    "transport": "copy",
}


def record(problem=AG, fused_us=289.0, xla_us=301.0, **changes):
    made = _records.Record(
        key=_records.Key.of(problem, KIND),
        instance=NAME,
        numbers=tuple(sorted(NUMBERS.items())),
        fused_us=fused_us,
        xla_us=xla_us,
        date="2026-12-01",
        shared_gpus=False,
        versions=(("jax_flux", jax_flux.__version__), ("nccl", None)),
    )
    return dataclasses.replace(made, **changes)


def tuning(*records):
    return _tuning.Tuning({one.key: one for one in records}, "digest", "here.json")


@pytest.fixture(autouse=True)
def forget():
    _tuning.use(None)
    yield
    _tuning.use(None)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Writes records (or any text) into the user's file."""

    def write(*records, text=None):
        path = tmp_path / "tuning.json"
        path.write_text(_records.dumps(records) if text is None else text)
        monkeypatch.setenv(_records.VARIABLE, str(path))
        _tuning.use(None)
        return path

    return write


def decide(records, problem=AG, implementation=None, config=None, device_kind=KIND):
    return _plan.plan(
        problem,
        implementation=implementation,
        config=config,
        platform="gpu",
        device_kind=device_kind,
        installed=KERNELS,
        tuning=records,
    )


# ---- dispatch ------------------------------------------------------------------------------------


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


def test_a_carrier_that_the_kernel_does_not_offer_is_ignored_alike(monkeypatch):
    bare = tuple(dataclasses.replace(row, transports=("tma",)) for row in KERNELS.instances)
    monkeypatch.setattr(f"{__name__}.KERNELS", _plan.Installed(bare))
    with pytest.warns(errors.TuningWarning, match="ignored"):
        decision = decide(tuning(record(source="here.json")))  # "transport": "copy"
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


# ---- the file ------------------------------------------------------------------------------------


def test_what_is_written_is_what_is_read():
    records = [record(), record(dataclasses.replace(AG, m=64), xla_us=100.0, shared_gpus=True)]
    read = _records.parse(_records.dumps(records), "here.json")
    assert sorted(read, key=str) == sorted(
        (dataclasses.replace(one, source="here.json") for one in records), key=str
    )
    assert _records.dumps(read) == _records.dumps(reversed(records))
    shown = json.loads(_records.dumps(records))["records"][0]
    assert (shown["m"], shown["n"], shown["faster"]) == (512, [1536], "fused")


def change(path, value):
    """The text of a good file with one part of its record replaced, or removed by ``...``."""
    whole = json.loads(_records.dumps([record()]))
    *way, last = path.split(".")
    holder = whole["records"][0] if way[:1] != ["top"] else whole
    for part in way[1:] if way[:1] == ["top"] else way:
        holder = holder[part]
    holder[last] = value
    if value is ...:
        del holder[last]
    return json.dumps(whole)


TWICE = _records.dumps([record(), record(fused_us=1.0)])
BAD = [
    ("{", "no JSON"),
    ("[]", 'no "format"'),
    (change("top.version", 2), "version is 2, this package's 1"),
    (change("top.records", {}), 'no list "records"'),
    (change("m", "512"), "record 0: \"m\" is '512'"),
    (change("m", True), '"m" is True'),
    (change("world", 0), '"world" is 0'),
    (change("n", []), '"n" is []'),
    (change("k", [4096, -1]), '"k" is'),
    (change("fused_us", ...), '"fused_us" is None'),
    (change("xla_us", float("nan")), '"xla_us" is nan'),
    (change("plan", "fast"), "\"plan\" is 'fast'"),
    (change("plan.instance", 7), '"instance" is 7'),
    (change("plan.chunk_rows", 24), '"chunk_rows" is 24, not 0 or multiples of 16'),
    (change("plan.raster_group", -1), '"raster_group" is -1'),
    (change("plan.depth_outer", 2), '"depth_outer" is 2, not -1, 0 or 1'),
    (change("plan.sm_margin", 65), '"sm_margin" is 65, not 0 .. 64'),
    (change("plan.transport", "pigeon"), "\"transport\" is 'pigeon', not one of ('tma', 'copy')"),
    (change("op", "matmul_ar"), "\"op\" is 'matmul_ar'"),
    (change("layout", "tn"), "\"layout\" is 'tn'"),
    (change("dtype", "float32"), "\"dtype\" is 'float32'"),
    (change("n", [True]), '"n" is [True]'),
    (change("k", [8, 8]), '"k" is [8, 8]'),
    (change("xla_us", float("inf")), '"xla_us" is inf'),
    (change("fused_us", 10**400), '"fused_us" is 1000'),
    (TWICE, "record 1 is of a call that an earlier record has"),
    (change("op", "matmul_rs"), "only ag_matmul is carried by copy engines"),
    (change("plan.warp_speed", 1), "unknown parts ['warp_speed']"),
    (change("shared_gpus", 0), '"shared_gpus" is 0'),
    (change("versions", {"jax_flux": "0.0.1"}), "measured with jax_flux 0.0.1, this is"),
]


@pytest.mark.parametrize("text, words", BAD, ids=[words for _, words in BAD])
def test_a_bad_file_is_an_error_in_words_at_first_use(text, words, file):
    path = file(text=text)
    for _ in range(2):  # and again: nothing of it is kept
        with pytest.raises(errors.TuningError) as caught:
            _tuning.active()
        message = str(caught.value)
        assert words in message and str(path) in message
        assert "python -m jax_flux tune" in message


def test_a_bad_file_does_not_reach_a_cpu_mesh(file, tp8):
    file(text="{")
    fn, x, w = call(tp8, jnp.bfloat16, n=64)
    fn(x, w)


def test_a_bad_file_stops_a_call_on_a_gpu_at_trace_time(file, monkeypatch, mesh):
    file(text="{")
    monkeypatch.setattr(_ffi, "installed", lambda: KERNELS)
    monkeypatch.setattr(_ffi, "register", lambda: None)
    fn, x, w = call(mesh, jnp.bfloat16, n=64)
    with pytest.raises(errors.TuningError, match="no JSON"):
        cuda_text(fn, x, w)


def test_records_of_shared_gpus_are_refused_unless_allowed(file, monkeypatch):
    file(record(shared_gpus=True))
    with pytest.warns(errors.TuningWarning, match=r"1 record.* sharing a GPU.*=1"):
        refused = _tuning.active()
    assert not refused.records
    monkeypatch.setenv(_tuning.SHARED_VARIABLE, "1")
    _tuning.use(None)
    allowed = _tuning.active()
    assert len(allowed.records) == 1
    assert allowed.digest != refused.digest
    told = decide(allowed).reason
    assert told.endswith("record of 2026-12-01 with ranks sharing a GPU")


def test_which_file_is_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv(_records.VARIABLE, "off")
    assert _tuning.user_file() is None
    assert _tuning.active() == _tuning.NONE
    monkeypatch.setenv(_records.VARIABLE, str(tmp_path / "missing.json"))
    _tuning.use(None)
    with pytest.raises(
        errors.TuningError, match=r"missing\.json.*no such file can be reached.*tune --out"
    ):
        _tuning.active()
    monkeypatch.setenv(_records.VARIABLE, "~nobody-of-that-name/t.json")
    _tuning.use(None)
    with pytest.raises(errors.TuningError, match="no such file can be reached"):
        _tuning.active()
    monkeypatch.delenv(_records.VARIABLE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    _tuning.use(None)
    assert _tuning.user_file() == tmp_path / "jax_flux" / "tuning.json"
    assert _tuning.active() == _tuning.NONE  # the default file need not exist
    (tmp_path / "jax_flux").write_text("no folder")  # nor can it
    _tuning.use(None)
    assert _tuning.active() == _tuning.NONE


def test_the_users_record_wins_over_a_shipped_one(tmp_path, monkeypatch, file):
    monkeypatch.setattr(_tuning, "_SHIPPED", tmp_path)
    other = record(dataclasses.replace(AG, m=64))
    (tmp_path / "plans_h200.json").write_text(_records.dumps([record(fused_us=1.0), other]))
    file(record(fused_us=2.0))
    both = _tuning.active()
    assert [both.records[key].fused_us for key in (record().key, other.key)] == [2.0, 289.0]
    assert "plans_h200.json" in both.source and "tuning.json" in both.source


def test_files_are_read_once_and_the_digest_tells_them_apart(file):
    path = file(record())
    first = _tuning.active()
    path.write_text("{")
    assert _tuning.active() is first
    file(record(fused_us=288.0))
    assert _tuning.active().digest != first.digest


def test_shipped_tables_fit_their_package():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _tuning.load(None)


# ---- ranks that do not agree ---------------------------------------------------------------------


class Store:
    """The key-value store of a job, as two processes see it."""

    def __init__(self):
        self.values = {}

    def key_value_set(self, key, value, allow_overwrite):
        assert allow_overwrite
        self.values[key] = value

    def key_value_dir_get(self, topic):
        return [(key, value) for key, value in self.values.items() if key.startswith(topic)]


def test_the_later_of_two_processes_with_other_records_is_told(monkeypatch, file):
    store = Store()
    at = lambda process: monkeypatch.setattr(
        _tuning._compat, "distributed_board", lambda: _compat.Board(process, store)
    )
    file(record())
    at(0)
    _tuning.active()
    at(1)
    _tuning.use(None)
    _tuning.active()  # the same file
    file(record(fused_us=288.0))
    with pytest.raises(errors.TuningError, match=r"process 1 has.*process 0 has.*Copy one file"):
        _tuning.active()
