# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The planner's words: what is asked, what is installed, what was decided. Used by _plan.py."""

from __future__ import annotations

import dataclasses

FUSED_OPS = ("ag_matmul", "matmul_rs")
FUSED_DTYPES = ("bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class Problem:
    """Canonical sizes of one call: per batch, ``m`` rows per rank, ``n`` columns, depth ``k``.

    ``n`` has one entry per weight of ag_matmul (per operand pair of matmul_rs: one entry, and
    ``k`` one per pair). ``biases`` says which weights have one; () where none has.
    """

    op: str
    batch: int
    m: int
    n: tuple[int, ...]
    k: tuple[int, ...]
    world: int
    dtype: str
    out_dtype: str
    transpose_w: bool = False
    return_gathered: bool = False
    biases: tuple[bool, ...] = ()
    activation: str | None = None


@dataclasses.dataclass(frozen=True)
class Instance:
    """One compiled kernel, as the native library lists it.

    ``split`` CTAs share the depth of a tile, beside those of ``cluster``. A ``packed`` kernel's
    tile holds whole segments of several ranks below each other, for few rows per rank.
    """

    name: str
    op: str
    dtype: str
    layout: str
    tile: tuple[int, int]
    cluster: tuple[int, int]
    transports: tuple[str, ...] = ("tma",)
    split: int = 1
    packed: bool = False


@dataclasses.dataclass(frozen=True)
class Installed:
    """What the native library of this installation offers: kernels, or why there are none."""

    instances: tuple[Instance, ...] = ()
    problem: str | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """A fused call: the kernel instance and the integers that its handler receives.

    ``raster_group`` and ``sweep_segments`` (tile rows, and peers' segments, that share a walk over
    the columns), ``chunk_rows`` and ``chunk_depth`` (unit of a push and its flag), ``push_peers``
    (served in turn) and ``push_ctas`` (that push at a time) are 0, and ``depth_outer`` -1, where
    the library chooses by shapes and instance. ``chunk_bytes`` is the copy-only op's.
    ``transport`` is who brings the peers' shards of ag_matmul (`Config`); with "copy" a chunk is a
    piece: rows through all batches, whole k.
    """

    instance: str
    sm_margin: int
    chunk_bytes: int
    expected_ns: int
    raster_group: int = 0
    chunk_rows: int = 0
    chunk_depth: int = 0
    depth_outer: int = -1
    sweep_segments: int = 0
    push_peers: int = 0
    push_ctas: int = 0
    transport: str = "tma"


@dataclasses.dataclass(frozen=True)
class Decision:
    """What a call runs: ``implementation`` ("fused" or "xla"), ``reason``, ``plan``, ``source``.

    ``unsupported`` tells a fallback that the user may want to know about (dtype, shape, library)
    from a choice (asked for, not a GPU, faster): only the former warns, and only on a GPU.
    ``source`` says where plan and choice come from: the cost model, or a file of records.
    """

    implementation: str
    reason: str
    plan: Plan | None = None
    unsupported: bool = False
    source: str = ""
