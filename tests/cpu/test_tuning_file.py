# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tuning files: which one is read, what is refused and in which words."""

from __future__ import annotations

import dataclasses
import json
import warnings

import jax.numpy as jnp
import pytest

from jax_flux import _compat, _ffi, _records, _tuning, errors
from tests.cpu.plans import AG, KERNELS, call, cuda_text
from tests.cpu.tunings import decide, file, forget, record

__all__ = ["file", "forget"]  # fixtures


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
