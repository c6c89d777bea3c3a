# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a call costs fused and by XLA, in ns, where no tuning record tells.

A model, and pure: all ranks come to the same number.

  XLA    gemm + collective                          one after the other
  fused  max(tiles, wire + one wave) + start        the wire is hidden behind the tiles

Both GEMMs count waves of whole tiles on the device's SMs, padded rows and columns included.

Measured: the kernels' terms are fitted to preset mode on one H200 (no link; 192 rows, median error
1 %, largest 9 %), XLA's to two H200 joined by NVLink 4 (12 rows, median 1 %, largest 5 %; matmuls
of 16 to 256 rows, four of them, -31 to +1 %). tests/cpu/test_cost.py holds them to it. The former
ran on a card at its power limit, where cuBLAS was 4 to 15 % slower than in the latter: beside each
other they err on XLA's side. Behind an emulated link (126 rows) the whole, as a multiple of cuBLAS
in the same run, is off by 4 % in the median and 14 % at most. No figure over real links exists.
Route: _plan.py -> here.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from jax_flux import _cost_packed

if TYPE_CHECKING:
    from jax_flux._problem import Instance, Problem


@dataclasses.dataclass(frozen=True)
class Device:
    """What the model must know of a kind of GPU; ``kind`` as JAX's ``device_kind``.

    ``flops`` is what large 16-bit matmuls sustain, ``read_bytes_per_s`` what a matmul of few rows
    reads its weight at, ``link_bytes_per_s`` what a rank sends while it receives as much.
    """

    kind: str
    num_sms: int
    flops: float
    read_bytes_per_s: float
    link_bytes_per_s: float


# The H100 has the H200's SMs, clocks and links by its data sheet, and 3.35 of its 4.8 TB/s.
DEVICES = {
    device.kind: device
    for device in (
        Device("NVIDIA H200", 132, 720e12, 3.4e12, 350e9),
        Device("NVIDIA H100 80GB HBM3", 132, 720e12, 2.4e12, 350e9),
    )
}
REFERENCE = DEVICES["NVIDIA H200"]
LINK_BYTES_PER_S = REFERENCE.link_bytes_per_s

COLLECTIVE_NS = (16e3, 24e3)  # of an NCCL collective beside its bytes: any, and more of a long one
COLLECTIVE_LONG_BYTES = 4e6
COLLECTIVE_SHARE = 0.93  # of the link that NCCL's bandwidth reaches
COPY_BYTES_PER_S = 3e12  # read + write, an XLA copy
GEMM_NS = 4e3  # of a launch beside its tiles
# cuBLAS: rows, columns, and the share of the device's FLOP/s that a full wave of them reaches.
GEMM_TILES = ((128, 256, 1.0), (256, 128, 1.0), (128, 192, 1.0), (128, 128, 0.8), (64, 256, 0.8))

# The kernels. Per wave, what its MMAs do not hide: least of ping-pong tiles, whose stores run under
# the next tile's MMAs. Per launch, beside the waves; entry, first chunk and last flag over a link;
# per peer.
WAVE_NS, WAVE_NS_UNKNOWN = {(128, 192): 2.2e3, (128, 256): 4.2e3}, 4.2e3
FUSED_NS, LINK_NS = 5.5e3, 3e3
PEER_NS = {"ag_matmul": 0.9e3, "matmul_rs": 2.2e3}
WEIGHTS_PER_LAUNCH = 4  # cuda/kernels/gemm.h, kMoreWeights
# gelu and silu in the kernel, per wave: only ping-pong hides their special-function instructions.
LOGISTIC_NS, LOGISTIC_NS_UNKNOWN = {(128, 192): 0.4e3}, 3e3
# What pushes take from the tiles: of any gather, and more of each peer.
PUSH_SHARE, PUSH_PEER_SHARE = 0.021, 0.004
# Copy engines as carriers of the gather instead. What the GEMM gains when it does not push itself:
# 0.3 % at W = 2, 0.7 % at W = 8 (8192 x 6144 x 12288, preset mode). What they cost: the gate,
# 4.3 us there; fork, join and flag copies, estimated; up to 1 % of the GEMM for a push at the full
# rate of a link. So by these figures they never win. They stay to be measured on real links, where
# a push by the kernel may cost more than in local memory; until then only a clear gain counts.
COPY_SAVES, COPY_SAVES_PEER, COPY_SHARE = 0.0025, 0.0006, 0.01
COPY_NS = 4.3e3 + 10e3
COPY_LEAST_SHARD_BYTES = 64 << 20
COPY_MUST_GAIN = 0.02  # of the call

# Emulated (paced link at 350 GB/s): where the own rows fill less than a wave, tiles begin before
# what they need has arrived. What that costs at most, at any size tried.
START_NS, START_WAVES = 20e3, 0.95

MIN_ROWS = 64  # per rank; below, a tile of 128 rows of one segment is mostly padding


def device(kind: str | None) -> Device | None:
    """Figures of a kind of GPU; the reference device's for None, None for a kind without any."""
    return REFERENCE if kind is None else DEVICES.get(kind)


def wire_bytes(p: Problem) -> int:
    """Bytes that a rank sends: its shard to each peer, or each peer's partial to it."""
    itemsize = 4 if "32" in p.dtype else 2
    width = p.k[0] if p.op == "ag_matmul" else p.n[0]
    return p.batch * p.m * (p.world - 1) * width * itemsize


