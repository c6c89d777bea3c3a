// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Seam 2 for packed tiles: the rows of several segments make one block of x, and one box of the map
// holds them all: an instruction per segment and k block took longer than the weights.
#ifndef JAX_FLUX_CUDA_KERNELS_GATE_PACKED_CUH_
#define JAX_FLUX_CUDA_KERNELS_GATE_PACKED_CUH_

#include "cuda/kernels/pack.cuh"
#include "cuda/kernels/sync.cuh"
#include "cuda/kernels/tma.cuh"

namespace jax_flux::kernels {

// matmul_rs: x is all here.
struct OpenPackGate {
  __device__ explicit OpenPackGate(const GemmParams&) {}
  __device__ static __forceinline__ void Prefetch(const GemmParams& params) {
    cute::prefetch_tma_descriptor(&params.x);
  }
  __device__ __forceinline__ void EnterTile(const GemmParams&, const protocol::TileCoord&,
                                            const Pack&) {}
  __device__ __forceinline__ void AwaitBlock(const GemmParams&, const protocol::TileCoord&,
                                             const Pack&, std::int32_t) {}

  __device__ __forceinline__ void Load(const GemmParams& params, const protocol::TileCoord& at,
                                       const Pack& pack, std::int32_t k, MBarrier& full,
                                       std::uint8_t* smem) {
    TmaLoad<1>(params.x, full, smem, k, 0, pack.first, at.batch);
  }
};

// ag_matmul: all rows are read from the workspace, own ones too, once all chunks of that depth are
// flagged. Chunk by chunk in k order, so the first loads wait for the first chunks only.
// Runs in a whole warp: a flag per lane, of 4 depth chunks x 8 segments, read one round ahead of
// need. A flag's answer comes back behind all bytes that the SM has in flight, so asking in time is
// what counts: one thread, asking chunk by chunk, made the kernel take twice as long.
struct PackGate {
  static constexpr std::int32_t kAhead = 4;  // depth chunks
  static constexpr std::int32_t kSegments = 8;
  static constexpr std::int32_t kPolls = 16;  // of the warp, before one lane waits with a deadline
  static_assert(kSegments >= protocol::kMaxWorld && kAhead * kSegments == 32, "a flag per lane");

  std::uint64_t epoch;
  std::uint64_t seen = 0;         // this lane's flag, of the chunks from next_k on
  std::int32_t next_k = 0;        // chunks of the tile below this k are here
  std::int32_t known_first = -1;  // pack and batch of which everything is here
  std::int32_t known_batch = -1;

  __device__ explicit PackGate(const GemmParams& params)
      : epoch(protocol::CallEpoch<DeviceMemory>(params.call)) {}
  __device__ static __forceinline__ void Prefetch(const GemmParams& params) {
    cute::prefetch_tma_descriptor(&params.x_slots);
  }

  __device__ __forceinline__ void EnterTile(const GemmParams& params, const protocol::TileCoord& at,
                                            const Pack& pack) {
    const bool known = pack.first == known_first && at.batch == known_batch;
    next_k = known || pack.count == 0 ? params.chunks.depth : 0;
    if (next_k == 0) seen = ReadFlag(params, at, pack, 0);
  }

  __device__ __forceinline__ void AwaitBlock(const GemmParams& params,
                                             const protocol::TileCoord& at, const Pack& pack,
                                             std::int32_t k) {
    if (k < next_k || k >= params.chunks.depth) return;
    const std::int32_t chunk = k / params.chunks.chunk_depth;
    std::int32_t here;
    for (std::int32_t polls = 0;; ++polls) {
      const std::uint32_t missing = ~__ballot_sync(0xffffffff, seen >= epoch);
      here = missing == 0 ? kAhead : (__ffs(missing) - 1) / kSegments;
      if (here > 0) break;
      if (polls >= kPolls && threadIdx.x % 32 == __ffs(missing) - 1) Await(params, at, pack, chunk);
      __syncwarp();
      seen = ReadFlag(params, at, pack, chunk);
    }
    // Acquire of every flag that a lane read; pairs with ShardPush's PublishFlag on the peers,
    // system scope. __syncwarp hands it to the lane that issues the loads, which read the data
    // through the async proxy.
    FenceAcquireSys();
    __syncwarp();
    bulk::FenceGenericToAsync();
    next_k = (chunk + here) * params.chunks.chunk_depth;
    if (next_k < params.chunks.depth) {
      seen = ReadFlag(params, at, pack, chunk + here);
    } else {
      known_first = pack.first;
      known_batch = at.batch;
    }
  }

  // One thread.
  __device__ __forceinline__ void Load(const GemmParams& params, const protocol::TileCoord& at,
                                       const Pack& pack, std::int32_t k, MBarrier& full,
                                       std::uint8_t* smem) {
    TmaLoad<1>(params.x_slots, full, smem, k, 0, at.batch, pack.first,
               static_cast<std::int32_t>(epoch & 1));
  }

 private:
  // This lane's place in the pack, and depth chunk.
  __device__ static __forceinline__ std::int32_t LaneSegment() {
    return static_cast<std::int32_t>(threadIdx.x) % kSegments;
  }
  __device__ static __forceinline__ std::int32_t LaneChunk(std::int32_t chunk) {
    return chunk + static_cast<std::int32_t>(threadIdx.x) % 32 / kSegments;
  }

  // The flag of this lane among the chunks from `chunk` on; the least one, should several chunks
  // share the rows. A lane without a chunk finds it up.
  __device__ __forceinline__ std::uint64_t ReadFlag(const GemmParams& params,
                                                    const protocol::TileCoord& at, const Pack& pack,
                                                    std::int32_t chunk) const {
    std::uint64_t least = ~0ull;
    const std::int32_t depth_chunk = LaneChunk(chunk);
    if (LaneSegment() >= pack.count || depth_chunk >= params.chunks.DepthChunks()) return least;
    const std::int32_t segment = pack.first + LaneSegment();
#pragma unroll 1
    for (std::int32_t rows = 0; rows < params.chunks.RowChunks(); ++rows) {
      const std::int32_t index = params.chunks.FlagIndex(at.batch, rows, depth_chunk);
      const std::uint64_t flag = DeviceMemory::LoadRelaxed(
          params.call.base[params.call.rank] + params.call.layout.AgFlagOffset(segment, index));
      least = flag < least ? flag : least;
    }
    return least;
  }

  // One lane: until its own flag is up.
  __device__ __forceinline__ void Await(const GemmParams& params, const protocol::TileCoord& at,
                                        const Pack& pack, std::int32_t chunk) const {
    const std::int32_t segment = pack.first + LaneSegment();
#pragma unroll 1
    for (std::int32_t rows = 0; rows < params.chunks.RowChunks(); ++rows) {
      const std::int32_t index = params.chunks.FlagIndex(at.batch, rows, LaneChunk(chunk));
      // Acquire, system scope; pairs with ShardPush's PublishFlag on rank `segment`.
      protocol::AwaitFlag<DeviceMemory>(params.call, epoch, protocol::WaitKind::kAgChunk, segment,
                                        index, params.call.layout.AgFlagOffset(segment, index));
    }
  }
};

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_GATE_PACKED_CUH_
