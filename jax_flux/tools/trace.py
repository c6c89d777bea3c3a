# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""``python -m jax_flux trace``: where the time of one fused call goes, per CTA and warp role.

An instance of the kernel that writes timestamps runs the op through JAX on this machine's GPUs.
Route: group.py (which devices) -> here -> cuda/ffi/trace.cc; timeline.py reads what comes back,
timeline_plot.py draws it. docs/tracing.md says how to read it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from jax_flux import _ffi, _lowering, _plan, _topology, errors
from jax_flux.tools import cases, contenders, group, paths, timeline, timeline_plot

WRONG = 2e-2  # relative Frobenius error to XLA's result, bf16
DEFAULT_ROW = "ag-2048x6144x12288"
CHANNEL = 0
Tracks = Mapping[int, Sequence[timeline.Track]]


class NoTrace(Exception):
    """This machine or this row gives no trace; the text says why and what to do."""


def main(argv: Sequence[str] | None = None) -> int:
    """Traces one call; 0 where its result is right, 1 where not or it cannot run, 2: bad flags."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    options = parser.parse_args(arguments)
    _judge(parser, options)
    try:
        ranks = group.join(options)
        if options.rank >= ranks.world:
            last = ranks.world - 1
            raise group.FlagError(f"--rank {options.rank}: ranks count from 0, so give 0 to {last}")
        traces, error = run(options.row, ranks, options.calls)
        tracks = {rank: timeline.decode(trace) for rank, trace in enumerate(traces)}
    except group.GroupError as problem:
        print(f"jax_flux trace: {problem}.", file=sys.stderr)
        return problem.status
    except (NoTrace, timeline.TraceError, errors.FluxError) as problem:
        print(f"jax_flux trace: {problem}", file=sys.stderr)
        return 1
    except jax.errors.JaxRuntimeError as problem:
        print(f"jax_flux trace: {_ffi.last_failure() or problem}", file=sys.stderr)
        return group.leave(1, broken=True)
    if jax.process_index() != 0:
        return 0
    about = dict(
        row=options.row.name,
        world=ranks.world,
        device=ranks.mesh.devices.flat[0].device_kind,
        label=f"{ranks.label}{': ' + ranks.note if ranks.note else ''}",
        error_to_xla=error,
        command=shlex.join(["python", "-m", "jax_flux", "trace", *arguments]),
    )
    kept = write(tracks, about, options)
    wrong = not error <= WRONG
    if wrong:
        print(f"jax_flux trace: the result is {error:.2g} away from XLA's.", file=sys.stderr)
    return int(wrong or not kept)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m jax_flux trace", description=_DESCRIPTION)
    parser.add_argument(
        "row",
        nargs="?",
        type=_row,
        default=DEFAULT_ROW,
        help=f"ag-MxNxK or rs-MxNxK, m rows of all ranks, n and k per GPU (default {DEFAULT_ROW})",
    )
    parser.add_argument("--json", type=paths.path, metavar="F.json", help="for ui.perfetto.dev")
    parser.add_argument("--plot", type=paths.path, metavar="F.png", help="draw the timeline")
    parser.add_argument(
        "--ctas", type=int, default=6, metavar="N", help="CTAs in the picture (default 6)"
    )
    parser.add_argument("--rank", type=int, default=0, metavar="R", help="rank in the picture")
    parser.add_argument(
        "--calls", type=int, default=5, metavar="N", help="calls; the last is kept (default 5)"
    )
    parser.add_argument("--plain", action="store_true", help="plain text on a terminal too")
    group.add_flags(parser)
    return parser


def _row(text: str) -> cases.Case:
    try:
        found = cases.select(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    such = "such as ag-2048x6144x12288 or rs-2048x12288x6144"
    if len(found) != 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} names {len(found)} rows, and a trace is of one call: name one row, {such}"
        )
    if found[0].kind not in ("ag", "rs"):
        raise argparse.ArgumentTypeError(
            f"{text!r} is a row of {found[0].op}, and kernels with timestamps are those of "
            f"ag_matmul and matmul_rs: name a row of theirs, {such}"
        )
    return found[0]


def _judge(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Judges the flags before any device is touched; leaves through ``parser.error``."""
    if isinstance(options.row, str):
        options.row = _row(options.row)
    for flag, path, suffix in (("--json", options.json, ".json"), ("--plot", options.plot, ".png")):
        if path is None:
            continue
        if path.suffix != suffix:
            parser.error(f"{flag} {path}: end the name in {suffix}")
        if no_file := paths.complaint(flag, path, writes=group.may_write(options)):
            parser.error(no_file)
    if options.plot is not None and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot draws with matplotlib, which is missing: pip install matplotlib")
    if options.rank < 0:
        parser.error(f"--rank {options.rank}: ranks count from 0")
    for flag, value in (("--ctas", options.ctas), ("--calls", options.calls)):
        if value < 1:
            parser.error(f"{flag} {value}: at least 1")
    wrong = group.complaint(options)
    if wrong:
        parser.error(wrong)


