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
  __device__ __forceinline__ void AwaitBlock(const GemmParams&, const protocol::TileCoord&,
                                             std::int32_t) {}

  __device__ __forceinline__ void Load(const GemmParams& params, const protocol::TileCoord& at,
                                       std::int32_t row, std::int32_t k, MBarrier& full,
                                       void* smem) {
    TmaLoad<Tile::kClusterN>(params.x, full, smem, k, row, at.segment, at.batch);
  }
};

// ag_matmul: own rows are read in place, a peer's out of our workspace once their chunk is flagged,
// by the pusher of the peer or by its copy engine. Which of them is a matter of addresses only.
template <class Tile>
struct ChunkGate {
  static constexpr std::int32_t kSweep = 8;  // flags read at once

  std::uint64_t epoch;
  std::int32_t next_k = 0;       // chunks of the tile below this k are here
  std::int32_t batch = 0;        // as the chunks count it
  std::int32_t first_chunk = 0;  // row chunks that the tile touches
  std::int32_t last_chunk = 0;

  __device__ explicit ChunkGate(const GemmParams& params)
      : epoch(protocol::CallEpoch<DeviceMemory>(params.call)) {}

  __device__ __forceinline__ void EnterTile(const GemmParams& params, const protocol::TileCoord& at,
                                            std::int32_t row) {
    if (at.segment == params.call.rank) {
      next_k = params.chunks.depth;
      return;
    }
    const std::int32_t base = params.flat_chunks ? at.batch * params.grid.rows : 0;
    batch = params.flat_chunks ? 0 : at.batch;
    // A cluster's last CTA may lie past the last row: it loads zeros and waits with its neighbour.
    const std::int32_t last = params.grid.rows - 1;
    const std::int32_t end = row + Tile::kTileM - 1;
    first_chunk = (base + (row < last ? row : last)) / params.chunks.chunk_rows;
    last_chunk = (base + (end < last ? end : last)) / params.chunks.chunk_rows;
    next_k = ChunksHere(params, at) * params.chunks.chunk_depth;
    if (next_k == 0) return;
    // Acquire of every flag the sweep read; pairs with ShardPush's PublishFlag on rank `segment`,
    // or with its copy of the flag. Then the data, which comes through the async proxy.
    FenceAcquireSys();
    bulk::FenceGenericToAsync();
  }

  __device__ __forceinline__ void AwaitBlock(const GemmParams& params,
                                             const protocol::TileCoord& at, std::int32_t k) {
    if (k < next_k) return;
    const std::int32_t depth_chunk = k / params.chunks.chunk_depth;
    for (std::int32_t chunk = first_chunk; chunk <= last_chunk; ++chunk) {
      const std::int32_t index = params.chunks.FlagIndex(batch, chunk, depth_chunk);
      // Acquire, system scope; pairs with ShardPush's PublishFlag on rank `segment`, or with its
      // copy of the flag, which the copy engine makes after that of the data.
      protocol::AwaitFlag<DeviceMemory>(params.call, epoch, protocol::WaitKind::kAgChunk,
                                        at.segment, index, params.arrivals.At(at.segment, index));
    }
    // The flag was read through the generic proxy, the data will be through the async proxy.
    bulk::FenceGenericToAsync();
    next_k = (depth_chunk + 1) * params.chunks.chunk_depth;
  }

  __device__ __forceinline__ void Load(const GemmParams& params, const protocol::TileCoord& at,
                                       std::int32_t row, std::int32_t k, MBarrier& full,
                                       void* smem) {
    if (at.segment == params.call.rank) {
      TmaLoad<Tile::kClusterN>(params.x, full, smem, k, row, 0, at.batch);
    } else {
      TmaLoad<Tile::kClusterN>(params.x_slots, full, smem, k, row, at.batch, at.segment,
                               static_cast<std::int32_t>(epoch & params.parity_mask));
    }
  }

 private:
  // Leading depth chunks whose flags are up for all of the tile's row chunks. Relaxed reads,
  // several in flight, because one acquire after the other would stall the loads: the usual case is
  // that everything is here.
  __device__ __forceinline__ std::int32_t ChunksHere(const GemmParams& params,
                                                     const protocol::TileCoord& at) const {
    const std::int32_t depth_chunks = params.chunks.DepthChunks();
    std::int32_t here = depth_chunks;
    for (std::int32_t chunk = first_chunk; chunk <= last_chunk; ++chunk) {
      const std::uint8_t* flags =
          params.call.base[params.call.rank] +
          params.arrivals.At(at.segment, params.chunks.FlagIndex(batch, chunk, 0));
      for (std::int32_t first = 0; first < here; first += kSweep) {
        std::uint64_t seen[kSweep];
#pragma unroll
        for (std::int32_t i = 0; i < kSweep; ++i) {
          const std::int32_t d = first + i < depth_chunks ? first + i : depth_chunks - 1;
          seen[i] = DeviceMemory::LoadRelaxed(flags + d * protocol::kFlagBytes);
        }
#pragma unroll
        for (std::int32_t i = kSweep - 1; i >= 0; --i) {
          if (seen[i] < epoch && first + i < here) here = first + i;
        }
      }
    }
    return here;
  }
};

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_GATE_CUH_
