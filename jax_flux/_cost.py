# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a call costs fused and by XLA, in ns: the planner's only ground for choosing between them.

A model of four terms, and pure: all ranks come to the same number. XLA's terms are fitted to two
H200 joined by NVLink 4; the kernels' to preset mode on one H200 (no link), with the wire added as
if all of it hid behind the tiles: no figure of the kernels on two GPUs exists yet.

  XLA    t_gemm + t_collective                        one after the other
  fused  max(t_tiles, t_wire + one wave) + t_start    t_wire is hidden behind the tiles

``t_tiles`` counts waves of whole cluster tiles, padded rows included, so few rows per rank cost
what they cost. Route: _plan.py -> here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax_flux._plan import Instance, Problem

NUM_SMS = 132
LINK_BYTES_PER_S = 350e9  # stores to peers, both directions at once
COLLECTIVE_NS = 40e3  # of an NCCL collective beside its bytes: launch, protocol, kernel switch
COLLECTIVE_SHARE = 0.93  # of the link that NCCL's bandwidth reaches
COPY_BYTES_PER_S = 3e12  # read + write, an XLA copy
GEMM_FLOPS = 720e12  # cuBLAS, bf16, random data
GEMM_NS = 4e3  # of a launch beside its flops
FUSED_NS = 8e3  # entry, first chunk, last flag
FUSED_PEER_NS = 3e3  # of each peer beyond the first: its entry, its flags
FUSED_PEER_SHARE = 0.005  # the same, of the tiles' time: traffic of its slots

# Sustained FLOP/s of the fused kernels by CTA tile, preset mode (benchmarks/native/preset.py).
# Its cuBLAS ran at 620-690e12 in the same minutes, so beside GEMM_FLOPS this errs on XLA's side.
TILE_FLOPS = {(128, 192): 690e12, (128, 256): 680e12}
TILE_FLOPS_UNKNOWN = 350e12

MIN_ROWS = 64  # per rank; below, a tile of 128 rows is mostly padding


def wire_bytes(p: Problem) -> int:
    """Bytes that a rank sends: its shard to each peer, or each peer's partial to it."""
    itemsize = 4 if "32" in p.dtype else 2
    width = p.k[0] if p.op == "ag_matmul" else p.n[0]
    return p.batch * p.m * (p.world - 1) * width * itemsize


def collective_ns(p: Problem) -> float:
    """XLA's all-gather or reduce-scatter of the call, nothing of it hidden."""
    if p.world == 1:
        return 0.0
    return COLLECTIVE_NS + 1e9 * wire_bytes(p) / (COLLECTIVE_SHARE * LINK_BYTES_PER_S)


def xla_ns(p: Problem) -> float:
    """The dots in full, then the collective (or before)."""
    flops = 2.0 * p.batch * p.m * p.world * sum(p.n) * sum(p.k)
    launches = len(p.n) * len(p.k)
    return 1e9 * flops / GEMM_FLOPS + GEMM_NS * launches + collective_ns(p)


def fused_ns(p: Problem, row: Instance, sm_margin: int) -> float:
    """The fused launches, and what XLA must do beside them."""
    tile_m, tile_n = row.tile
    cluster = row.cluster[0] * row.cluster[1]
    clusters = max(1, (NUM_SMS - sm_margin) // cluster)
    row_tiles = math.ceil(p.m / (tile_m * row.cluster[0])) * p.world * p.batch
    waves = sum(
        math.ceil(row_tiles * math.ceil(n / (tile_n * row.cluster[1])) / clusters) for n in p.n
    )
    sm_flops = TILE_FLOPS.get(row.tile, TILE_FLOPS_UNKNOWN) / NUM_SMS
    wave = 1e9 * 2.0 * tile_m * tile_n * sum(p.k) / sm_flops
    wire = 1e9 * wire_bytes(p) / LINK_BYTES_PER_S
    more_peers = max(0, p.world - 2)
    tiles = waves * wave * (1 + FUSED_PEER_SHARE * more_peers)
    total = max(tiles, wire + wave if wire else 0.0)
    total += FUSED_NS * len(p.n) + FUSED_PEER_NS * more_peers
    if len(p.k) > 1:
        # Operand pairs are concatenated along k first (_lowering.py).
        elements = (p.batch * p.m * p.world + p.n[0]) * sum(p.k)
        total += GEMM_NS + 1e9 * 2 * 2 * elements / COPY_BYTES_PER_S
    if p.return_gathered:
        total += collective_ns(p)
    return total
