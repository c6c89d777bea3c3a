# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""``python -m jax_flux trace``: what a trace says, the files it becomes, and its complaints."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_flux
from jax_flux.tools import cases, group, paths, timeline, timeline_plot, trace
from tests.cpu import programs

ROOT = Path(__file__).resolve().parents[2]
ENV = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"}
COMMAND = (sys.executable, "-m", "jax_flux", "trace")
BASE = (7 << 32) + (1 << 32) - 500  # the low half wraps 500 ns into the launch
ABOUT = {"row": "ag-1x1x1", "world": 2, "device": "a GPU", "label": "made up"}


def written(spans, ctas=2, room=timeline.SPANS_PER_ROLE, lost=0):
    """Bytes as trace.cuh writes them; spans: (cta, role, kind, begin, ns, index)."""
    lines = bytearray(timeline.trace_bytes(ctas, room))
    counts = {}

    def put(cta, role, line, *words):
        at = ((cta * len(timeline.ROLES) + role) * (room + 1) + line) * 16
        lines[at : at + 16] = struct.pack("<4I", *words)

    for cta, name, kind, begin, ns, index in spans:
        role = timeline.ROLES.index(name)
        counts[cta, role] = line = counts.get((cta, role), 0) + 1
        number = timeline.NUMBERS.get(kind, kind)
        put(cta, role, line, (BASE + begin) & 0xFFFFFFFF, ns, index, number)
    for (cta, role), count in counts.items():
        put(cta, role, 0, BASE & 0xFFFFFFFF, BASE >> 32, count + lost, 40 + cta)
    return np.frombuffer(bytes(lines), np.uint8)


SPANS = [
    (0, "producer", "gate", 100, 200, 3),
    (0, "producer", "load", 100, 700, 3),
    (0, "consumer 0", "mma", 300, 400, 3),
    (0, "consumer 0", "starve", 450, 50, 3),
    (0, "consumer 1", "mma", 600, 300, 4),
    (1, "consumer 0", "mma", 200, 800, 5),
]


def test_decode_finds_every_span_across_the_clocks_wrap():
    tracks = timeline.decode(written(SPANS))
    assert [(t.cta, t.role, t.sm, t.lost) for t in tracks] == [
        (0, "producer", 40, 0), (0, "consumer 0", 40, 0), (0, "consumer 1", 40, 0),
        (1, "consumer 0", 41, 0),
    ]  # fmt: skip
    found = [
        (t.cta, t.role, timeline.KINDS[s["kind"]][0], s["begin"] - BASE, s["ns"], s["index"])
        for t in tracks
        for s in t.spans
    ]
    assert found == SPANS
    assert timeline.start(tracks) == BASE and timeline.length_ns(tracks) == 1000


def test_decode_counts_spans_without_room():
    (track,) = timeline.decode(written(SPANS[-1:], room=4, lost=9), 4)
    assert track.lost == 6 and len(track.spans) == 4


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (np.zeros(100, np.uint8), "bytes per CTA, here are 100"),
        (np.zeros(0, np.uint8), "here are 0"),
        (np.zeros(timeline.trace_bytes(2), np.uint8), "not a traced one"),
        (written([(1, "pusher", 99, 0, 1, 0)]), "CTA 1, pusher: a span of a kind"),
    ],
)
def test_decode_refuses_what_no_kernel_wrote(bad, words):
    with pytest.raises(timeline.TraceError, match=re.escape(words)):
        timeline.decode(bad)


def test_tensor_time_adds_up_and_counts_overlap_once():
    told = timeline.tensor_time(timeline.decode(written(SPANS)))
    # CTA 0: busy 300 .. 900, of which 50 starved; CTA 1: busy 200 .. 1000.
    assert (told.total, told.multiply, told.starve) == (1000, (550 + 800) / 2, 25)
    assert (told.head, told.between, told.tail) == (250, 0, 50)
    assert told.multiply + told.starve + told.head + told.between + told.tail == told.total


def test_shares_join_the_two_consumers_and_average_over_ctas():
    found = {(s.role, s.kind): s for s in timeline.shares(timeline.decode(written(SPANS)))}
    mma = found["consumer", "mma"]
    assert (mma.mean_ns, mma.most_ns, mma.spans) == (750, 800, 3)
    assert found["producer", "gate"].mean_ns == 100


