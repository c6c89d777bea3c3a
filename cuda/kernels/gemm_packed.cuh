// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Roles of the GEMM kernel for packed tiles (pack.cuh): what gemm_sm90.cuh has for tiles of one
// segment. Few rows make a kernel that reads weights, so loads of w must never wait for a peer or
// for a flag's answer, which comes back behind all the bytes in flight (microseconds). Hence:
//
//   warp 0  x producer     a whole warp: its lanes read many flags at once and ahead of need
//   warp 1  pusher
//   warp 2  mover          split: the one stream that this CTA finishes; else stream 0
//   warp 3  w producer     split: w streams ahead while x waits; else mover of stream 1
//
// Without a split warp 0 loads both operands.
#ifndef JAX_FLUX_CUDA_KERNELS_GEMM_PACKED_CUH_
#define JAX_FLUX_CUDA_KERNELS_GEMM_PACKED_CUH_

#include <cute/arch/cluster_sm90.hpp>

#include "cuda/kernels/gate_packed.cuh"
#include "cuda/kernels/mainloop.cuh"
#include "cuda/kernels/mover_packed.cuh"
#include "cuda/kernels/sink_packed.cuh"
#include "cuda/kernels/split.cuh"

namespace jax_flux::kernels {

// k blocks of one CTA; one past the last is loaded as zeros.
template <class Tile>
__device__ __forceinline__ std::int32_t PackedBlocks(const GemmParams& params) {
  return (params.k_blocks + Tile::kSplit - 1) / Tile::kSplit;
}
template <class Tile>
__device__ __forceinline__ std::int32_t PackedDepth(std::int32_t block, std::int32_t cta_rank) {
  return (block * Tile::kSplit + Tile::SplitOf(cta_rank)) * kTileK;
}

// x producer role: one warp; claims and publishes tickets in the leader CTA.
template <class Tile, class Schedule, class Gate, class Trace>
__device__ __forceinline__ void ProducePacked(const GemmParams& params, SharedMemory<Tile>& smem,
                                              std::int32_t cta_rank, Trace& trace) {
  constexpr bool kLoadsW = Tile::kSplit == 1;
  Schedule schedule;
  Gate gate(params);
  TicketRing<Tile> tickets(smem);
  RingCursor<Tile::kStages> stage;
  const std::int32_t total = params.grid.TotalTiles();
  const std::int32_t blocks = PackedBlocks<Tile>(params);
  const std::int32_t box_bytes =
      min(Tile::kTileM / params.grid.tile_rows, params.grid.world) * params.grid.tile_rows * 128;
  const bool claims = cta_rank == 0 && threadIdx.x % 32 == 0;
  std::int32_t next = claims ? schedule.Claim(params) : 0;
  if (cute::elect_one_sync()) {
    if constexpr (kLoadsW) cute::prefetch_tma_descriptor(&params.w);
    Gate::Prefetch(params);
  }
  for (;;) {
    std::int32_t ticket;
    if (cta_rank == 0) {
      ticket = __shfl_sync(0xffffffff, next < total ? next : kNoTile, 0);
      if (claims) tickets.Publish(ticket);
      __syncwarp();
    } else {
      ticket = tickets.template Read<true>();
    }
    if (ticket == kNoTile) return;
    // One tile ahead: the atomic's latency passes under this tile's loads.
    if (claims) next = schedule.Claim(params);

    const protocol::TileCoord at = protocol::PackedTileAt(params.grid, Schedule::kOrder, ticket);
    const Pack pack = PackOf<Tile>(params, at, cta_rank);
    // TMA delivers whole boxes, what lies past a segment's end or the last segment as zeros; rows
    // below the box stay as they are.
    const std::int32_t bytes = box_bytes + (kLoadsW ? Tile::kBBytes : 0);
    const TraceTime begin = trace.Now();
    gate.EnterTile(params, at, pack);
    for (std::int32_t block = 0; block < blocks; ++block) {
      const std::int32_t k = PackedDepth<Tile>(block, cta_rank);
      const TraceTime gate_begin = trace.Now();
      gate.AwaitBlock(params, at, pack, k);
      trace.Add(Span::kGate, gate_begin, ticket, kTraceGateNs);
      // Pairs with ReleaseStage of every warpgroup that read the stage, cluster scope.
      smem.empty[stage.Slot()].Wait(stage.EmptyParity(), "free stage");
      if (cute::elect_one_sync()) {
        // Pairs with the consumers' wait for the stage in MultiplyTile, CTA scope.
        MBarrier& full = smem.full[stage.Slot()];
        full.ArriveExpect(bytes);
        gate.Load(params, at, pack, k, full, smem.a[stage.Slot()]);
        if constexpr (kLoadsW) {
          LoadWeights<Tile>(params.w, full, smem.b[stage.Slot()], CtaColumn<Tile>(at, cta_rank), k,
                            cta_rank);
        }
      }
      __syncwarp();
      stage.Advance();
    }
    trace.Add(Span::kLoad, begin, ticket);
  }
}

// w producer role: one thread.
template <class Tile, class Schedule, class Trace>
__device__ __forceinline__ void ProduceWeights(const GemmParams& params, SharedMemory<Tile>& smem,
                                               std::int32_t cta_rank, Trace& trace) {
  TicketRing<Tile> tickets(smem);
  RingCursor<Tile::kStages> stage;
  const std::int32_t blocks = PackedBlocks<Tile>(params);
  cute::prefetch_tma_descriptor(&params.w);
  for (;;) {
    const std::int32_t ticket = tickets.template Read<false>();
    if (ticket == kNoTile) return;
    const protocol::TileCoord at = protocol::PackedTileAt(params.grid, Schedule::kOrder, ticket);
    const std::int32_t column = CtaColumn<Tile>(at, cta_rank);
    const TraceTime begin = trace.Now();
    for (std::int32_t block = 0; block < blocks; ++block) {
      // As in ProducePacked.
      smem.empty[stage.Slot()].Wait(stage.EmptyParity(), "free stage for w");
      MBarrier& full = smem.full[stage.Slot()];
      full.ArriveExpect(Tile::kBBytes);
      LoadWeights<Tile>(params.w, full, smem.b[stage.Slot()], column,
                        PackedDepth<Tile>(block, cta_rank), cta_rank);
      stage.Advance();
    }
    trace.Add(Span::kLoad, begin, ticket);
  }
}

// Hands on the stages of a tile of which this stream has no rows, in step with the others.
template <class Tile>
__device__ __forceinline__ void PassTile(SharedMemory<Tile>& smem, RingCursor<Tile::kStages>& stage,
                                         std::int32_t k_blocks, int stream) {
  for (std::int32_t block = 0; block < k_blocks; ++block) {
    // As in MultiplyTile: an arrival for a stage's next use must not come before this use is full.
    smem.full[stage.Slot()].Wait(stage.FullParity(), "stage to pass");
    ReleaseStage(smem, stage.Slot());
    stage.Advance();
  }
  PassTurn(smem, stream);
}

// Consumer role: one warpgroup.
template <class Tile, class Schedule, class Sink, class Trace>
__device__ __forceinline__ void ConsumePacked(const GemmParams& params, SharedMemory<Tile>& smem,
                                              int stream, std::int32_t cta_rank, Trace& trace) {
  typename Tile::Mma mma;
  const auto a = FragmentsA<Tile>(smem, stream);
  const auto b = FragmentsB<Tile>(smem, stream);
  auto acc = Sums<Tile>();
  TicketRing<Tile> tickets(smem);
  PackedWriter<Tile> writer(smem, stream);
  SumExchange<Tile> exchange(smem, stream, cta_rank);
  RingCursor<Tile::kStages> stage;
  const std::int32_t blocks = PackedBlocks<Tile>(params);
  const auto tile_of = [&](std::int32_t ticket) {
    return protocol::PackedTileAt(params.grid, Schedule::kOrder, ticket);
  };
  for (;;) {
    const std::uint32_t sequence = tickets.cursor.Slot();  // modulo kTickets
    const bool mine = !Tile::kPingPong || sequence % 2 == stream;
    const std::int32_t ticket = tickets.template Read<true>();
    if (ticket == kNoTile) return;
    if (!mine) {
      stage.Skip(blocks);
      continue;
    }
    AwaitTurn(smem, sequence, stream);
    if (SpanOfStream<Tile>(PackOf<Tile>(params, tile_of(ticket), cta_rank), stream).Empty()) {
      PassTile(smem, stage, blocks, stream);
      continue;
    }
    MultiplyTile<Tile>(smem, mma, a, b, acc, stage, blocks, stream, ticket, trace);
    const TraceTime begin = trace.Now();
    if constexpr (Tile::kSplit == 2) {
      if (Tile::SplitOf(cta_rank) != stream) {
        exchange.Send(acc);
        trace.Add(Span::kWrite, begin, ticket);
        continue;
      }
      exchange.Receive(acc);
    }
    writer.template Finish<Sink>(acc, params, Forget(ticket), cta_rank, tile_of);
    trace.Add(Span::kWrite, begin, ticket);
  }
}

// Mover role: one thread.
template <class Tile, class Schedule, class Sink, class Build>
__device__ __forceinline__ void MovePacked(const GemmParams& params, SharedMemory<Tile>& smem,
                                           int stream, std::int32_t cta_rank,
                                           typename Build::Trace& trace) {
  TicketRing<Tile> tickets(smem);
  PackedMover<Tile, Sink, Build> mover(smem, params, stream, cta_rank, trace);
  for (;;) {
    const bool mine = !Tile::kPingPong || tickets.cursor.Slot() % 2 == stream;
    const std::int32_t ticket = tickets.template Read<false>();
    if (ticket == kNoTile) return;
    if (mine) {
      mover.HandleTile(protocol::PackedTileAt(params.grid, Schedule::kOrder, ticket), ticket);
    }
  }
}

// The four warps of warpgroup 0; all lanes come here.
template <class Tile, class Schedule, class Gate, class Sink, class Pusher, class Build>
__device__ __forceinline__ void RunPackedWarps(const GemmParams& params, SharedMemory<Tile>& smem,
                                               Warp warp, std::int32_t cta_rank) {
  const bool elected = cute::elect_one_sync();
  typename Build::Trace trace(params, static_cast<TraceRole>(warp), elected);
  if (warp == Warp::kProducer) {
    ProducePacked<Tile, Schedule, Gate>(params, smem, cta_rank, trace);
  } else if (cute::elect_one_sync()) {
    if (warp == Warp::kPusher) {
      Pusher::template Run<Build>(params, smem, trace);
    } else if (Tile::kSplit == 2 && warp == Warp::kMover1) {
      ProduceWeights<Tile, Schedule>(params, smem, cta_rank, trace);
    } else {
      const int stream = Tile::kSplit == 2 ? Tile::SplitOf(cta_rank) : warp == Warp::kMover1;
      MovePacked<Tile, Schedule, Sink, Build>(params, smem, stream, cta_rank, trace);
    }
  }
  trace.Finish();
}

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_GEMM_PACKED_CUH_