# ---- the call ---------------------------------------------------------------------------------


def run(case: cases.Case, ranks: group.Group, calls: int) -> tuple[list[np.ndarray], float]:
    """(bytes of every rank's trace, error to XLA's result) of the last of ``calls`` calls.

    Raises:
      NoTrace: no GPUs, a row that does not divide or fit, or a library without traced instances.
    """
    if not ranks.on_gpu:
        raise NoTrace(
            "JAX runs on CPU devices, and timestamps come from the kernel. Run on two or more "
            "GPUs; `python -m jax_flux doctor` says what this machine offers."
        )
    obstacle = case.obstacle(ranks.world)
    if obstacle:
        raise NoTrace(f"{case.name}: {obstacle}.")
    program, wanted, x, w = programs(case, ranks)
    for _ in range(calls):
        y, trace = jax.block_until_ready(program(x, w))
    error = float(jax.jit(_error)(y, wanted(x, w)))
    return list(group.gather_ranks(trace)), error


def programs(case: cases.Case, ranks: group.Group) -> tuple[Any, Any, jax.Array, jax.Array]:
    """(traced op, XLA's op, x, w) on global arrays; the traced op returns y and trace[W, bytes]."""
    world, mesh, axis = ranks.world, ranks.mesh, contenders.AXIS
    rows = case.m // world
    target, attributes = call_site(case, ranks)
    trace_shape = jax.ShapeDtypeStruct((timeline.trace_bytes(_sms(mesh)),), jnp.uint8)
    y_shape = (1, world, rows, case.n) if case.kind == "ag" else (1, rows, case.n)

    def traced(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        folded = x[None] if case.kind == "ag" else x.reshape(1, world, rows, case.k)
        results = (jax.ShapeDtypeStruct(y_shape, x.dtype), trace_shape)
        y, trace = jax.ffi.ffi_call(target, results)(folded, w[0], **attributes)
        return y.reshape(1, -1, case.n), trace[None]

    def plain(x: jax.Array, w: jax.Array) -> jax.Array:
        return contenders.flux(case, "xla")(x, w[0])[None]

    x_spec = P(axis, None) if case.kind == "ag" else P(None, axis)
    specs: dict[str, Any] = dict(mesh=mesh, in_specs=(x_spec, P(axis)), check_vma=False)
    keys = jax.random.split(jax.random.key(0))
    x_size = (case.m, case.k if case.kind == "ag" else case.k * world)

    def operand(key: jax.Array, size: tuple[int, ...], spec: P) -> jax.Array:
        sharding = jax.sharding.NamedSharding(mesh, spec)
        make = jax.jit(lambda k: jax.random.normal(k, size, jnp.bfloat16), out_shardings=sharding)
        return make(key)

    x, w = operand(keys[0], x_size, x_spec), operand(keys[1], (world, *case.w_shape), P(axis))
    program = jax.jit(jax.shard_map(traced, out_specs=(P(axis), P(axis)), **specs))
    wanted = jax.jit(jax.shard_map(plain, out_specs=P(axis), **specs))
    return program, wanted, x, w


def _sms(mesh: jax.sharding.Mesh) -> int:
    return max(int(device.core_count) for device in mesh.local_devices)


def call_site(case: cases.Case, ranks: group.Group) -> tuple[str, dict[str, Any]]:
    """Target and attributes of the traced call, which are those of the op's own.

    Raises:
      NoTrace: the native library has no traced instance of the op.
    """
    installed = _ffi.installed()
    names = [i.name for i in installed.instances if i.op == f"{case.op}_trace"]
    if not names:
        why = installed.problem or "the native library has no instance with timestamps"
        raise NoTrace(f"{why}. Rebuild it with `make native`.")
    rows, dtype = case.m // ranks.world, "bfloat16"
    problem = _plan.Problem(
        case.op, 1, rows, (case.n,), (case.k,), ranks.world, dtype, dtype
    )  # fmt: skip
    plan = _plan.Plan(instance=names[0], sm_margin=0, chunk_bytes=0, expected_ns=1)
    axes = ranks.mesh.shape
    groups = _topology.groups(tuple(axes), tuple(axes.values()), (contenders.AXIS,))
    told = _lowering.attributes(groups, problem, plan, CHANNEL, program="trace", transpose_w=False)
    return f"jax_flux_{case.op}_trace_v1", told


def _error(y: jax.Array, wanted: jax.Array) -> jax.Array:
    y, wanted = y.astype(jnp.float32), wanted.astype(jnp.float32)
    error: jax.Array = jnp.linalg.norm(y - wanted) / jnp.linalg.norm(wanted)
    return error


# ---- what comes out ---------------------------------------------------------------------------


def write(tracks: Tracks, about: Mapping[str, Any], options: argparse.Namespace) -> bool:
    """Prints the summary and then writes the files; whether all of them came out."""
    outputs: dict[str, Callable[[], object]] = {
        "the table": lambda: show(tracks, about, options.plain)
    }
    if options.json is not None:
        text = json.dumps(timeline.chrome(tracks, about)) + "\n"
        outputs[f"--json {options.json}"] = lambda: paths.write_text(options.json, text)
    if options.plot is not None:
        title = f"{about['row']}, W = {about['world']}, rank {options.rank} ({about['label']})"
        own = tracks[options.rank]
        outputs[f"--plot {options.plot}"] = lambda: timeline_plot.draw(
            own, title, options.plot, options.ctas
        )
    return paths.told("trace", outputs)


def show(tracks: Tracks, about: Mapping[str, Any], plain: bool) -> None:
    """The summary: rich's tables on a terminal, else text."""
    head, body, notes = timeline_plot.summary(tracks, about)
    if not plain and sys.stdout.isatty() and importlib.util.find_spec("rich"):
        from rich.console import Console
        from rich.table import Table

        table = Table(title=head)
        for at, name in enumerate(body[0]):
            table.add_column(name, justify="left" if at < 2 else "right")
        for line in body[1:]:
            table.add_row(*line, style="yellow" if line[1] in timeline.WAITS else "")
        console = Console()
        console.print(table)
        for note in notes:
            console.print(note, markup=False)
        return
    widths = [max(map(len, column)) for column in zip(*body, strict=True)]
    print(head, "", sep="\n")
    for line in body:
        cells = [c.ljust(n) if at < 2 else c.rjust(n)
                 for at, (c, n) in enumerate(zip(line, widths, strict=True))]  # fmt: skip
        print("  ".join(cells).rstrip())
    print("", *notes, sep="\n", flush=True)


_DESCRIPTION = (
    "Runs one fused call with an instance of its kernel that writes timestamps, and says where the "
    "time of every warp role goes: waiting for peers, loading, multiplying, storing, sending. "
    "docs/tracing.md explains the roles. Exit status 1 where nothing could be traced, the result "
    "is not XLA's or a file was not written, 2 for bad flags."
)
