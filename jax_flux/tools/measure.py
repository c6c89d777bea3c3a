# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""How `bench` takes times: dependent ops inside one jit call, contenders in turns.

A call runs ``length`` ops; a one-element update of x by y makes each wait for the one before. A
repetition times one call of every contender, A/B/A/B; of several processes the slowest counts.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import jax_flux
from jax_flux.tools import contenders, figures
from jax_flux.tools.cases import Case
from jax_flux.tools.contenders import OPTIONS, Op
from jax_flux.tools.group import Group, barrier, gather

WRONG = {"bfloat16": 2e-2, "float16": 4e-3, "float32": 1e-3}  # relative Frobenius error to XLA
PROBE_REPEATS = 7


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the flags ask for."""

    dtype: str
    repeats: int
    against: tuple[str, ...]
    implementation: str | None


@dataclasses.dataclass
class Program:
    """A compiled call of ``length`` dependent ops. ``x`` is its own: donated, and back changed."""

    run: Callable[..., Any]
    x: jax.Array
    w: jax.Array
    length: int

    def once(self) -> float:
        """Runs one call on all devices and returns its seconds."""
        start = time.perf_counter()
        _, self.x = jax.block_until_ready(self.run(self.x, self.w))
        return time.perf_counter() - start


def operands(
    group: Group, dtype: str, x_shape: tuple[int, ...], w_shape: tuple[int, int]
) -> tuple[jax.Array, jax.Array]:
    """Random normal x and w, each rank's own, stacked along axis 0; w such that x @ w is too."""

    def make() -> tuple[jax.Array, jax.Array]:
        key = jax.random.fold_in(jax.random.key(0), lax.axis_index(group.axes))
        x = jax.random.normal(key, x_shape, jnp.float32)
        w = jax.random.normal(jax.random.fold_in(key, 1), w_shape, jnp.float32)
        return x.astype(dtype), (w / x_shape[-1] ** 0.5).astype(dtype)

    specs = (P(group.axes), P(group.axes))
    made = jax.shard_map(make, mesh=group.mesh, in_specs=(), out_specs=specs, check_vma=False)
    x, w = jax.block_until_ready(jax.jit(made)())
    return x, w


