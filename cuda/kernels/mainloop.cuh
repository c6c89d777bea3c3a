// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The ring of stages on its consumers' side: k blocks of x and w in, f32 sums out. Used by the
// roles of gemm_sm90.cuh and gemm_packed.cuh.
#ifndef JAX_FLUX_CUDA_KERNELS_MAINLOOP_CUH_
#define JAX_FLUX_CUDA_KERNELS_MAINLOOP_CUH_

#include <cute/arch/mma_sm90.hpp>
#include <cute/tensor.hpp>

#include "cuda/kernels/tickets.cuh"
#include "cuda/kernels/tile.cuh"
#include "cuda/kernels/tma.cuh"
#include "cuda/kernels/trace.cuh"

namespace jax_flux::kernels {

template <class Tile>
__device__ __forceinline__ void InitBarriers(SharedMemory<Tile>& smem) {
  for (int stage = 0; stage < Tile::kStages; ++stage) {
    // Each producer's ArriveExpect; TMA bytes do the rest.
    smem.full[stage].Init(Tile::kSplit == 1 ? 1 : 2);
    // Every warpgroup that reads the stage, in every CTA that this one multicasts to.
    smem.empty[stage].Init(Tile::kMmaWarpgroups * Tile::kShare);
  }
  for (int stream = 0; stream < kStreams; ++stream) {
    for (int slot = 0; slot < Tile::kSlots; ++slot) {
      smem.slot_full[stream][slot].Init(1);
      smem.slot_empty[stream][slot].Init(Tile::kSlotReaders);
    }
  }
  for (int ticket = 0; ticket < kTickets; ++ticket) {
    smem.ticket_full[ticket].Init(1);
    smem.ticket_empty[ticket].Init(TicketRing<Tile>::kReaders);
  }
  smem.push_full[0].Init(1);
  smem.push_full[1].Init(1);
  for (int stream = 0; stream < kStreams; ++stream) {
    smem.turn[stream].Init(1);
    smem.read[stream].Init(Tile::kMmaWarpgroups * kConsumerWarps);
  }
  for (int tail = 0; tail < Tile::kMmaWarpgroups; ++tail) {
    for (int slot = 0; slot < Tile::kTailSlots; ++slot) {
      smem.tail_full[tail][slot].Init(1);
      smem.tail_empty[tail][slot].Init(kConsumerWarps);
    }
  }
  FenceBarrierInit();
}

// Hands a stage back to the producers of the cluster: one thread per receiving CTA. Pairs with
// their wait for a free stage, cluster scope. The warpgroup's wgmma that read it has completed
// (warpgroup_wait); it reads, as TMA writes, through the async proxy, so no proxy fence is needed.
template <class Tile>
__device__ __forceinline__ void ReleaseStage(SharedMemory<Tile>& smem, std::uint32_t slot) {
  const std::uint32_t thread = threadIdx.x % kWarpgroup;
  if constexpr (Tile::kShare == 1) {
    if (thread == 0) smem.empty[slot].Arrive();
  } else if constexpr (Tile::kSplit == 1) {
    if (thread < Tile::kShare) smem.empty[slot].ArriveAt(thread);
  } else {
    const std::uint32_t first = ClusterRank() / Tile::kShare * Tile::kShare;
    if (thread < Tile::kShare) smem.empty[slot].ArriveAt(first + thread);
  }
}

// Ping-pong: waits until the other consumer has seen every stage of tile `sequence` - 1. A consumer
// skips the stages of the other's tile, and a parity tells a stage's use from the next one only to
// who has seen the one before: at 3 or 4 k blocks it would take the other's pending stage for its
// own. Costs nothing, since loads come in tile order. The first tile passes at once.
template <class Tile>
__device__ __forceinline__ void AwaitTurn(SharedMemory<Tile>& smem, std::uint32_t sequence,
                                          int stream) {
  if constexpr (Tile::kPingPong) {
    // Pairs with PassTurn of the other consumer; its k-th arrival is for our k-th tile (stream 0:
    // for the one after).
    smem.turn[stream].Wait((sequence / 2 ^ (stream == 0)) & 1, "turn");
  }
}
// Pairs with AwaitTurn of the other consumer, CTA scope; hands over no data.
template <class Tile>
__device__ __forceinline__ void PassTurn(SharedMemory<Tile>& smem, int stream) {
  if constexpr (Tile::kPingPong) {
    if (threadIdx.x % kWarpgroup == 0) smem.turn[stream ^ 1].Arrive();
  }
}

// acc = A_tile * B_tile over k: one wgmma group per stage, one group in flight.
template <class Tile, class Mma, class FragmentA, class FragmentB, class Accumulator, class Trace>
__device__ __forceinline__ void MultiplyTile(SharedMemory<Tile>& smem, Mma& mma, const FragmentA& a,
                                             const FragmentB& b, Accumulator& acc,
                                             RingCursor<Tile::kStages>& stage,
                                             std::int32_t k_blocks, int stream, std::int32_t ticket,
                                             Trace& trace) {
  using cute::_;
  const TraceTime begin = trace.Now();
  mma.accumulate_ = cute::GMMA::ScaleOut::Zero;
  std::uint32_t previous = stage.Slot();
  for (std::int32_t block = 0; block < k_blocks; ++block) {
    // Pairs with the producers' TMA into this stage; its bytes complete on this barrier.
    const TraceTime wait_begin = trace.Now();
    smem.full[stage.Slot()].Wait(stage.FullParity(), "stage");
    trace.Add(Span::kStarve, wait_begin, ticket, kTraceStarveNs);
    // wgmma.fence: orders this warpgroup's registers only. The stage was written by TMA and is read
    // by wgmma, both in the async proxy.
    cute::warpgroup_fence_operand(acc);
    cute::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < cute::size<2>(a); ++k) {
      cute::gemm(mma, a(_, _, k, stage.Slot()), b(_, _, k, stage.Slot()), acc);
      mma.accumulate_ = cute::GMMA::ScaleOut::One;
    }
    cute::warpgroup_commit_batch();
    cute::warpgroup_wait<1>();  // the group before has read its stage
    cute::warpgroup_fence_operand(acc);
    if (block > 0) ReleaseStage(smem, previous);
    previous = stage.Slot();
    stage.Advance();
  }
  PassTurn(smem, stream);
  cute::warpgroup_wait<0>();  // acc is complete, the last stage has been read
  cute::warpgroup_fence_operand(acc);
  ReleaseStage(smem, previous);
  trace.Add(Span::kMma, begin, ticket);
}

