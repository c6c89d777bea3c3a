// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Seam 3, the consumers' side: where a finished tile goes. A consumer warpgroup rounds its
// accumulators into the slots of its stream box by box; the stream's mover thread (mover.cuh)
// stores each box by TMA and hands the slot back. So MMA warps never wait for a store beyond their
// slots, and never for a peer to *send*. An own tile of matmul_rs uses the same slots the other way
// round first: the mover fetches the peers' partials box by box, the consumers add them.
#ifndef JAX_FLUX_CUDA_KERNELS_SINK_CUH_
#define JAX_FLUX_CUDA_KERNELS_SINK_CUH_

#include <cute/tensor.hpp>

#include "cuda/kernels/element.cuh"
#include "cuda/kernels/params.h"
#include "cuda/kernels/tickets.cuh"
#include "cuda/kernels/tile.cuh"

namespace jax_flux::kernels {

// First row and column of this CTA inside a cluster tile's segment.
template <class Tile>
__device__ __forceinline__ std::int32_t CtaRow(const protocol::TileCoord& at,
                                               std::int32_t cta_rank) {
  return (at.i * Tile::kClusterM + Tile::RowOf(cta_rank)) * Tile::kTileM;
}
template <class Tile>
__device__ __forceinline__ std::int32_t CtaColumn(const protocol::TileCoord& at,
                                                  std::int32_t cta_rank) {
  return (at.j * Tile::kClusterN + Tile::ColumnOf(cta_rank)) * Tile::kTileN;
}

// Which of the launch's weights a tile belongs to; makes its column one of that weight.
__device__ __forceinline__ int TakeWeight(const GemmParams& params, protocol::TileCoord& at) {
  int weight = 0;
  std::int32_t first = 0;
#pragma unroll
  for (int i = 0; i < kMoreWeights; ++i) {
    if (at.j >= params.more[i].first_tile) {
      weight = i + 1;
      first = params.more[i].first_tile;
    }
  }
  at.j -= first;
  return weight;
}

// plain, ag_matmul: straight to y.
struct StoreSink {
  static constexpr bool kReduces = false;
};
// matmul_rs: a peer's tile to the peer, an own tile to y after W - 1 partials were added.
struct ReduceScatterSink {
  static constexpr bool kReduces = true;
};

// Offset in a slot of this lane's row for a stmatrix or ldmatrix of 16 x 16: matrices 0, 1 are rows
// 0-7, 8-15 of the left 8 columns, 2, 3 of the right. Later columns flip bits 5 and 6, which in the
// 128-byte swizzle belong to the column alone: column group q of 16 is at offset ^ (q << 5).
__device__ __forceinline__ std::uint32_t FragmentOffset() {
  const int lane = threadIdx.x % 32;
  const int row = (threadIdx.x / 32 % 4) * 16 + lane % 16;
  return row * 128 + ((lane / 16 ^ (row & 7)) << 4);
}

// Whether partials past the first kSlots boxes go through the stages, where many more are in
// flight: in a CTA's last tile nobody loads these any more, and nothing hides the fetch. The tile
// has filled every stage, so that the other consumer has read what lay there before.
template <class Tile>
__device__ __forceinline__ bool TakesStages(const GemmParams& params,
                                            const TicketRing<Tile>& tickets) {
  return params.k_blocks >= Tile::kStages && tickets.AtLast();
}
// State of that ring while it is not in use.
inline constexpr std::uint32_t kNotLast = ~0u;

// Consumer side of one stream. All 128 threads of the warpgroup call every member together.
template <class Tile>
struct SlotWriter {
  SharedMemory<Tile>& smem;
  int stream;
  std::uint32_t fragment = FragmentOffset();
  RingCursor<Tile::kSlots> cursor;

  __device__ SlotWriter(SharedMemory<Tile>& shared, int stream_idx)
      : smem(shared), stream(stream_idx) {}

  // The warpgroup's threads meet, CTA scope: one of them may then arrive for all.
  __device__ __forceinline__ void SyncStream() const {
    NamedBarrierSync(static_cast<std::uint32_t>(NamedBarrier::kStream0) + stream, kWarpgroup);
  }