def chained(op: Op, length: int) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """``length`` times op, each needing the last one's result: (its corner, the changed x)."""

    def call(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        corner = (0,) * x.ndim
        for _ in range(length):
            # The barrier keeps XLA from computing only the one element that is used.
            y = lax.optimization_barrier(op(x, w))
            one = lax.slice(y, corner, (1,) * y.ndim).astype(x.dtype)
            x = lax.dynamic_update_slice(x, one, corner)
        return one, x

    return call


def compiled(
    group: Group,
    op: Op,
    x: jax.Array,
    w: jax.Array,
    length: int,
    options: dict[str, Any] | None = None,
) -> Program:
    """Traces and compiles with XLA's ``options`` of this program alone; runs nothing."""
    spec = P(group.axes)
    fn = jax.shard_map(
        chained(op, length),
        mesh=group.mesh,
        in_specs=(spec, spec),
        out_specs=(spec, spec),
        check_vma=False,
    )
    with warnings.catch_warnings():
        # The row says so instead.
        warnings.simplefilter("ignore", jax_flux.errors.FallbackWarning)
        # Without the donation each call would first copy x, and the bare matmul's x is larger.
        run = jax.jit(fn, donate_argnums=0).lower(x, w).compile(compiler_options=options)
    return Program(run, jax.jit(jnp.copy)(x), w, length)


def interleaved(programs: dict[str, Program], repeats: int) -> dict[str, list[float]]:
    """Seconds per op, ``repeats`` of each program, in turns; the slowest process's.

    The first of a fresh program is slow: run it once before, or take the least.
    """
    names = list(programs)
    mine = np.zeros((repeats, len(names)), np.float32)
    for repeat in range(repeats):
        for at, name in enumerate(names):
            program = programs[name]
            barrier("jax_flux bench")
            mine[repeat, at] = program.once() / program.length
    worst = gather(mine).max(axis=0)
    return {name: [float(t) for t in worst[:, at]] for at, name in enumerate(names)}


def ceilings(group: Group, dtype: str) -> tuple[float, float | None]:
    """(FLOP/s of a large dot, bytes/s that a rank sends), each the best of a few repetitions."""
    side, width, length = (8192, 4096, 12) if group.on_gpu else (256, 256, 4)
    square = operands(group, dtype, (side, side), (side, side))
    dot = compiled(group, contenders.gemm, *square, 2)  # short: a long one throttles the clock
    best = min(interleaved({"dot": dot}, PROBE_REPEATS)["dot"])
    shard = operands(group, "bfloat16", (side, width), (1, 1))
    probes = {
        "gather": compiled(group, contenders.gather_only, *shard, length),
        "shift": compiled(group, contenders.shift_only, *shard, length),
    }
    sent = shard[0].nbytes // group.mesh.size
    peers = {"gather": group.world - 1, "shift": 1}
    times = interleaved(probes, PROBE_REPEATS)
    return 2 * side**3 / best, max(peers[name] * sent / min(t) for name, t in times.items())


def flop(rows: Sequence[Case], group: Group, settings: Settings) -> float:
    """Floating-point operations of all devices for these rows, on CPU devices (no Pallas)."""
    lines = 2 + sum(name != "pallas" for name in settings.against)
    total = 0.0
    for case in rows:
        itemsize = jnp.dtype(settings.dtype).itemsize
        length = figures.chain_length(case, group.world, itemsize, small=not group.on_gpu)
        total += case.flops * (lines * length * (settings.repeats + 1) + 2)
    return total * group.mesh.size


def row(case: Case, group: Group, settings: Settings) -> dict[str, Any]:
    """Measures one row; a contender that cannot run says why under "error"."""
    itemsize = jnp.dtype(settings.dtype).itemsize
    length = figures.chain_length(case, group.world, itemsize, small=not group.on_gpu)
    entries: dict[str, dict[str, Any]] = {}
    result = dict(
        name=case.name,
        op=case.op,
        m=case.m,
        n=case.n,
        k=case.k,
        tags=list(case.tags),
        world=group.world,
        dtype=settings.dtype,
        ops_per_call=length,
        flops=case.flops,
        wire_bytes=case.wire_bytes(group.world, itemsize),
        implementations=entries,
    )
    obstacle = case.obstacle(group.world)
    if obstacle:
        return result | {"skipped": obstacle}
    x, w = operands(group, settings.dtype, case.x_shape(group.world), case.w_shape)
    full = x
    if case.kind == "ag":
        full = operands(group, settings.dtype, case.full_shape, (1, 1))[0]
    programs: dict[str, Program] = {}
    for name, operand, ops in _line_up(case, group, settings, entries):
        best = _best(group, ops, operand(x, full), w, length, entries[name], OPTIONS.get(name))
        if best is None:
            continue
        programs[name], op = best
        if name in ("jax_flux", "pallas"):
            reference = contenders.flux(case, "xla")
            error = difference(group, op, reference, (x, w))
            entries[name]["error_to_xla"] = error
            entries[name]["wrong"] = not error <= WRONG[settings.dtype]
    for name, samples in interleaved(programs, settings.repeats).items():
        entries[name]["samples_s"] = samples
    return result


Line = tuple[str, Callable[[Any, Any], Any], Sequence[tuple[str, Op]]]


def _line_up(
    case: Case, group: Group, settings: Settings, entries: dict[str, dict[str, Any]]
) -> list[Line]:
    """(name, which operand, configurations) of each contender; opens their entries."""
    lines: list[Line] = [("gemm", lambda x, full: full, [("", contenders.gemm)])]
    for name in ("xla", *OPTIONS):
        if name in settings.against:
            lines.append((name, lambda x, full: x, [("", contenders.flux(case, "xla"))]))
    own = contenders.flux(case, settings.implementation)
    lines.append(("jax_flux", lambda x, full: x, [("", own)]))
    for name, *_ in lines:
        entries[name] = {}
    entries["jax_flux"]["plan"] = contenders.plan(
        case, group, settings.dtype, settings.implementation
    )
    if "pallas" in settings.against:
        why_not = contenders.no_pallas(case, group, settings.dtype)
        entries["pallas"] = {"error": why_not} if why_not else {}
        if not why_not:
            configs = list(contenders.pallas(case, group.world))
            lines.append(("pallas", lambda x, full: x, configs))
    return lines


def _best(
    group: Group,
    ops: Sequence[tuple[str, Op]],
    x: jax.Array,
    w: jax.Array,
    length: int,
    entry: dict[str, Any],
    options: dict[str, Any] | None = None,
) -> tuple[Program, Op] | None:
    """The fastest configuration that compiles; None with ``entry["error"]`` where none does."""
    found: list[tuple[float, str, Program, Op]] = []
    trial_length = length if len(ops) == 1 else min(length, 2)
    start = time.perf_counter()
    for words, op in ops:
        jax_flux.stats_reset()
        program = None
        try:
            program = compiled(group, op, x, w, trial_length, options)
        except Exception as error:  # a rival's compiler may raise anything; the table says it
            entry["error"] = first_line(error)
        # Nobody starts a call that a peer cannot make.
        if not gather(program is not None).all() or program is None:
            entry.setdefault("error", "it does not compile in another process")
            continue
        took = list(jax_flux.stats().values())
        if took:
            fused = all(counts["fused"] and not counts["xla"] for counts in took)
            entry["ran"] = "fused" if fused else "xla"
            entry["reason"] = "; ".join(reason for counts in took for reason in counts["reasons"])
        interleaved({"": program}, 1)  # warm
        trial = 0.0 if len(ops) == 1 else min(interleaved({"": program}, 3)[""])
        found.append((trial, words, program, op))
    if not found:
        return None
    entry.pop("error", None)
    _, words, program, op = min(found, key=lambda item: item[0])
    if words:
        entry["config"] = words
    if trial_length < length:
        program = compiled(group, op, x, w, length, options)
        interleaved({"": program}, 1)
    entry["prepared_in_s"] = round(time.perf_counter() - start, 2)
    return program, op


def first_line(error: Exception) -> str:
    """An exception's kind and the first line of its text."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:400] if text else ''}".rstrip(": ")


def difference(group: Group, op: Op, reference: Op, arrays: tuple[jax.Array, ...]) -> float:
    """Relative Frobenius norm of op - reference over all ranks, on the measured operands."""
    spec = (P(group.axes),) * len(arrays)

    def both(x: jax.Array, w: jax.Array) -> jax.Array:
        ours, theirs = (f(x, w).astype(jnp.float32) for f in (op, reference))
        sums = jnp.stack([jnp.sum((ours - theirs) ** 2), jnp.sum(theirs**2)])
        return lax.psum(sums, group.axes)

    fn = jax.shard_map(both, mesh=group.mesh, in_specs=spec, out_specs=P(), check_vma=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jax_flux.errors.FallbackWarning)
        wrong, whole = (float(v) for v in np.asarray(jax.jit(fn)(*arrays)))
    return float(np.sqrt(wrong / whole)) if whole > 0 else float("nan")
