# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Programs of a few random calls each: run with a late rank, judged once, compared ever after.

Operands are slices of one pool of normal values per rank, at an offset that is an argument, so one
compilation serves any data. Results start as NaN (donated), so that nothing stale can look right.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_flux
from jax_flux.tools import random_calls
from jax_flux.tools.group import gather
from jax_flux.tools.random_calls import Call, Take

SLACK = 1.1  # error against f32, as a multiple of XLA's in the same dtype
CLOSE = 2.0**-6  # of the largest value: where XLA's own order of adding is not promised
COMMON = 1 << 13  # values that all ranks share
Arrays = tuple[jax.Array, ...]


@dataclasses.dataclass(frozen=True)
class Layout:
    """A mesh, and the axis (or axes) of it that the calls run over."""

    sizes: tuple[int, ...]
    names: tuple[str, ...]
    axis: tuple[str, ...]

    @property
    def world(self) -> int:
        """W."""
        return math.prod(s for n, s in zip(self.names, self.sizes, strict=True) if n in self.axis)

    def words(self) -> str:
        """Such as "dp 2 x tp 4, axis tp"."""
        mesh = " x ".join(f"{n} {s}" for n, s in zip(self.names, self.sizes, strict=True))
        return f"{mesh}, axis {', '.join(self.axis)}"


def layouts(devices: int) -> list[Layout]:
    """Meshes of ``devices``: one axis, parts of it near and far, and two axes as one."""
    found = [Layout((devices,), ("tp",), ("tp",))]
    if devices >= 4 and devices % 2 == 0:
        half = devices // 2
        found += [
            Layout((2, half), ("dp", "tp"), ("tp",)),
            Layout((half, 2), ("tp", "dp"), ("tp",)),
            Layout((half, 2), ("dp", "tp"), ("tp",)),
            Layout((2, half), ("a", "b"), ("a", "b")),
            Layout((2, half), ("a", "b"), ("b", "a")),
        ]
    return [layout for layout in dict.fromkeys(found) if layout.world <= 8]