  // Rounds one box of the tile into the next slot; acc is ((2, 2, N / 8), row blocks, 1).
  template <class Accumulator>
  __device__ __forceinline__ void WriteBox(const Accumulator& acc, int block, int column) {
    // The mover has seen the slot's last store read it (wait_group.read) and arrived.
    smem.slot_empty[stream][cursor.Slot()].Wait(cursor.EmptyParity(), "free slot");
    const std::uint32_t slot = SmemAddress(smem.slot[stream][cursor.Slot()]) + fragment;
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
      const int j = column * 8 + quarter * 2;
      const auto pair = [&](int row_half, int group) {
        return Pair<typename Tile::Element>::Pack(
            acc(cute::make_coord(0, row_half, group), block, 0),
            acc(cute::make_coord(1, row_half, group), block, 0));
      };
      const std::uint32_t address = slot ^ (quarter << 5);
      asm volatile(
          "stmatrix.sync.aligned.x4.m8n8.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
          "r"(pair(0, j)), "r"(pair(1, j)), "r"(pair(0, j + 1)), "r"(pair(1, j + 1))
          : "memory");
    }
    FenceSharedToAsync();  // the mover's TMA reads what every thread here wrote
    SyncStream();
    // Pairs with the mover's wait in StoreTile, CTA scope.
    if (threadIdx.x % kWarpgroup == 0) smem.slot_full[stream][cursor.Slot()].Arrive();
    cursor.Advance();
  }

  // Every box of the tile.
  template <class Accumulator>
  __device__ __forceinline__ void Write(const Accumulator& acc) {
#pragma unroll
    for (int block = 0; block < Tile::kRowBlocks; ++block) {
#pragma unroll
      for (int column = 0; column < Tile::kColumnBoxes; ++column) WriteBox(acc, block, column);
    }
  }

  // Adds `partials` tiles, in the order in which the mover fetches them, in f32.
  template <class Accumulator>
  __device__ __forceinline__ void Add(Accumulator& acc, const GemmParams& params,
                                      const TicketRing<Tile>& tickets) {
    const int partials = params.call.world - 1;
    const int last = SharedMemory<Tile>::TailOf(stream);
    RingCursor<Tile::kTailSlots> tail{kNotLast};
#pragma unroll 1
    for (int partial = 0; partial < partials; ++partial) {
#pragma unroll
      for (int box = 0; box < Tile::kBoxes; ++box) {
        const int block = box / Tile::kColumnBoxes, column = box % Tile::kColumnBoxes;
        // The mover asks at the same place.
        if (box == Tile::kSlots % Tile::kBoxes && partial == Tile::kSlots / Tile::kBoxes &&
            TakesStages(params, tickets)) {
          tail.state = 0;
          // This warp's wgmma has read the stages. Stages that both streams read are read when both
          // say so. Pairs with the mover's wait in FetchPartials, CTA scope; hands over no data.
          if (threadIdx.x % 32 == 0) {
            smem.read[stream].Arrive();
            if constexpr (!Tile::kPingPong) smem.read[stream ^ 1].Arrive();
          }
        }
        const bool in_tail = tail.state != kNotLast;
        // Pairs with the TMA load of FetchPartials; its bytes complete on this barrier.
        if (in_tail) {
          smem.tail_full[last][tail.Slot()].Wait(tail.FullParity(), "partial in a stage");
        } else {
          smem.slot_full[stream][cursor.Slot()].Wait(cursor.FullParity(), "partial");
        }
        const std::uint32_t slot = SmemAddress(in_tail ? smem.TailSlots(stream)[tail.Slot()]
                                                       : smem.slot[stream][cursor.Slot()]) +
                                   fragment;
#pragma unroll
        for (int quarter = 0; quarter < 4; ++quarter) {
          std::uint32_t word[4];
          asm volatile("ldmatrix.sync.aligned.x4.m8n8.shared.b16 {%0, %1, %2, %3}, [%4];"
                       : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                       : "r"(slot ^ (quarter << 5))
                       : "memory");
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int j = column * 8 + quarter * 2 + i / 2;
            using Of = Pair<typename Tile::Element>;
            acc(cute::make_coord(0, i % 2, j), block, 0) += Of::Low(word[i]);
            acc(cute::make_coord(1, i % 2, j), block, 0) += Of::High(word[i]);
          }
        }
        FenceSharedToAsync();  // our reads before the TMA write that fills the slot next
        __syncwarp();
        // Each warp by itself. Pairs with the mover's wait in FetchBoxes or our own in Write, CTA
        // scope.
        if (in_tail) {
          if (threadIdx.x % 32 == 0) smem.tail_empty[last][tail.Slot()].Arrive();
          tail.Advance();
        } else {
          if (threadIdx.x % 32 == 0) smem.slot_empty[stream][cursor.Slot()].Arrive();
          cursor.Advance();
        }
      }
    }
  }
};

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_SINK_CUH_
