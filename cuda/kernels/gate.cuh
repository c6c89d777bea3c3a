// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Seam 2: may this block of the left operand be loaded, and through which map? Runs in the
// producer thread only, so the thread that acquires a flag is the one that issues the load.
#ifndef JAX_FLUX_CUDA_KERNELS_GATE_CUH_
#define JAX_FLUX_CUDA_KERNELS_GATE_CUH_

#include "cuda/kernels/params.h"
#include "cuda/kernels/sync.cuh"
#include "cuda/kernels/tile.cuh"
#include "cuda/kernels/tma.cuh"

namespace jax_flux::kernels {

// plain, matmul_rs: x is all here.
template <class Tile>
struct OpenGate {
  __device__ explicit OpenGate(const GemmParams&) {}
  __device__ __forceinline__ void EnterTile(const GemmParams&, const protocol::TileCoord&,
                                            std::int32_t) {}
  __device__ __forceinline__ void AwaitBlock(const GemmParams&, std::int32_t) {}

  __device__ __forceinline__ void Load(const GemmParams& params, const protocol::TileCoord& at,
                                       std::int32_t row, std::int32_t k, MBarrier& full,
                                       void* smem) {
    TmaLoad<Tile::kClusterN>(params.x, full, smem, k, row, at.segment, at.batch);
  }
};

// ag_matmul: own rows are read in place, a peer's out of our workspace once their chunk is flagged.
template <class Tile>
struct ChunkGate {
  std::uint64_t epoch;
  std::uint32_t seen = 0;  // chunks of `segment` known to be here, while the index fits
  std::int32_t segment = -1;
  std::int32_t batch = 0;
  std::int32_t first_chunk = 0;  // row chunks that the tile touches
  std::int32_t last_chunk = 0;
  std::int32_t next_k = 0;  // first k that has not been awaited

  __device__ explicit ChunkGate(const GemmParams& params)
      : epoch(protocol::CallEpoch<DeviceMemory>(params.call)) {}

  __device__ __forceinline__ void EnterTile(const GemmParams& params, const protocol::TileCoord& at,
                                            std::int32_t row) {
    if (at.segment != segment) seen = 0;
    segment = at.segment;
    batch = at.batch;
    next_k = segment == params.call.rank ? params.chunks.depth : 0;
    // A cluster's last CTA may lie past the last row: it loads zeros and waits with its neighbour.
    const std::int32_t last = params.chunks.rows - 1;
    const std::int32_t end = row + Tile::kTileM - 1;
    first_chunk = (row < last ? row : last) / params.chunks.chunk_rows;
    last_chunk = (end < last ? end : last) / params.chunks.chunk_rows;
  }

  __device__ __forceinline__ void AwaitBlock(const GemmParams& params, std::int32_t k) {
    if (k < next_k) return;
    const std::int32_t depth_chunk = k / params.chunks.chunk_depth;
    bool loaded = false;
    for (std::int32_t chunk = first_chunk; chunk <= last_chunk; ++chunk) {
      const std::int32_t index = params.chunks.FlagIndex(batch, chunk, depth_chunk);
      if (index < 32 && (seen >> index & 1) != 0) continue;
      // Acquire, system scope; pairs with ShardPush's PublishFlag on rank `segment`.
      protocol::AwaitFlag<DeviceMemory>(params.call, epoch, protocol::WaitKind::kAgChunk, segment,
                                        index, params.call.layout.AgFlagOffset(segment, index));
      if (index < 32) seen |= 1u << index;
      loaded = true;
    }
    // The flag was read through the generic proxy, the data will be through the async proxy.
    if (loaded) bulk::FenceGenericToAsync();
    next_k = (depth_chunk + 1) * params.chunks.chunk_depth;
  }

  __device__ __forceinline__ void Load(const GemmParams& params, const protocol::TileCoord& at,
                                       std::int32_t row, std::int32_t k, MBarrier& full,
                                       void* smem) {
    if (at.segment == params.call.rank) {
      TmaLoad<Tile::kClusterN>(params.x, full, smem, k, row, 0, at.batch);
    } else {
      TmaLoad<Tile::kClusterN>(params.x_slots, full, smem, k, row, at.batch, at.segment,
                               static_cast<std::int32_t>(epoch & 1));
    }
  }
};

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_GATE_CUH_