def test_numbers_are_those_of_the_kernel():
    text = (ROOT / "cuda/kernels/trace.cuh").read_text()
    body = re.search(r"enum class Span[^{]*{([^}]*)}", text)[1]
    names = re.findall(r"k(\w+)", body)
    assert [name.lower() for name in names] == [name for name, _, _ in timeline.KINDS[1:]]
    roles = re.search(r"enum class TraceRole[^{]*{([^}]*)}", text)[1]
    wanted = [name.replace(" ", "") for name in timeline.ROLES]
    assert [name.lower() for name in re.findall(r"k(\w+)", roles)] == wanted
    sizes = (ROOT / "cuda/kernels/gemm.h").read_text()
    assert f"kTraceSpans = {timeline.SPANS_PER_ROLE};" in sizes
    assert f"kTraceRoles = {len(timeline.ROLES)};" in sizes


def test_chrome_events_count_from_each_ranks_start():
    tracks = timeline.decode(written(SPANS))
    told = json.loads(json.dumps(timeline.chrome({0: tracks, 1: tracks}, ABOUT)))
    events = [e for e in told["traceEvents"] if e["ph"] == "X"]
    assert len(events) == 2 * len(SPANS) and {e["pid"] for e in events} == {0, 1}
    first = events[0]
    assert (first["name"], first["cat"], first["ts"], first["dur"]) == ("gate", "wait", 0.1, 0.2)
    assert first["args"] == {"index": 3}
    names = {e["args"]["name"] for e in told["traceEvents"] if e["name"] == "thread_name"}
    assert "CTA 001 consumer 0 (SM 41)" in names


def test_summary_and_picture(tmp_path):
    tracks = timeline.decode(written(SPANS))
    tracks[0] = dataclasses.replace(tracks[0], lost=8)
    head, body, notes = timeline_plot.summary({0: tracks}, ABOUT)
    assert head == "ag-1x1x1, W = 2, a GPU, 2 CTAs, rank 0"
    assert body[0] == timeline_plot.HEAD
    assert body[3][:5] == ("consumer", "mma", "0.8", "0.8", "3")
    assert "multiplying 0.7 (67.5%)" in notes[1] and "8 spans had no room" in notes[2]
    assert timeline_plot.pick_ctas(tracks, 1) == [1]
    pytest.importorskip("matplotlib", reason="needs matplotlib, which draws")
    target = tmp_path / "trace.png"
    timeline_plot.draw(tracks, "made up", target, notes=[(0.2, 1.0, "here")])
    assert target.read_bytes().startswith(b"\x89PNG")


def test_every_kind_has_a_colour():
    assert set(timeline_plot.COLOURS) == {name for name, _, _ in timeline.KINDS[1:]}


# ---- the command -----------------------------------------------------------------------------


def run(*flags):
    return subprocess.run(
        [*COMMAND, *flags], capture_output=True, text=True, env=ENV, cwd=ROOT, timeout=240
    )


