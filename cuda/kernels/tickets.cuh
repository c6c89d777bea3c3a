// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Seam 1 on the device: who works on which tile. The leader CTA's producer takes a cluster's next
// ticket while the current tile loads, and hands it to every role of the cluster through a ring in
// shared memory. protocol/schedule.h turns the ticket into a tile.
#ifndef JAX_FLUX_CUDA_KERNELS_TICKETS_CUH_
#define JAX_FLUX_CUDA_KERNELS_TICKETS_CUH_

#include "cuda/kernels/mbarrier.cuh"
#include "cuda/kernels/params.h"
#include "cuda/kernels/sync.cuh"
#include "cuda/kernels/tile.cuh"

namespace jax_flux::kernels {

// protocol::ClaimTicket without its fences. A claim hands over nothing but the number, and the
// launch before this one zeroed the counter; partner: the claims of the other CTAs, GPU scope.
__device__ __forceinline__ std::int32_t TakeTicket(const protocol::Call& call,
                                                   protocol::ControlWord counter) {
  return static_cast<std::int32_t>(DeviceMemory::FetchAddRelaxed(call.Control(counter), 1));
}

// Tickets by counting: for kernels that never wait for a peer, so that any order finishes.
template <int kCluster>
struct StaticSchedule {
  static constexpr protocol::SegmentOrder kOrder = protocol::SegmentOrder::kOwnFirst;
  std::int32_t next = static_cast<std::int32_t>(blockIdx.x) / kCluster;

  __device__ __forceinline__ std::int32_t Claim(const GemmParams&) {
    const std::int32_t ticket = next;
    next += static_cast<std::int32_t>(gridDim.x) / kCluster;
    return ticket;
  }
};

// Tickets from the workspace, in protocol order: a running cluster always holds the earliest
// unclaimed work, so one resident cluster is enough to finish.
template <protocol::SegmentOrder kOrder_>
struct ClaimedSchedule {
  static constexpr protocol::SegmentOrder kOrder = kOrder_;

  __device__ __forceinline__ std::int32_t Claim(const GemmParams& params) {
    return TakeTicket(params.call, protocol::ControlWord::kTileTicket);
  }
};

inline constexpr std::int32_t kNoTile = -1;  // published after the last tile

// Readers of one ticket in one CTA: the eight consumer warps and the two movers, and the producer
// of every CTA but the leader.
template <class Tile>
struct TicketRing {
  static constexpr int kCtaReaders = 8 + kStreams;
  static constexpr int kReaders = Tile::kCluster * kCtaReaders + (Tile::kCluster - 1);

  SharedMemory<Tile>& smem;
  RingCursor<kTickets> cursor;

  __device__ explicit TicketRing(SharedMemory<Tile>& shared) : smem(shared) {}

  // Leader's producer thread.
  __device__ __forceinline__ void Publish(std::int32_t ticket) {
    // Pairs with the readers' ArriveAt(0), which frees the slot in every CTA.
    smem.ticket_empty[cursor.Slot()].Wait(cursor.EmptyParity(), "ticket slot");
    MBarrier& full = smem.ticket_full[cursor.Slot()];
    const auto word = static_cast<std::uint32_t>(ticket);
    // Pairs with Wait in Read: CTA scope, or for the cluster's CTAs by st.async (async proxy).
    if constexpr (Tile::kCluster == 1) {
      smem.ticket[cursor.Slot()] = word;
      full.Arrive();
    } else {
#pragma unroll
      for (std::uint32_t rank = 0; rank < Tile::kCluster; ++rank) {
        full.SendAt(rank, &smem.ticket[cursor.Slot()], word);
      }
    }
    cursor.Advance();
  }

  // Whether the tile after the one just read is none: that one is the CTA's last. Waits until the
  // leader has taken the next ticket, which it does while that tile loads.
  __device__ __forceinline__ bool AtLast() const {
    // As in Read, which comes here again.
    smem.ticket_full[cursor.Slot()].Wait(cursor.FullParity(), "next ticket");
    return static_cast<std::int32_t>(
               *static_cast<volatile std::uint32_t*>(&smem.ticket[cursor.Slot()])) == kNoTile;
  }

  // Every other role: one thread, or the 32 lanes of a consumer warp together.
  template <bool kWholeWarp>
  __device__ __forceinline__ std::int32_t Read() {
    // Pairs with the leader's Arrive or SendAt, whose word completes on this barrier.
    smem.ticket_full[cursor.Slot()].Wait(cursor.FullParity(), "ticket");
    const std::int32_t ticket = static_cast<std::int32_t>(
        *static_cast<volatile std::uint32_t*>(&smem.ticket[cursor.Slot()]));
    // Every lane has read the word. The full mask: an active mask would leave out a lane that is
    // still in the wait, whose slot the leader could then refill.
    if constexpr (kWholeWarp) __syncwarp();
    // Pairs with Wait in Publish, cluster scope; hands over no data.
    if (!kWholeWarp || threadIdx.x % 32 == 0) {
      MBarrier& empty = smem.ticket_empty[cursor.Slot()];
      if constexpr (Tile::kCluster == 1) {
        empty.Arrive();
      } else {
        empty.ArriveAt(0);
      }
    }
    cursor.Advance();
    return ticket;
  }
};

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_TICKETS_CUH_
