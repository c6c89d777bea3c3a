# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What every rank of `ranks.Ranks` runs: the copy-only all-gather, called through its FFI target.

The raw target, not the primitive, so that a test can set each attribute: chunk size, number of
CTAs, plan hash, call site. All cases work for any split of the ranks over processes.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

TARGET = "jax_flux_all_gather_copy_v1"


def register() -> None:
    """Registers the native library's targets once the CUDA backend is up."""
    from jax_flux import _ffi

    _ffi.register()


def _native() -> Any:
    from jax_flux import _native

    return _native


def _hash(*parts: Any) -> int:
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 or 1


def raw_copy(x: jax.Array, groups: np.ndarray, **attributes: Any) -> jax.Array:
    """x[b, m, k] of this rank -> y[b, W, m, k]."""
    world = groups.shape[1]
    batch, m, k = x.shape
    chunk_bytes = attributes.get("chunk_bytes", 16384)
    defaults = dict(
        groups=groups.reshape(-1).astype(np.int64),
        world=world,
        channel=0,
        plan_hash=_hash(x.shape, x.dtype.name, groups.tolist(), chunk_bytes),
        chunk_bytes=chunk_bytes,
        sm_margin=0,
        ctas=0,
    )
    merged = {**defaults, **attributes}
    merged.setdefault("site", _hash(merged["plan_hash"], "site"))
    encoded = {
        key: value if isinstance(value, np.ndarray) else np.int64(value)
        for key, value in merged.items()
    }
    call = jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct((batch, world, m, k), x.dtype))
    out: jax.Array = call(x, instance="all_gather_copy", **encoded)
    return out


def _mesh(shape: tuple[int, ...] = (), names: tuple[str, ...] = ("tp",)) -> Mesh:
    devices = np.array(jax.devices())
    return Mesh(devices.reshape(shape or (devices.size,)), names)


def _everyone() -> np.ndarray:
    return np.arange(len(jax.devices()), dtype=np.int64)[None]