def test_command_on_cpu_says_what_it_needs():
    ran = run("ag-256x128x256")
    assert ran.returncode == 1 and not ran.stdout
    assert ran.stderr.strip() == (
        "jax_flux trace: JAX runs on CPU devices, and timestamps come from the kernel. Run on two "
        "or more GPUs; `python -m jax_flux doctor` says what this machine offers."
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["gpt3"], "names 12 rows"),
        (["ag-64x64x64,rs-64x64x64"], "a trace is of one call: name one row, such as ag-"),
        (["ar-1024x512x512"], "'ar-1024x512x512' is a row of matmul_ar, and kernels with"),
        (["ar-1024x512x512"], "those of ag_matmul and matmul_rs: name a row of theirs, such as"),
        (["nonsense"], "'nonsense' names no row"),
        (["--json", "trace.txt"], "--json trace.txt: end the name in .json"),
        (["--plot", "no_such_folder/t.png"], "name a file in a folder that exists"),
        (["--ctas", "0"], "--ctas 0: at least 1"),
        (["--calls", "0"], "--calls 0: at least 1"),
        (["--rank", "-1"], "--rank -1: ranks count from 0"),
        (["--processes", "2"], "belong together"),
    ],
)
def test_command_refuses_flags_in_words(flags, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        trace.main(flags)
    assert stopped.value.code == 2 and words in capsys.readouterr().err


def _group(world, label=group.REAL):
    return group.Group(programs.make_mesh((world,), ("tp",)), label, "")


@pytest.mark.parametrize(
    "error",
    [jax.errors.JaxRuntimeError("it gave up"), jax_flux.errors.TuningError("it gave up")],
    ids=lambda error: type(error).__name__,
)
def test_a_call_that_fails_is_told_in_one_line(error, monkeypatch, capsys):
    def fail(*_):
        raise error

    monkeypatch.setattr(group, "join", lambda options: _group(2))
    monkeypatch.setattr(trace, "run", fail)
    assert trace.main([]) == 1
    assert capsys.readouterr().err == "jax_flux trace: it gave up\n"


def test_a_rank_past_the_group_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(group, "join", lambda options: _group(2))
    monkeypatch.setattr(trace, "run", None)
    assert trace.main(["--rank", "2"]) == 2
    told = "jax_flux trace: --rank 2: ranks count from 0, so give 0 to 1.\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("full", [True, False])
def test_the_table_comes_first_and_a_full_disk_is_told(full, monkeypatch, tmp_path, capsys):
    def no_room(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(group, "join", lambda options: _group(2))
    monkeypatch.setattr(trace, "run", lambda *_: ([written(SPANS)] * 2, 0.0))
    if full:
        monkeypatch.setattr(paths, "write", no_room)
    file = tmp_path / "t.json"
    assert trace.main(["--plain", "--rank", "1", "--json", str(file)]) == int(full)
    told = capsys.readouterr()
    assert "ag-2048x6144x12288, W = 2" in told.out
    if full:
        assert f"--json {file} could not be written: No space left on device" in told.err
    else:
        assert json.loads(file.read_text())["traceEvents"]


def test_run_refuses_a_row_that_does_not_divide():
    with pytest.raises(trace.NoTrace, match=r"m = 7 does not divide over 2 ranks, .* of 2\.$"):
        trace.run(cases.Case("ag", 7, 64, 64), _group(2), 1)


def test_run_without_a_library_says_how_to_get_one():
    with pytest.raises(trace.NoTrace, match="make native"):
        trace.run(cases.Case("ag", 256, 64, 64), _group(2), 1)


@pytest.mark.parametrize("kind", ["ag", "rs"])
def test_traced_call_has_the_products_attributes_and_shapes(kind, monkeypatch):
    case, ranks = cases.Case(kind, 256, 128, 64), _group(4)
    target = f"jax_flux_{case.op}_trace_v1"
    name = f"sm90_traced_{kind}"
    instance = jax_flux._plan.Instance(name, f"{case.op}_trace", "bfloat16", "nn", (1, 1), (1, 1))
    installed = jax_flux._plan.Installed((instance,))
    monkeypatch.setattr(jax_flux._ffi, "installed", lambda: installed)
    told, attributes = trace.call_site(case, ranks)
    assert told == target and attributes["instance"] == name
    assert attributes["groups"].tolist() == [0, 1, 2, 3] and attributes["world"] == 4

    seen = {}

    def stand_in(name, results):
        def call(x, w, **given):
            seen.update(name=name, x=x.shape, w=w.shape, y=results[0].shape, given=given)
            return [jnp.zeros(r.shape, r.dtype) for r in results]

        return call

    monkeypatch.setattr(jax.ffi, "ffi_call", stand_in)
    monkeypatch.setattr(timeline, "trace_bytes", lambda ctas: 16 * ctas)
    monkeypatch.setattr(trace, "_sms", lambda mesh: 3)
    program, wanted, x, w = trace.programs(case, ranks)
    y, trace_bytes = program(x, w)
    assert y.shape == wanted(x, w).shape and trace_bytes.shape == (4, 48)
    assert seen["name"] == target and seen["w"] == case.w_shape
    rows = 64
    gathers = ((1, rows, 64), (1, 4, rows, 128))
    scatters = ((1, 4, rows, 64), (1, rows, 128))
    assert (seen["x"], seen["y"]) == (gathers if kind == "ag" else scatters)
    assert float(trace._error(wanted(x, w), wanted(x, w))) == 0


def test_planner_never_picks_a_traced_instance():
    plan = jax_flux._plan
    traced = plan.Instance("t", "ag_matmul_trace", "bfloat16", "nn", (128, 192), (2, 1))
    problem = plan.Problem("ag_matmul", 1, 512, (6144,), (4096,), 2, "bfloat16", "bfloat16")
    assert not plan.matching_instances(problem, (traced,), None)
