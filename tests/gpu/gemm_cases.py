# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What every rank runs for the GEMMs, through the public ops: one program of many calls.

One program, because compiling and starting ranks costs more than running: so mixed ops and sizes
follow each other on one workspace anyway. Every rank computes the same float64 answers from seeds.
Errors are returned as sums of squares (a shard's own), which the test adds over ranks.
"""

from __future__ import annotations

import functools
import re
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

import jax_flux
from tests.gpu.gemm_operands import Case, Place, exact, place, put, put_all, shapes

# ---- programs ------------------------------------------------------------------------------------


def call(case: Case, at: Place, args: list[jax.Array], implementation: str) -> list[jax.Array]:
    """One op inside shard_map; a single weight is passed as such, several as a tuple."""
    x, *rest = args
    ws, biases = rest[: len(case.n)], rest[len(case.n) :]
    dimension = len(case.lead) + (1 if at.outer else 0)
    keywords: dict[str, Any] = dict(
        axis_name=at.axis if len(at.axis) > 1 else at.axis[0],
        transpose_w=case.transpose_w,
        implementation=implementation,
        config=None if implementation == "xla" else case.config,
    )
    if not case.gathers:
        bias = biases[0] if case.bias else None
        y = jax_flux.matmul_rs(x, ws[0], scatter_axis=dimension, bias=bias, **keywords)
        return [y]
    several = len(ws) > 1
    bias = (tuple(biases) if several else biases[0]) if case.bias else None
    ys = jax_flux.ag_matmul(
        x,
        tuple(ws) if several else ws[0],
        gather_axis=dimension,
        bias=bias,
        activation=case.activation,
        **keywords,
    )
    return list(ys) if several else [ys]


def split(cases: list[Case], at: Place, args: Any) -> list[list[jax.Array]]:
    """The flat operands of a program, case by case."""
    args, out = list(args), []
    for case in cases:
        count = len(shapes(case, at)[0])
        out.append(args[:count])
        args = args[count:]
    return out


def program(cases: list[Case], at: Place, implementation: str | None) -> Any:
    """jit of all cases: (poison.., operands..) -> results; poison is donated to the results."""
    in_specs = [spec for case in cases for spec in shapes(case, at)[1]]
    out_specs = [spec for case in cases for spec in shapes(case, at)[2]]

    def local(*args: jax.Array) -> list[jax.Array]:
        out = []
        for case, own in zip(cases, split(cases, at, args), strict=True):
            out += call(case, at, own, implementation or case.implementation)
        return out

    mapped = jax.shard_map(
        local, mesh=at.mesh, in_specs=tuple(in_specs), out_specs=out_specs, check_vma=True
    )
    count = len(out_specs)
    return jax.jit(
        lambda *args: mapped(*args[count:]),
        donate_argnums=tuple(range(count)),
        keep_unused=True,
        out_shardings=[NamedSharding(at.mesh, spec) for spec in out_specs],
    )


def poison(cases: list[Case], at: Place) -> list[jax.Array]:
    """NaNs in the shape of each result."""
    out = []
    for case in cases:
        for y, spec in zip(exact(case, at, 0), shapes(case, at)[2], strict=True):
            out.append(put(at, np.full(y.shape, np.nan, jnp.dtype(case.dtype)), spec))
    return out


def collectives(compiled: Any) -> dict[str, int]:
    """Custom calls of ours and XLA's own collectives in a compiled program."""
    text = compiled.as_text()
    names = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
    own = len(re.findall(r'custom_call_target="jax_flux_', text))
    xla = sum(len(re.findall(rf" {name}(?:-start)?\(", text)) for name in names)
    return {"own": own, "xla": xla}


def squares(ys: list[jax.Array], expected: list[np.ndarray]) -> list[list[float]]:
    """Per result: squared error, squared norm, values that are no number; of the own shards."""
    rows = []
    for y, want in zip(ys, expected, strict=True):
        row = [0.0, 0.0, 0.0]
        for shard in y.addressable_shards:
            got, ref = np.asarray(shard.data).astype(np.float64), want[shard.index]
            row[0] += float(np.sum((got - ref) ** 2))
            row[1] += float(np.sum(ref**2))
            row[2] += float(np.count_nonzero(~np.isfinite(got)))
        rows.append(row)
    return rows


def bits(ys: list[jax.Array]) -> list[bytes]:
    return [np.asarray(shard.data).tobytes() for y in ys for shard in y.addressable_shards]


def pointers(ys: list[jax.Array]) -> list[int]:
    return [shard.data.unsafe_buffer_pointer() for y in ys for shard in y.addressable_shards]


# ---- what the tests ask for ----------------------------------------------------------------------


def sweep(
    cases: list[dict[str, Any]],
    runs: int = 8,
    mesh: list[int] | None = None,
    names: list[str] | None = None,
    axis: list[str] | None = None,
    delay_s: float = 0.02,
) -> dict[str, Any]:
    """Runs all cases ``runs`` times on two data sets in turns, each time another rank being late.

    Every run has fresh operands and results that start as NaN. The first and the last run are
    measured against float64, the others must repeat their bits.
    """
    at = place(mesh, names, axis)
    every = [Case.parse(case) for case in cases]
    times = [time.monotonic()]
    expected = {seed: [y for case in every for y in exact(case, at, seed)] for seed in (0, 1)}
    times.append(time.monotonic())
    reference = program(every, at, "xla")
    xla = [
        squares(reference(*poison(every, at), *put_all(every, at, seed)), expected[seed])
        for seed in (0, (runs - 1) % 2)
    ]

    times.append(time.monotonic())
    fused = program(every, at, None)
    compiled = fused.lower(*poison(every, at), *put_all(every, at, 0)).compile()
    times.append(time.monotonic())
    launched, errors = native_launches(), []
    seen: dict[int, list[bytes]] = {}
    unequal, unpoisoned, kept = 0, 0, []
    for run in range(runs):
        args, target = put_all(every, at, run % 2), poison(every, at)
        jax.block_until_ready((args, target))
        addresses = set(pointers(target))
        if run % at.world == jax.process_index() % at.world:
            time.sleep(delay_s)
        ys = compiled(*target, *args)
        if run in (0, runs - 1):
            errors.append(squares(ys, expected[run % 2]))
        unpoisoned += sum(address not in addresses for address in pointers(ys))
        found = bits(ys)
        unequal += seen.setdefault(run % 2, found) != found
        kept.append((args, ys) if run % 3 else None)  # other addresses next time
    after = native_launches()
    times.append(time.monotonic())
    phases = ("float64", "xla", "compile", "runs")
    return {
        "seconds": dict(zip(phases, np.diff(times).round(2).tolist(), strict=True)),
        "xla": xla,
        "fused": errors,
        "unequal": unequal,
        "unpoisoned": unpoisoned,
        "hlo": collectives(compiled),
        "launches": {key: after[key] - launched[key] for key in after},
    }


def native_launches() -> dict[str, int]:
    from jax_flux import _native

    return dict(_native.launches())


def repeat(cases: list[dict[str, Any]], runs: int) -> dict[str, Any]:
    """Runs that differ in a bit from the first, compared on the device; launches of all runs.

    Each run ends before the next, so its buffers come again and XLA can replay a graph as it is.
    """
    at = place(None, None, None)
    every = [Case.parse(case) for case in cases]
    fused = program(every, at, None)
    args = put_all(every, at, 0)
    first = fused(*poison(every, at), *args)
    same = jax.jit(
        lambda a, b: jnp.stack([jnp.array_equal(u, v) for u, v in zip(a, b, strict=True)]).all()
    )
    before, unequal = native_launches(), 0
    for _ in range(runs):
        unequal += not bool(same(first, fused(*poison_like(first), *args)))
    after = native_launches()
    return {"unequal": unequal, "launches": {key: after[key] - before[key] for key in after}}


def in_turns(programs: list[list[dict[str, Any]]], order: list[int]) -> dict[str, Any]:
    """Several programs, each compiled once, run in this order on fresh operands."""
    at = place(None, None, None)
    parsed = [[Case.parse(case) for case in cases] for cases in programs]
    fused = [program(cases, at, None) for cases in parsed]
    errors, seen, unequal = [], {}, 0
    for turn, which in enumerate(order):
        cases, seed = parsed[which], turn % 2
        ys = fused[which](*poison(cases, at), *put_all(cases, at, seed))
        found = bits(ys)
        first = seen.setdefault((which, seed), found)
        unequal += first != found
        if first is found:
            expected = [y for case in cases for y in exact(case, at, seed)]
            errors.append(squares(ys, expected))
    return {"unequal": unequal, "errors": errors}


_ready: list[Any] = []


def prepare_program(cases: list[dict[str, Any]]) -> None:
    """Runs the cases once and keeps program and operands, so that `program_now` only calls."""
    at = place(None, None, None)
    every = [Case.parse(case) for case in cases]
    fused, args = program(every, at, None), put_all(every, at, 0)
    target = [poison(every, at), poison(every, at)]
    jax.block_until_ready((fused(*target[0], *args), target[1]))
    _ready[:] = [functools.partial(fused, *target[1], *args)]


def program_now() -> None:
    jax.block_until_ready(_ready[0]())


@jax.jit
def poison_like(ys: list[jax.Array]) -> list[jax.Array]:
    return [jnp.full_like(y, jnp.nan) for y in ys]


def fallback(given: dict[str, Any]) -> dict[str, Any]:
    """A call that no kernel can compute: what ran, why, and how "fused" complains."""
    at = place(None, None, None)
    one = Case.parse(given)
    jax_flux.stats_reset()
    launched = native_launches()
    specs = shapes(one, at)

    def local(*args: jax.Array, implementation: str | None = None) -> list[jax.Array]:
        return call(one, at, list(args), implementation)  # type: ignore[arg-type]

    def run(implementation: str | None) -> Any:
        fn = functools.partial(local, implementation=implementation)
        mapped = jax.shard_map(
            fn, mesh=at.mesh, in_specs=tuple(specs[1]), out_specs=specs[2], check_vma=True
        )
        return jax.jit(mapped)(*put_all([one], at, 0))

    rows = squares(run(None), exact(one, at, 0))
    reasons = list(jax_flux.stats()[one.op]["reasons"])
    try:
        run("fused")
        complaint = ""
    except jax_flux.errors.ImplementationError as error:
        complaint = str(error)
    after = native_launches()
    return {
        "squares": rows,
        "reasons": reasons,
        "complaint": complaint,
        "launches": sum(after.values()) - sum(launched.values()),
    }
