// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Packed tiles: which segments lie where in a CTA's tile. Segment s of the tile begins at row
// s * height, a power of two from 8 on, so that it starts on a swizzle atom and never straddles a
// 64-row block unless it fills it. Rows that nobody loads hold garbage; a row of x only reaches its
// own row of the result, and those rows are never stored.
#ifndef JAX_FLUX_CUDA_KERNELS_PACK_CUH_
#define JAX_FLUX_CUDA_KERNELS_PACK_CUH_

#include "cuda/kernels/params.h"
#include "cuda/kernels/tile.cuh"

namespace jax_flux::kernels {

// What one CTA's tile holds.
struct Pack {
  std::int32_t first;   // its first segment; the others follow in the order of ranks
  std::int32_t count;   // segments that exist
  std::int32_t height;  // rows from one segment to the next

  // Rows of a box: a segment's, or as much of it as a 64-row block holds.
  __device__ __forceinline__ std::int32_t BoxHeight() const {
    return height < kBoxRows ? height : kBoxRows;
  }
  // Place of the own segment; not in [0, count) if it is elsewhere.
  __device__ __forceinline__ std::int32_t Own(const GemmParams& params) const {
    return params.call.rank - first;
  }
};

template <class Tile>
__device__ __forceinline__ Pack PackOf(const GemmParams& params, const protocol::TileCoord& at,
                                       std::int32_t cta_rank) {
  const std::int32_t height = params.grid.tile_rows;
  const std::int32_t capacity = Tile::kTileM / height;
  const std::int32_t first = at.segment + Tile::RowOf(cta_rank) * capacity;
  return {first, protocol::PackedSegments(params.grid, first, capacity), height};
}

// Segments [begin, end) of the pack that have rows in some rows of the tile.
struct PackSpan {
  std::int32_t begin;
  std::int32_t end;

  __device__ __forceinline__ bool Empty() const { return begin >= end; }
  __device__ __forceinline__ bool Has(std::int32_t segment) const {
    return segment >= begin && segment < end;
  }
  __device__ __forceinline__ bool HasOther(std::int32_t segment) const {
    return end - begin > (Has(segment) ? 1 : 0);
  }
};

__device__ __forceinline__ PackSpan SpanOfRows(const Pack& pack, std::int32_t row,
                                               std::int32_t rows) {
  const std::int32_t begin = row / pack.height;
  const std::int32_t end = (row + rows - 1) / pack.height + 1;
  return {begin, end < pack.count ? end : pack.count};
}
// Those of a stream, and of one of its 64-row blocks.
template <class Tile>
__device__ __forceinline__ PackSpan SpanOfStream(const Pack& pack, int stream) {
  return SpanOfRows(pack, Tile::BlockRow(stream, 0), Tile::kRowBlocks * kBoxRows);
}
template <class Tile>
__device__ __forceinline__ PackSpan SpanOfBlock(const Pack& pack, int stream, int block) {
  return SpanOfRows(pack, Tile::BlockRow(stream, block), kBoxRows);
}

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_PACK_CUH_
