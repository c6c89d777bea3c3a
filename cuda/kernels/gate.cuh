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
// Flags are looked at when the loads come to their chunk, several at once: a look takes about as
// long as one stage lasts, and passes while the stages in front are full.
template <class Tile>
struct ChunkGate {
  static constexpr std::int32_t kSweep =
      6;  // flags read at once; the producer has no registers for more

  std::uint64_t epoch;
  std::int32_t next_k = 0;      // chunks of the tile below this k are here
  std::int32_t next_flag = 0;   // of the first one that is not, in the tile's first row chunk
  std::int32_t left = 0;        // chunks along k from that one on
  std::int32_t row_chunks = 0;  // that the tile touches
  std::uint32_t whole = 0;      // bit per segment: every chunk of it is here, and acquired

  __device__ explicit ChunkGate(const GemmParams& params)
      : epoch(protocol::CallEpoch<DeviceMemory>(params.call)) {}

  __device__ __forceinline__ void EnterTile(const GemmParams& params, const protocol::TileCoord& at,
                                            std::int32_t row) {
    if (at.segment == params.call.rank || (whole >> at.segment & 1) != 0) {
      next_k = params.chunks.depth;
      return;
    }
    next_k = 0;
    const std::int32_t base = params.flat_chunks ? at.batch * params.grid.rows : 0;
    // A cluster's last CTA may lie past the last row: it loads zeros and waits with its neighbour.
    const std::int32_t last = params.grid.rows - 1;
    const std::int32_t end = row + Tile::kTileM - 1;
    const std::int32_t first_chunk = (base + (row < last ? row : last)) / params.chunks.chunk_rows;
    row_chunks = (base + (end < last ? end : last)) / params.chunks.chunk_rows - first_chunk + 1;
    next_flag = params.chunks.FlagIndex(params.flat_chunks ? 0 : at.batch, first_chunk, 0);
    left = params.depth_chunks;
  }

  __device__ __forceinline__ void AwaitBlock(const GemmParams& params,
                                             const protocol::TileCoord& at, std::int32_t k) {
    if (k < next_k) return;
    std::int32_t here = ChunksHere(params, at.segment);
    if (here > 0) {
      // Acquire of every flag that was read; pairs with ShardPush's PublishFlag on rank `segment`,
      // or with its copy of the flag, which the copy engine makes after that of the data.
      FenceAcquireSys();
    } else {
      here = 1;
#pragma unroll 1
      for (std::int32_t chunk = 0; chunk < row_chunks; ++chunk) {
        const std::int32_t index = next_flag + chunk * params.depth_chunks;
        // Acquire, system scope; pairs as above.
        protocol::AwaitFlag<DeviceMemory>(params.call, epoch, protocol::WaitKind::kAgChunk,
                                          at.segment, index, params.arrivals.At(at.segment, index));
      }
    }
    // The flags were read through the generic proxy, the data will be through the async proxy.
    bulk::FenceGenericToAsync();
    next_k += here * params.chunks.chunk_depth;
    next_flag += here;
    left -= here;
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
  // Chunks from the next one on whose flags are up for all of the tile's rows: at most kSweep, or
  // all that are left of a segment that is whole. Relaxed reads, all in flight at once, because one
  // acquire after the other would stall the loads: the usual case is that everything is here. The
  // caller fences.
  __device__ __forceinline__ std::int32_t ChunksHere(const GemmParams& params,
                                                     std::int32_t segment) {
    std::int32_t here = left < kSweep ? left : kSweep;
    const std::uint8_t* base = params.call.base[params.call.rank];
    const std::uint8_t* flags = base + params.arrivals.At(segment, next_flag);
    std::uint64_t all = 0;  // copy engines raise no flag for a whole shard
    if (params.parity_mask != 0) {
      all =
          DeviceMemory::LoadRelaxed(base + params.arrivals.At(segment, params.chunks.WholeFlag()));
    }
#pragma unroll 1  // for the registers' sake
    for (std::int32_t chunk = 0; chunk < row_chunks; ++chunk) {
      std::uint64_t seen[kSweep];
#pragma unroll
      for (std::int32_t i = 0; i < kSweep; ++i) {
        // Past the last chunk, the last one again.
        const std::int32_t d = i < left ? i : left - 1;
        seen[i] = DeviceMemory::LoadRelaxed(flags + d * protocol::kFlagBytes);
      }
#pragma unroll
      for (std::int32_t i = kSweep - 1; i >= 0; --i) {
        if (seen[i] < epoch && i < here) here = i;
      }
      flags += params.depth_chunks * protocol::kFlagBytes;
    }
    if (all >= epoch) {
      whole |= 1u << segment;
      here = left;
    }
    return here;
  }
};

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_GATE_CUH_