def _operand(rank: int, run: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Random bits of a rank and run, the same wherever they are computed."""
    rng = np.random.default_rng((run, rank))
    count = int(np.prod(shape)) * dtype.itemsize
    bits = rng.integers(0, 256, count, dtype=np.uint8)
    if dtype == np.dtype(bool):
        bits &= 1
    return bits.view(dtype).reshape(shape)


def _globals(mesh: Mesh, run: int, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """x of all ranks, [W * b, m, k] sharded over every mesh axis."""
    batch = shape[0]
    sharding = NamedSharding(mesh, P(mesh.axis_names))

    def shard(index: tuple[slice, ...]) -> np.ndarray:
        return _operand((index[0].start or 0) // batch, run, shape, dtype)

    world = mesh.devices.size
    return jax.make_array_from_callback((world * batch, *shape[1:]), sharding, shard)


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.uint8)


def _gather(mesh: Mesh, **attributes: Any) -> Any:
    """jit of the copy over all ranks: [W * b, m, k] -> [W * b, W, m, k]."""

    def local(x: jax.Array) -> jax.Array:
        return raw_copy(x, _everyone(), **attributes)

    spec = P(mesh.axis_names)
    return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))


def _wrong(y: jax.Array, run: int, shape: tuple[int, ...], dtype: Any, world: int) -> int:
    """Bytes of this process's shards of y that differ from the gathered operands."""
    expected = np.stack([_operand(r, run, shape, dtype) for r in range(world)], axis=1)
    return sum(
        int(np.count_nonzero(_bits(np.asarray(shard.data)) != _bits(expected)))
        for shard in y.addressable_shards
    )


def _poison(mesh: Mesh, shape: tuple[int, ...], dtype: Any) -> Any:
    """A function that leaves other bytes where the allocator may put the next result of this shape.

    Called between runs it compiles nothing: a new executable would evict the others' graphs.
    """
    world = mesh.devices.size
    size = world * shape[0] * world * int(np.prod(shape[1:])) * dtype.itemsize
    sharding = NamedSharding(mesh, P(mesh.axis_names))
    fill = jax.jit(lambda: jnp.full((size,), 0xA5, jnp.uint8), out_shardings=sharding)

    def poison() -> None:
        jax.block_until_ready([fill() for _ in range(3)])

    poison()
    return poison


def copy_equal(
    shape: list[int], dtype: str, runs: int = 8, seed: int = 0, **attributes: Any
) -> dict[str, int]:
    """Executes one executable with fresh buffers; counts wrong bytes and kernel launches."""
    mesh, size, kind = _mesh(), tuple(shape), jnp.dtype(dtype)
    gather = _gather(mesh, **attributes)
    poison = _poison(mesh, size, kind)
    before = _native().launches()
    wrong, kept = 0, None
    for run in range(runs):
        x = _globals(mesh, seed + run, size, kind)
        poison()
        y = gather(x)
        wrong += _wrong(y, seed + run, size, kind, mesh.devices.size)
        kept = (x, y)  # alive during the next run: its buffers are other ones
    del kept
    after = _native().launches()
    return {"wrong": wrong, **{key: after[key] - before[key] for key in after}}


def growth(small: list[int], large: list[int]) -> int:
    """Small, large, small again with the old executable; then both in turns. Wrong bytes."""
    mesh, kind = _mesh(), jnp.dtype("int32")
    gathers = {size: _gather(mesh) for size in (tuple(small), tuple(large))}
    plan = [tuple(small)] * 6 + [tuple(large)] * 5 + [tuple(small)] * 3
    plan += list(itertools.islice(itertools.cycle([tuple(large), tuple(small)]), 6))
    wrong = 0
    for run, size in enumerate(plan):
        y = gathers[size](_globals(mesh, run, size, kind))
        wrong += _wrong(y, run, size, kind, mesh.devices.size)
    return wrong


def back_to_back(shape: list[int], calls: int, runs: int) -> int:
    """``calls`` dependent calls in one jit, ``runs`` runs without a wait between. Wrong values."""
    mesh, size = _mesh(), tuple(shape)
    world = mesh.devices.size

    def local(x: jax.Array) -> jax.Array:
        rank = jax.lax.axis_index("tp")

        def step(i: jax.Array, x: jax.Array) -> jax.Array:
            y = raw_copy(x, _everyone())
            return y[:, (rank + 1) % world] * 3 + i

        return jax.lax.fori_loop(0, calls, step, x)

    spec = P("tp")
    loop = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    kind = jnp.dtype("int32")
    results = [loop(_globals(mesh, run, size, kind)) for run in range(runs)]
    wrong = 0
    for run, result in enumerate(results):
        ranks = [_operand(r, run, size, kind) for r in range(world)]
        for i in range(calls):
            ranks = [ranks[(r + 1) % world] * np.int32(3) + np.int32(i) for r in range(world)]
        for shard in result.addressable_shards:
            rank = (shard.index[0].start or 0) // size[0]
            wrong += int(np.count_nonzero(np.asarray(shard.data) != ranks[rank]))
    return wrong


def sub_axes(shape: list[int]) -> dict[str, int]:
    """Gathers over each axis of a 2 x (W / 2) mesh, interleaved. Wrong bytes per axis."""
    devices = len(jax.devices())
    mesh, size, kind = _mesh((2, devices // 2), ("a", "b")), tuple(shape), jnp.dtype("uint8")
    ids = np.arange(devices).reshape(2, devices // 2)
    groups = {"a": ids.T.copy(), "b": ids}
    spec = P(("a", "b"))
    gathers = {}
    for axis, members in groups.items():
        local = functools.partial(raw_copy, groups=members)
        gathers[axis] = jax.jit(
            jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
        )
    wrong = dict.fromkeys(groups, 0)
    for run in range(6):
        x = _globals(mesh, run, size, kind)
        for axis, members in groups.items():
            y = gathers[axis](x)
            for shard in y.addressable_shards:
                rank = (shard.index[0].start or 0) // size[0]
                peers = next(row for row in members if rank in row)
                expected = np.stack([_operand(int(p), run, size, kind) for p in peers], axis=1)
                wrong[axis] += int(np.count_nonzero(np.asarray(shard.data) != expected))
    return wrong


def two_channels(shape: list[int]) -> int:
    """Two independent gathers on two channels in one program. Wrong bytes."""
    mesh, size, kind = _mesh(), tuple(shape), jnp.dtype("int32")

    def local(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return raw_copy(x, _everyone(), channel=1), raw_copy(x, _everyone(), channel=2)

    spec = P("tp")
    both = jax.jit(
        jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=(spec, spec), check_vma=False)
    )
    wrong = 0
    for run in range(8):
        for y in both(_globals(mesh, run, size, kind)):
            wrong += _wrong(y, run, size, kind, mesh.devices.size)
    return wrong


def primitive(shape: list[int], dtype: str) -> int:
    """The product's own internal op on [b, m, k]. Wrong bytes."""
    from jax_flux import _primitives

    mesh, size, kind = _mesh(), tuple(shape), jnp.dtype(dtype)
    world, spec = mesh.devices.size, P("tp")

    def local(x: jax.Array) -> jax.Array:
        y = _primitives.all_gather_copy(x, ("tp",), world, 0)
        return y.reshape(size[0], world, *size[1:])

    gather = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec))
    return sum(
        _wrong(gather(_globals(mesh, run, size, kind)), run, size, kind, world) for run in range(8)
    )


# ---- faults ----------------------------------------------------------------------------------


def call(shape: list[int], runs: int = 1, delay_s: float = 0.0, **attributes: Any) -> int:
    """Sleeps, then gathers int32 ``runs`` times. Wrong bytes."""
    time.sleep(delay_s)
    mesh, size, kind = _mesh(), tuple(shape), jnp.dtype("int32")
    gather = _gather(mesh, **attributes)
    wrong = 0
    for run in range(runs):
        y = gather(_globals(mesh, run, size, kind))
        wrong += _wrong(y, run, size, kind, mesh.devices.size)
    return wrong


def call_now(shape: list[int]) -> None:
    """Enqueues a gather of an operand that `prepare_call` has left on the device."""
    jax.block_until_ready(_prepared[tuple(shape)]())


_prepared: dict[tuple[int, ...], Any] = {}


def prepare_call(shape: list[int]) -> None:
    """Compiles and runs a gather and keeps it with its operand, so that `call_now` only calls."""
    mesh, size, kind = _mesh(), tuple(shape), jnp.dtype("int32")
    gather, x = _gather(mesh), _globals(mesh, 0, size, kind)
    jax.block_until_ready(gather(x))
    _prepared[size] = functools.partial(gather, x)


def idle() -> None:
    """A rank that does not come."""


def last_failure() -> str | None:
    """The record as Python sees it."""
    from jax_flux import _ffi

    return _ffi.last_failure()
