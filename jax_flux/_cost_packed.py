# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a call of few rows costs in a kernel of packed tiles, in ns. Route: _cost.py -> here.

A tile packs the segments of several ranks, ``height`` rows apart, so that w is read once:

  tiles   the longest of reading w, its way from L2 with x, and the MMAs of whole waves
  fused   tiles, after the first chunk of x, or before the last partial
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax_flux._cost import Device
    from jax_flux._problem import Instance, Problem

LEAST_HEIGHT = 8  # rows: a swizzle atom
MOST_ROWS = 512  # of all ranks: nobody has measured more
# Preset mode on one H200 (no link): share of the device's memory rate, L2 to SMs, and what is not
# hidden per launch and per peer: 56 rows of 16 to 512 rows of x, off by 16 % at most.
READ_SHARE = 1.3
L2_BYTES_PER_S = 9e12
LAUNCH_NS = {"ag_matmul": 18e3, "matmul_rs": 15e3}
PEER_NS = {"ag_matmul": 0.0, "matmul_rs": 0.6e3}
# Estimated, never seen: the first chunk over a link, or the last partial.
LINK_NS = 6e3


def fits(p: Problem, row: Instance) -> bool:
    """Whether whole segments lie in a tile."""
    return p.m <= row.tile[0]


def height(p: Problem) -> int:
    """Rows from one segment to the next in a tile; cuda/kernels/gemm_grid.h, PackHeight."""
    return max(LEAST_HEIGHT, 1 << (p.m - 1).bit_length())


def tiles_ns(p: Problem, row: Instance, sm_margin: int, on: Device) -> float:
    """The launches with every flag up."""
    tile_m, tile_n = row.tile
    share = row.cluster[0]  # CTAs that share a block of w
    clusters = max(1, (on.num_sms - sm_margin) // (share * row.split))
    packs = math.ceil(p.world / (tile_m * share // height(p)))
    x_rows = min(tile_m, p.world * height(p))
    total = 0.0
    for n in p.n:
        tiles = p.batch * packs * math.ceil(n / tile_n)
        depth = sum(p.k) / row.split
        waves = math.ceil(tiles / clusters)
        mma = waves * 2.0 * tile_m * tile_n * depth * on.num_sms / on.flops
        read = 2.0 * p.batch * n * sum(p.k) / (on.read_bytes_per_s * READ_SHARE)
        l2 = 2.0 * tiles * sum(p.k) * (tile_n + share * x_rows) / L2_BYTES_PER_S
        total += 1e9 * max(mma, read, l2) + LAUNCH_NS[p.op]
    return total + PEER_NS[p.op] * (p.world - 1)


def fused_ns(p: Problem, row: Instance, sm_margin: int, wire: float, on: Device) -> float:
    """The launches over links whose bytes take ``wire`` ns."""
    tiles = tiles_ns(p, row, sm_margin, on)
    return max(tiles, wire + LAUNCH_NS[p.op]) + LINK_NS