class Data:
    """What every program over ``layout`` reads: a pool of each device's own, and one for all."""

    def __init__(self, devices: Any, layout: Layout, values: int) -> None:
        self.layout, self.axes = layout, layout.names
        types = (AxisType.Auto,) * len(layout.names)
        self.mesh = Mesh(np.asarray(devices).reshape(layout.sizes), layout.names, axis_types=types)
        self.sharding = NamedSharding(self.mesh, P(self.axes))

        def fill() -> Arrays:
            key = jax.random.key(0)
            own = jax.random.fold_in(key, 1 + lax.axis_index(self.axes))
            return (
                jax.random.normal(own, (1, values), jnp.float32),
                jax.random.normal(key, (COMMON,), jnp.float32),
            )

        specs = (P(self.axes), P())
        made = jax.shard_map(fill, mesh=self.mesh, in_specs=(), out_specs=specs, check_vma=False)
        self.pool, self.common = jax.jit(made)()
        self.compare = {exact: self._comparison(exact) for exact in (True, False)}
        self.spins = functools.cache(self._spins)

    def _spins(self, late: int, amount: int) -> jax.Array:
        """How long each device dawdles: one of them ``amount``, the others not at all."""
        count = self.mesh.size
        values = np.where(np.arange(count) == late, amount, 0).astype(np.int32)
        return self.put((count,), lambda index: values[index])

    def put(self, shape: tuple[int, ...], make: Callable[[Any], np.ndarray]) -> jax.Array:
        """A global array whose shards ``make`` gives by their index."""
        return jax.make_array_from_callback(shape, self.sharding, make)

    def nan(self, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """NaN everywhere."""
        own = (1, *shape[1:])
        return self.put(shape, lambda _: np.full(own, np.nan, dtype))

    def _comparison(self, exact: bool) -> Callable[..., Any]:
        """(result, kept) -> how many values differ per device, and NaN in the result's buffer."""

        def local(result: jax.Array, kept: jax.Array) -> Arrays:
            a, b = result.astype(jnp.float32), kept.astype(jnp.float32)
            away = a != b if exact else ~(jnp.abs(a - b) <= CLOSE * jnp.max(jnp.abs(b)))
            return jnp.sum(away, dtype=jnp.int32)[None], jnp.full_like(result, jnp.nan)

        spec = P(self.axes)
        mapped = jax.shard_map(
            local, mesh=self.mesh, in_specs=(spec, spec), out_specs=(spec, spec), check_vma=False
        )
        return jax.jit(mapped, donate_argnums=0)


class Program:
    """``calls`` in one jit over a mesh, behind a rank that may dawdle; building it traces.

    Attributes:
      fused: traced call sites that run as a kernel, those of gradients among them.
      sites: all traced call sites.
    """

    def __init__(self, calls: list[Call], data: Data, check_vma: bool) -> None:
        self.calls, self.data, self.check_vma = calls, data, check_vma
        extra = [random_calls.forced(call, data.mesh.devices.flat[0]) for call in calls]
        mapped = self._mapped(functools.partial(self._local, extra=extra))
        shapes = (data.pool, data.common, np.int32(0), data.spins(0, 0))
        jax_flux.stats_reset()
        with _quiet():
            self.shapes = jax.eval_shape(mapped, *shapes)
        took = jax_flux.stats().values()
        self.fused = sum(counts["fused"] for counts in took)
        self.sites = sum(counts["fused"] + counts["xla"] for counts in took)
        count = len(self.shapes)
        self._run = jax.jit(
            lambda *args: mapped(*args[count:]),
            donate_argnums=tuple(range(count)),
            keep_unused=True,
            out_shardings=[data.sharding] * count,
        )
        self._sums = jax.jit(self._mapped(self._errors, results=count))
        self._poison: Arrays = ()

    def words(self) -> str:
        """Mesh, axis and calls."""
        calls = "; ".join(call.words() for call in self.calls)
        return f"mesh {self.data.layout.words()}, check_vma={self.check_vma}: {calls}"

    def run(self, offset: int, late: int = 0, amount: int = 0) -> Arrays:
        """Enqueues one execution on the data at ``offset``, device ``late`` dawdling."""
        data = self.data
        poison = self._poison or tuple(data.nan(s.shape, s.dtype) for s in self.shapes)
        self._poison = ()
        with _quiet():
            out = self._run(
                *poison, data.pool, data.common, np.int32(offset), data.spins(late, amount)
            )
        return tuple(out)

    def differing(self, results: Arrays, kept: Arrays) -> list[jax.Array]:
        """Enqueues the comparison with ``kept``: values per device that are not as they were.

        Kernels promise the same bits. XLA's collectives and reductions do not: where they took
        part, values count that are further apart than rounding explains. Consumes ``results``.
        """
        counts, poison = [], []
        for result, same, exact in zip(results, kept, self._exact(), strict=True):
            count, buffer = self.data.compare[exact](result, same)
            counts.append(count)
            poison.append(buffer)
        self._poison = tuple(poison)
        return counts

    def judged(self, offset: int, results: Arrays) -> list[dict[str, float]]:
        """Relative errors to f32 on all ranks: of the results, of XLA, and what is allowed."""
        with _quiet():
            sums = self._sums(self.data.pool, self.data.common, np.int32(offset), *results)
        own = np.sum([np.asarray(shard.data)[0] for shard in sums.addressable_shards], axis=0)
        rows = gather(own.astype(np.float32)).sum(axis=0)
        out = []
        for shape, (ours, theirs, norm, broken) in zip(self.shapes, rows, strict=True):
            scale = max(float(norm), 1e-30)
            error, xla = (float(ours) / scale) ** 0.5, (float(theirs) / scale) ** 0.5
            # Two samples of rounding errors differ by chance: four deviations of their ratio.
            chance = 4 / (math.prod(shape.shape) / self.data.layout.world) ** 0.5
            allowed = (SLACK + chance) * xla + 1e-6
            out.append(dict(error=error, xla=xla, allowed=allowed, broken=float(broken)))
        return out

    def _exact(self) -> list[bool]:
        """For each result, whether runs must agree in every bit."""
        flags: list[bool] = []
        for call in self.calls:
            forward = len(call.n) + call.return_gathered
            gradients = 1 + len(call.n) * (2 if call.bias else 1) if call.gradient else 0
            flags += [self.fused == self.sites] * forward + [False] * gradients
        return flags

    def _mapped(self, body: Callable[..., Any], results: int = 0) -> Callable[..., Any]:
        own = P(self.data.axes)
        specs = (own, P(), P(), *(own,) * (results or 1))  # the last is `spins`, or the results
        return jax.shard_map(
            body, mesh=self.data.mesh, in_specs=specs, out_specs=own, check_vma=self.check_vma
        )

    def _local(
        self,
        pool: jax.Array,
        common: jax.Array,
        offset: jax.Array,
        spins: jax.Array,
        extra: list[dict[str, Any]],
    ) -> list[jax.Array]:
        """Results of every call on this device, each with a leading dimension of 1."""
        _, late = lax.optimization_barrier((_dawdle(spins[0], pool[0, :64]), offset))
        results = self._compute(pool, common, late, offset, extra)
        return [self._vary(result)[None] for result in results]

    def _errors(
        self, pool: jax.Array, common: jax.Array, offset: jax.Array, *results: jax.Array
    ) -> jax.Array:
        """[1, results, 4]: squared errors of the results and of XLA, squared norm, not finite."""
        xla = [dict(implementation="xla")] * len(self.calls)
        # As for operands: results are rounded before they are compared.
        theirs = lax.optimization_barrier(self._compute(pool, common, offset, offset, xla))
        with jax.default_matmul_precision("highest"):
            exact = self._compute(pool, common, offset, offset, xla, exact=True)
        rows = []
        for ours, other, true in zip(results, theirs, exact, strict=True):
            a, b, c = (self._vary(y).astype(jnp.float32) for y in (ours[0], other, true))
            broken = jnp.sum(~jnp.isfinite(a), dtype=jnp.float32)
            sums = [jnp.sum((a - c) ** 2), jnp.sum((b - c) ** 2), jnp.sum(c**2), broken]
            rows.append(jnp.stack(sums))
        return jnp.stack(rows)[None]

    def _compute(
        self,
        pool: jax.Array,
        common: jax.Array,
        own_offset: jax.Array,
        offset: jax.Array,
        extra: list[dict[str, Any]],
        exact: bool = False,
    ) -> list[jax.Array]:
        take = _taker(pool[0], common, own_offset, offset)
        axis = self.data.layout.axis
        name = axis[0] if len(axis) == 1 else axis
        out = []
        for call, how in zip(self.calls, extra, strict=True):
            out += random_calls.compute(call, take, name, exact=exact, **how)
        return out

    def _vary(self, y: jax.Array) -> jax.Array:
        missing = tuple(n for n in self.data.axes if n not in jax.typeof(y).mat.varying)
        return lax.pcast(y, missing, to="varying") if missing and self.check_vma else y


def _taker(pool: jax.Array, common: jax.Array, own_offset: jax.Array, offset: jax.Array) -> Take:
    """Gives one operand after the other, each from another place of the pool."""
    taken = 0

    def take(shape: tuple[int, ...], shared: bool) -> jax.Array:
        nonlocal taken
        size = math.prod(shape)
        source, start = (common, offset) if shared else (pool, own_offset)
        start = lax.rem(start + taken, np.int32(source.size - size + 1))
        taken += size + 8
        return lax.dynamic_slice(source, (start,), (size,)).reshape(shape)

    return take


def _dawdle(times: jax.Array, value: jax.Array) -> jax.Array:
    """Keeps a device busy for ``times`` steps that nothing can shorten."""
    return lax.fori_loop(0, times, lambda _, v: jnp.sin(v) + 1, value)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Calls that take XLA are counted instead of warned about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jax_flux.errors.FallbackWarning)
        yield
