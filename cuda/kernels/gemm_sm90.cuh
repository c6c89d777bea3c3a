// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// One persistent GEMM for Hopper, bf16 or f16 in, f32 sums, the same type out, with four seams:
// Schedule (tickets.cuh), Gate (gate.cuh), Sink (sink.cuh), Pusher (push_tma.cuh). docs/kernels.md
// has the picture. Roles of the three warpgroups of a CTA:
//
//   wg 0, warp 0   producer  takes a ticket, asks Gate for the rows, issues TMA loads
//   wg 0, warp 1   pusher    announces the call, moves the own shard to the peers
//   wg 0, warp 2   mover 0   stores finished boxes of stream 0, fetches partials for it
//   wg 0, warp 3   mover 1   the same for stream 1
//   wg 1           stream 0  wgmma into registers, then into the slots
//   wg 2           stream 1  the same: its own tiles (ping-pong) or the other half of each
//
// Invariant: no CTA waits for a CTA of its own grid outside its cluster, and whatever waits for a
// peer was claimed after everything that does not. So one resident cluster finishes any call.
#ifndef JAX_FLUX_CUDA_KERNELS_GEMM_SM90_CUH_
#define JAX_FLUX_CUDA_KERNELS_GEMM_SM90_CUH_

#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/mma_sm90.hpp>
#include <cute/tensor.hpp>

#include "cuda/kernels/epilogue.cuh"
#include "cuda/kernels/gate.cuh"
#include "cuda/kernels/gemm_packed.cuh"
#include "cuda/kernels/mainloop.cuh"
#include "cuda/kernels/mover.cuh"
#include "cuda/kernels/push_tma.cuh"
#include "cuda/kernels/sink.cuh"
#include "cuda/kernels/tickets.cuh"
#include "cuda/kernels/tile.cuh"
#include "cuda/kernels/tma.cuh"
#include "cuda/kernels/trace.cuh"
#include "cutlass/arch/reg_reconfig.h"

