# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

"""THE table of compiled GEMM kernels: one row is one translation unit."""

# One 64-deep stage of 128 x 192 is 40 KiB; with four of them, 2 x 3 slots and two 8 KiB push buffers
# the map fills 225 of 227 KiB; matmul_rs pushes nothing and has eight slots instead, because the
# fetch of partials is bound by latency. 128 x 256 gives a stage up for slots that hold a whole tile.
_PING_PONG = struct(tile = (128, 192), ping_pong = True, stages = 4, slots = 3, push_rows = 16)
_PING_PONG_RS = struct(tile = (128, 192), ping_pong = True, stages = 4, slots = 4, push_rows = 0)
_WIDE = struct(tile = (128, 256), ping_pong = False, stages = 3, slots = 4, push_rows = 16)

# Few rows per rank: packed segments, so that one tile row holds up to 128 rows of all ranks; the
# depth split over two CTAs where there are fewer tiles than SMs.
_SPLIT = struct(tile = (128, 128), ping_pong = False, stages = 5, slots = 3, push_rows = 16)
_SPLIT_WIDE = struct(tile = (128, 192), ping_pong = False, stages = 4, slots = 3, push_rows = 16)

_OPS = {"plain": "kPlain", "ag": "kAgMatmul", "rs": "kMatmulRs"}

_ELEMENTS = {"bf16": "cutlass::bfloat16_t", "f16": "cutlass::half_t"}

def _row(op, layout, shape, cluster, why, dtype = "bf16", traced = False, split = 0):
    """One instance. `split`: packed, with this many CTAs along the depth of a tile."""
    name = "sm90_%s%s_%s_%dx%dx64_%s_c%dx%d_%s%s" % (
        "traced_" if traced else "",
        dtype,
        layout,
        shape.tile[0],
        shape.tile[1],
        "pp" if shape.ping_pong else "co",
        cluster[0],
        cluster[1],
        "s%d_pack_" % split if split else "",
        op,
    )
    config = "%s, %d, %d, %s, %d, %d, %s, %d, %d, %d, %s, %d" % (
        _ELEMENTS[dtype],
        shape.tile[0],
        shape.tile[1],
        "true" if shape.ping_pong else "false",
        cluster[0],
        cluster[1],
        "true" if layout == "nt" else "false",
        shape.stages,
        shape.slots,
        shape.push_rows,
        "true" if split else "false",
        max(1, split),
    )
    return {
        "name": name,
        "config": config,
        "op": _OPS[op],
        "build": "Traced" if traced else "Product",
        "no_spills": not traced,  # reading clocks takes registers, and only shares of time count
        "why": why,
    }

# Tried and dropped: cooperative 256 x 192, never faster than ping-pong 128 x 192 and up to 8 % slower;
# packed 128 x 192 of 2 x 1 with split depth: 1.2 to 2.1 times the fastest in each of 28 calls;
# 128 x 256 with four stages and fewer slots, or in clusters of 1 x 2: within 1 % of three and 2 x 1.
_BF16_INSTANCES = [
    _row("plain", "nn", _PING_PONG, (2, 1), "groups of one, and the baseline"),
    _row("plain", "nt", _PING_PONG, (2, 1), "dx in groups of one"),
    _row("ag", "nn", _PING_PONG, (2, 1), "forward"),
    _row("ag", "nt", _PING_PONG, (2, 1), "dx of matmul_rs"),
    _row("ag", "nn", _PING_PONG, (1, 2), "an odd number of tile rows per rank, one above all"),
    _row("ag", "nt", _PING_PONG, (1, 2), "the same, dx of matmul_rs"),
    _row("ag", "nn", _WIDE, (2, 1), "n = 4096: 192 leaves 3 % of the columns empty"),
    _row("ag", "nt", _WIDE, (2, 1), "the same, dx of matmul_rs: 4 % faster at n = 4096"),
    _row("rs", "nn", _PING_PONG_RS, (2, 1), "forward"),
    _row("rs", "nt", _PING_PONG_RS, (2, 1), "dx of ag_matmul"),
    _row("rs", "nn", _PING_PONG_RS, (1, 2), "an odd number of tile rows per rank, one above all"),
    _row("rs", "nt", _PING_PONG_RS, (1, 2), "the same, dx of ag_matmul"),
    _row("rs", "nn", _WIDE, (2, 1), "n = 4096: 192 leaves 3 % of the columns empty"),
    _row("rs", "nt", _WIDE, (2, 1), "the same, dx of ag_matmul: 1 % faster at n = 4096"),
    _row("ag", "nn", _SPLIT, (1, 1), "few rows per rank, n about 6144", split = 2),
    _row("ag", "nt", _SPLIT, (1, 1), "the same, dx of matmul_rs", split = 2),
    _row("rs", "nn", _SPLIT, (1, 1), "few rows per rank, n about 6144", split = 2),
    _row("rs", "nt", _SPLIT, (1, 1), "the same, dx of ag_matmul", split = 2),
    _row("ag", "nn", _SPLIT_WIDE, (1, 1), "few rows per rank, n about 12288", split = 2),
    _row("ag", "nt", _SPLIT_WIDE, (1, 1), "the same, dx of matmul_rs", split = 2),
    _row("rs", "nn", _SPLIT_WIDE, (1, 1), "few rows per rank, n about 12288", split = 2),
    _row("rs", "nt", _SPLIT_WIDE, (1, 1), "the same, dx of ag_matmul", split = 2),
    _row("ag", "nn", _SPLIT_WIDE, (2, 1), "few rows per rank, 256 and more of all", split = 1),
    _row("rs", "nn", _SPLIT_WIDE, (2, 1), "few rows per rank, 256 and more of all", split = 1),
    _row("ag", "nn", _PING_PONG, (2, 1), "python -m jax_flux trace", traced = True),
    _row("rs", "nn", _PING_PONG_RS, (2, 1), "python -m jax_flux trace", traced = True),
]

# f16 runs at bf16's speed; the wide tile's 3 % at one n is not worth its compile time twice.
_F16_INSTANCES = [
    _row(op, layout, _PING_PONG_RS if op == "rs" else _PING_PONG, cluster, "f16: " + why, "f16")
    for op, cluster, why in [
        ("plain", (2, 1), "groups of one"),
        ("ag", (2, 1), "forward, dx of matmul_rs"),
        ("ag", (1, 2), "an odd number of tile rows per rank, one above all"),
        ("rs", (2, 1), "forward, dx of ag_matmul"),
        ("rs", (1, 2), "an odd number of tile rows per rank, one above all"),
    ]
    for layout in ["nn", "nt"]
]

GEMM_INSTANCES = _BF16_INSTANCES + _F16_INSTANCES

GEMM_UNIT = """#include "cuda/kernels/gemm_entry.cuh"
namespace jax_flux::kernels {
GemmInstance Describe_%{name}() {
  return DescribeGemm<TileConfig<%{config}>, GemmOp::%{op}, %{build}>("%{name}");
}
}  // namespace jax_flux::kernels
"""

GEMM_ENTRY = (
    "GemmInstance Describe_%{name}();\n",
    "      Describe_%{name}(),\n",
)

GEMM_REGISTRY = """#include "cuda/kernels/gemm.h"
namespace jax_flux::kernels {
%{declarations}
const std::vector<GemmInstance>& GemmInstances() {
  static const auto* instances = new std::vector<GemmInstance>{
%{entries}  };
  return *instances;
}
}  // namespace jax_flux::kernels
"""