def collective_ns(p: Problem, on: Device = REFERENCE) -> float:
    """XLA's all-gather or reduce-scatter of the call, nothing of it hidden."""
    if p.world == 1:
        return 0.0
    sent = wire_bytes(p)
    start = COLLECTIVE_NS[0] + COLLECTIVE_NS[1] * min(1.0, sent / COLLECTIVE_LONG_BYTES)
    return start + 1e9 * sent / (COLLECTIVE_SHARE * on.link_bytes_per_s)


def gemm_ns(m: int, n: int, k: int, on: Device = REFERENCE) -> float:
    """cuBLAS: the best of its tiles, or reading the weight, whichever takes longer.

    Less than a wave is spread over all SMs along k.
    """

    def tiles_s(rows: int, columns: int, share: float) -> float:
        waves = math.ceil(m / rows) * math.ceil(n / columns) / on.num_sms
        waves = waves if waves < 1 else math.ceil(waves)
        return waves * 2.0 * rows * columns * k * on.num_sms / (on.flops * share)

    waves = min(tiles_s(*tile) for tile in GEMM_TILES)
    return GEMM_NS + 1e9 * max(waves, 2.0 * n * k / on.read_bytes_per_s)


def xla_ns(p: Problem, on: Device = REFERENCE) -> float:
    """The dots in full, then the collective (or before)."""
    rows = p.batch * p.m * p.world
    return sum(gemm_ns(rows, n, k, on) for n in p.n for k in p.k) + collective_ns(p, on)


def copy_wins(p: Problem, copy_ns: float, tma_ns: float) -> bool:
    """Whether copy engines should carry the gather where nobody has said who does."""
    shard = wire_bytes(p) / max(1, p.world - 1)
    return shard >= COPY_LEAST_SHARD_BYTES and copy_ns < (1 - COPY_MUST_GAIN) * tma_ns


def tiles_ns(
    p: Problem, row: Instance, sm_margin: int, on: Device = REFERENCE, transport: str = "tma"
) -> float:
    """The fused launches with every flag up: waves, and what pushes or copies take from them."""
    if row.packed:
        return _cost_packed.tiles_ns(p, row, sm_margin, on)
    tile_m, tile_n = row.tile
    cluster = row.cluster[0] * row.cluster[1]
    clusters = max(1, (on.num_sms - sm_margin) // cluster)
    row_tiles = math.ceil(p.m / (tile_m * row.cluster[0])) * p.world * p.batch
    columns = [math.ceil(n / (tile_n * row.cluster[1])) for n in p.n]
    launches = [
        sum(columns[first : first + WEIGHTS_PER_LAUNCH])
        for first in range(0, len(columns), WEIGHTS_PER_LAUNCH)
    ]
    waves = sum(math.ceil(row_tiles * tiles / clusters) for tiles in launches)
    peers = p.world - 1
    share = 1.0
    if p.op == "ag_matmul" and peers:
        share += PUSH_SHARE + PUSH_PEER_SHARE * peers
        if transport == "copy":
            share += COPY_SHARE - COPY_SAVES - COPY_SAVES_PEER * peers
    left = WAVE_NS.get(row.tile, WAVE_NS_UNKNOWN)
    if p.activation in ("gelu", "silu"):
        left += LOGISTIC_NS.get(row.tile, LOGISTIC_NS_UNKNOWN)
    total = waves * (share * _wave_ns(p, row, on) + left)
    return total + (FUSED_NS * len(launches) + PEER_NS.get(p.op, 0.0) * peers if peers else 0.0)


def _start_ns(p: Problem, row: Instance, sm_margin: int, wire: float, on: Device) -> float:
    """What a gather waits for its first foreign rows, less what the last wave leaves empty."""
    clusters = max(1, (on.num_sms - sm_margin) // (row.cluster[0] * row.cluster[1]))
    rows = math.ceil(p.m / (row.tile[0] * row.cluster[0])) * p.batch
    own = rows * math.ceil(p.n[0] / (row.tile[1] * row.cluster[1])) / clusters
    if p.op != "ag_matmul" or own >= START_WAVES:
        return 0.0
    empty = (math.ceil(own * p.world) - own * p.world) * _wave_ns(p, row, on)
    return max(0.0, min(wire, START_NS) - empty)


def _wave_ns(p: Problem, row: Instance, on: Device) -> float:
    return 1e9 * 2.0 * row.tile[0] * row.tile[1] * sum(p.k) * on.num_sms / on.flops


def fused_ns(
    p: Problem, row: Instance, sm_margin: int, on: Device = REFERENCE, transport: str = "tma"
) -> float:
    """The fused launches over links, and what XLA must do beside them."""
    total = tiles_ns(p, row, sm_margin, on, transport)
    wire = 1e9 * wire_bytes(p) / on.link_bytes_per_s
    if row.packed:
        total = _cost_packed.fused_ns(p, row, sm_margin, wire, on)
    elif p.world > 1:
        total += _start_ns(p, row, sm_margin, wire, on)
        total = max(total, wire + _wave_ns(p, row, on) + FUSED_NS) + LINK_NS
        total += COPY_NS if transport == "copy" else 0.0
    if len(p.k) > 1:
        # Operand pairs are concatenated along k first (_lowering.py).
        elements = (p.batch * p.m * p.world + p.n[0]) * sum(p.k)
        total += GEMM_NS + 1e9 * 2 * 2 * elements / COPY_BYTES_PER_S
    if p.return_gathered:
        total += collective_ns(p, on)
    return total