// What a consumer warpgroup multiplies: fragments of the stages. Descriptors depend on the
// warpgroup alone.
template <class Tile>
__device__ __forceinline__ auto MmaSlice(int stream) {
  return typename Tile::Mma{}.get_slice(Tile::kPingPong ? 0 : stream * kWarpgroup);
}
template <class Tile>
__device__ __forceinline__ auto FragmentsA(SharedMemory<Tile>& smem, int stream) {
  const auto slice = MmaSlice<Tile>(stream);
  auto* stages = reinterpret_cast<typename Tile::Element*>(smem.a);
  return slice.make_fragment_A(
      slice.partition_A(cute::make_tensor(cute::make_smem_ptr(stages), typename Tile::LayoutA{})));
}
template <class Tile>
__device__ __forceinline__ auto FragmentsB(SharedMemory<Tile>& smem, int stream) {
  const auto slice = MmaSlice<Tile>(stream);
  auto* stages = reinterpret_cast<typename Tile::Element*>(smem.b);
  return slice.make_fragment_B(
      slice.partition_B(cute::make_tensor(cute::make_smem_ptr(stages), typename Tile::LayoutB{})));
}
// And its f32 sums.
template <class Tile>
__device__ __forceinline__ auto Sums() {
  return cute::partition_fragment_C(
      typename Tile::Mma{}, cute::Shape<cute::Int<Tile::kTileM>, cute::Int<Tile::kTileN>>{});
}

// This CTA's part of w in a stage.
template <class Tile>
__device__ __forceinline__ void LoadWeights(const CUtensorMap& w, MBarrier& full,
                                            std::uint8_t* smem, std::int32_t column, std::int32_t k,
                                            std::int32_t cta_rank) {
  const std::int32_t first = Tile::kSplit == 1 ? 0 : Tile::SplitOf(cta_rank) * Tile::kShare;
  const std::int32_t part = Tile::RowOf(cta_rank) * Tile::kBLoadRows;
  if constexpr (Tile::kTransposeW) {
    TmaLoadFrom<Tile::kClusterM>(first, w, full, smem + part * kTileK * 2, k, column + part);
  } else {
    // A box of 64 columns is kTileK rows of 128 bytes; this CTA loads rows from `part` on.
#pragma unroll
    for (int box = 0; box < Tile::kColumnBoxes; ++box) {
      TmaLoadFrom<Tile::kClusterM>(first, w, full, smem + box * kBoxBytes + part * 128,
                                   column + box * kBoxColumns, k + part);
    }
  }
}

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_MAINLOOP_CUH_