namespace jax_flux::kernels {

// Registers per thread after the hand-out: 128 * (56 + 2 * 224) = 64512, what the launch allots.
inline constexpr int kProducerRegisters = 56;
inline constexpr int kConsumerRegisters = 224;

// k blocks before a tile's end at which the next ticket is taken.
inline constexpr int kClaimAhead = 4;

// Producer role: one thread.
template <class Tile, class Schedule, class Gate, class Trace>
__device__ __forceinline__ void ProduceTiles(const GemmParams& params, SharedMemory<Tile>& smem,
                                             std::int32_t cta_rank, Trace& trace) {
  Schedule schedule;
  Gate gate(params);
  TicketRing<Tile> tickets(smem);
  RingCursor<Tile::kStages> stage;
  const std::int32_t total = params.grid.TotalTiles();
  const std::int32_t claim_block = max(0, params.k_blocks - kClaimAhead);
  std::int32_t next = cta_rank == 0 ? schedule.Claim(params) : 0;
  for (;;) {
    std::int32_t ticket = next < total ? next : kNoTile;
    if (cta_rank == 0) {
      tickets.Publish(ticket);
    } else {
      ticket = tickets.template Read<false>();
    }
    if (ticket == kNoTile) return;
    protocol::TileCoord at = protocol::TileAt(params.grid, Schedule::kOrder, ticket);
    const int weight = TakeWeight(params, at);
    const CUtensorMap& w = weight == 0 ? params.w : params.more[weight - 1].w;
    const std::int32_t row = CtaRow<Tile>(at, cta_rank);
    const std::int32_t column = CtaColumn<Tile>(at, cta_rank);
    const std::int32_t a_part = Tile::ColumnOf(cta_rank) * Tile::kALoadRows;
    const TraceTime tile_begin = trace.Now();
    gate.EnterTile(params, at, row);
    for (std::int32_t block = 0; block < params.k_blocks; ++block) {
      const std::int32_t k = block * kTileK;
      // Shortly before the tile's end: the atomic's latency passes under its last loads, and a
      // cluster that has waited for a peer takes no tile which another one could begin earlier.
      if (cta_rank == 0 && block == claim_block) next = schedule.Claim(params);
      const TraceTime gate_begin = trace.Now();
      gate.AwaitBlock(params, at, k);
      trace.Add(Span::kGate, gate_begin, ticket, kTraceGateNs);
      // Pairs with ReleaseStage of every warpgroup that read the stage, cluster scope.
      smem.empty[stage.Slot()].Wait(stage.EmptyParity(), "free stage");
      // Pairs with the consumers' wait for the stage in MultiplyTile, CTA scope.
      MBarrier& full = smem.full[stage.Slot()];
      full.ArriveExpect(Tile::kABytes + Tile::kBBytes);
      gate.Load(params, at, row + a_part, k, full, smem.a[stage.Slot()] + a_part * kTileK * 2);
      LoadWeights<Tile>(w, full, smem.b[stage.Slot()], column, k, cta_rank);
      stage.Advance();
    }
    trace.Add(Span::kLoad, tile_begin, ticket);
  }
}

// Consumer role: one warpgroup.
template <class Tile, class Schedule, class Sink, class Trace>
__device__ __forceinline__ void ConsumeTiles(const GemmParams& params, SharedMemory<Tile>& smem,
                                             int stream, Trace& trace) {
  typename Tile::Mma mma;
  const auto a = FragmentsA<Tile>(smem, stream);
  const auto b = FragmentsB<Tile>(smem, stream);
  auto acc = Sums<Tile>();

  TicketRing<Tile> tickets(smem);
  SlotWriter<Tile> writer(smem, stream);
  RingCursor<Tile::kStages> stage;
  for (;;) {
    const std::uint32_t sequence = tickets.cursor.Slot();  // modulo kTickets
    const bool mine = !Tile::kPingPong || sequence % 2 == stream;
    const std::int32_t ticket = tickets.template Read<true>();
    if (ticket == kNoTile) return;
    if (!mine) {
      stage.Skip(params.k_blocks);
      continue;
    }
    const TraceTime turn_begin = trace.Now();
    AwaitTurn(smem, sequence, stream);
    trace.Add(Span::kTurn, turn_begin, ticket);
    MultiplyTile<Tile>(smem, mma, a, b, acc, stage, params.k_blocks, stream, ticket, trace);
    FinishTile<Tile, Schedule, Sink>(params, acc, writer, ticket, tickets, trace);
    const TraceTime write_begin = trace.Now();
    writer.Write(acc);
    trace.Add(Span::kWrite, write_begin, ticket);
  }
}

// Mover role: one thread per stream.
template <class Tile, class Schedule, class Sink, class Build>
__device__ __forceinline__ void MoveTiles(const GemmParams& params, SharedMemory<Tile>& smem,
                                          int stream, std::int32_t cta_rank,
                                          typename Build::Trace& trace) {
  TicketRing<Tile> tickets(smem);
  SlotMover<Tile, Sink, Build> mover(smem, params, stream, cta_rank, trace);
  for (;;) {
    const bool mine = !Tile::kPingPong || tickets.cursor.Slot() % 2 == stream;
    const std::int32_t ticket = tickets.template Read<false>();
    if (ticket == kNoTile) return;
    if (mine) {
      mover.HandleTile(protocol::TileAt(params.grid, Schedule::kOrder, ticket), ticket, tickets);
    }
  }
}

// The four warps of warpgroup 0; all lanes come here.
template <class Tile, class Schedule, class Gate, class Sink, class Pusher, class Build>
__device__ __forceinline__ void RunWarps(const GemmParams& params, SharedMemory<Tile>& smem,
                                         Warp warp, std::int32_t cta_rank) {
  // elect.sync, not a lane test: so ptxas knows that one thread issues the TMA instructions and
  // leaves out a loop over lanes around each of them.
  if (!cute::elect_one_sync()) return;
  // A role of TraceRole per warp, in the order of Warp.
  typename Build::Trace trace(params, static_cast<TraceRole>(warp), true);
  if (warp == Warp::kProducer) {
    ProduceTiles<Tile, Schedule, Gate>(params, smem, cta_rank, trace);
  } else if (warp == Warp::kPusher) {
    Pusher::template Run<Build>(params, smem, trace);
  } else {
    MoveTiles<Tile, Schedule, Sink, Build>(params, smem, warp == Warp::kMover0 ? 0 : 1, cta_rank,
                                           trace);
  }
  trace.Finish();
}

// One thread of a cluster, whose CTAs have met. Acquire-release on the done counter with the
// launch's other clusters, GPU scope. The pusher of CTA 0 has awaited the entries.
template <class Tile>
__device__ __forceinline__ void FinishLaunch(const protocol::Call& call) {
  protocol::FinishCta<DeviceMemory>(call, protocol::CallEpoch<DeviceMemory>(call),
                                    gridDim.x / Tile::kCluster, /*awaits=*/false);
}

template <class Tile, class Schedule, class Gate, class Sink, class Pusher, bool kHasCall,
          class Build>
__global__ void __launch_bounds__(kThreads, 1) GemmSm90(const __grid_constant__ GemmParams params) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  auto& smem = *reinterpret_cast<SharedMemory<Tile>*>(shared);
  static_assert(sizeof(SharedMemory<Tile>) <= kMaxSharedBytes, "shared memory of one CTA");
  const std::int32_t cta_rank = Tile::kCluster == 1 ? 0 : static_cast<std::int32_t>(ClusterRank());
  if (threadIdx.x == 0) InitBarriers(smem);
  // Pairs with FenceBarrierInit: nobody in the cluster, TMA included, meets a barrier without
  // state.
  if constexpr (Tile::kCluster == 1) {
    __syncthreads();
  } else {
    ClusterSync();
  }

  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / kWarpgroup, 0);
  if (warpgroup == 0) {
    cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
    const Warp warp = static_cast<Warp>(__shfl_sync(0xffffffff, threadIdx.x / 32, 0));
    if constexpr (Tile::kPacked) {
      RunPackedWarps<Tile, Schedule, Gate, Sink, Pusher, Build>(params, smem, warp, cta_rank);
    } else {
      RunWarps<Tile, Schedule, Gate, Sink, Pusher, Build>(params, smem, warp, cta_rank);
    }
    __syncwarp();  // the other lanes wait for the elected one
  } else {
    cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
    typename Build::Trace trace(params,
                                warpgroup == 1 ? TraceRole::kConsumer0 : TraceRole::kConsumer1,
                                threadIdx.x % kWarpgroup == 0);
    if constexpr (Tile::kPacked) {
      ConsumePacked<Tile, Schedule, Sink>(params, smem, warpgroup - 1, cta_rank, trace);
    } else {
      ConsumeTiles<Tile, Schedule, Sink>(params, smem, warpgroup - 1, trace);
    }
    trace.Finish();
  }

  // No CTA leaves while its neighbour may still multicast into it or arrive at its barriers, and
  // every role is done before the CTA counts as finished.
  if constexpr (Tile::kCluster == 1) {
    __syncthreads();
  } else {
    ClusterSync();
  }
  if constexpr (kHasCall) {
    // The rank is read again: kept, it would take a register of every role.
    if (threadIdx.x == kWarpgroup && (Tile::kCluster == 1 || ClusterRank() == 0)) {
      FinishLaunch<Tile>(params.call);
    }
  }
}

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_GEMM_SM90_CUH_
