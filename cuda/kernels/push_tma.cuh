// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Seam 4: one thread of an otherwise idle producer warp moves the own shard to the peers, box by
// box through two small buffers. Pushing never waits for a peer.
#ifndef JAX_FLUX_CUDA_KERNELS_PUSH_TMA_CUH_
#define JAX_FLUX_CUDA_KERNELS_PUSH_TMA_CUH_

#include "cuda/kernels/build.cuh"
#include "cuda/kernels/params.h"
#include "cuda/kernels/sync.cuh"
#include "cuda/kernels/tickets.cuh"
#include "cuda/kernels/tile.cuh"
#include "cuda/kernels/tma.cuh"

namespace jax_flux::kernels {

// plain
struct NoPush {
  template <class Build, class Tile>
  __device__ static void Run(const GemmParams&, SharedMemory<Tile>&, typename Build::Trace&) {}
};

// Announces the call to the peers.
__device__ __forceinline__ void PostEntries(const protocol::Call& call) {
  if (blockIdx.x != 0 || !call.first_launch) return;
  // Release, system scope; pairs with CheckEntry on every peer.
  protocol::PostEntries<DeviceMemory>(call, protocol::CallEpoch<DeviceMemory>(call));
}
// The call may end: every peer has entered it. After all pushes, and the CTA arrives after it.
__device__ __forceinline__ void AwaitEntries(const protocol::Call& call) {
  if (blockIdx.x != 0 || !call.last_launch) return;
  // Acquire, system scope; pairs with PostEntries on every peer. FinishLaunch hands it on.
  protocol::AwaitEntries<DeviceMemory>(call, protocol::CallEpoch<DeviceMemory>(call));
}

// matmul_rs: only entries.
struct EntryPush {
  template <class Build, class Tile>
  __device__ static void Run(const GemmParams& params, SharedMemory<Tile>&,
                             typename Build::Trace&) {
    PostEntries(params.call);
    AwaitEntries(params.call);
  }
};

// ag_matmul: entries, and in between chunks by ticket, those needed last sent last.
struct ShardPush {
  template <class Build, class Tile>
  __device__ static void Run(const GemmParams& params, SharedMemory<Tile>& smem,
                             typename Build::Trace& trace) {
    PostEntries(params.call);
    // A later launch of the call multiplies what the first has brought.
    if (params.call.first_launch) PushChunks<Build>(params, smem, trace);
    AwaitEntries(params.call);
  }

 private:
  template <class Build, class Tile>
  __device__ static __forceinline__ void PushChunks(const GemmParams& params,
                                                    SharedMemory<Tile>& smem,
                                                    typename Build::Trace& trace) {
    // Chunks in flight share the link, so few pushers at a time bring the first chunks early. A
    // seat is taken by whoever runs, so one resident CTA is still enough. The copy tickets are free
    // in a GEMM's launch.
    if (TakeTicket(params.call, protocol::ControlWord::kCopyTicket) >= params.push_ctas) return;
    const std::uint64_t epoch = protocol::CallEpoch<DeviceMemory>(params.call);
    const protocol::ChunkGrid& chunks = params.chunks;
    const std::int32_t total = protocol::TotalPushes(chunks, params.call.world);
    RingCursor<2> loads, stores;
    typename Build::Link link(params);
    for (;;) {
      const std::int32_t ticket = TakeTicket(params.call, protocol::ControlWord::kPushTicket);
      if (ticket >= total) break;
      const protocol::PushCoord push =
          protocol::PushAt(chunks, params.call.rank, params.call.world, ticket);
      const TraceTime push_begin = trace.Now();
      PushChunk(params, smem, link, push, static_cast<std::int32_t>(epoch & 1), loads, stores);
      trace.Add(Span::kPush, push_begin, ticket);
      const TraceTime flag_begin = trace.Now();
      // wait_group 0, not .read: the boxes are written at the peer before the flag is.
      bulk::WaitStores<0>();
      const std::int32_t index =
          chunks.FlagIndex(push.chunk.batch, push.chunk.row_chunk, push.chunk.depth_chunk);
      // Release, system scope; pairs with ChunkGate's EnterTile or AwaitBlock on `peer`.
      link.Publish(params.call, epoch, push.peer, [&](std::int32_t source) {
        return params.call.layout.AgFlagOffset(source, index);
      });
      if (protocol::CountPushed<DeviceMemory>(params.call, push.peer, chunks.Count())) {
        // Release, system scope; pairs with ChunkGate's ChunksHere on `peer`.
        link.Publish(params.call, epoch, push.peer, [&](std::int32_t source) {
          return params.call.layout.AgFlagOffset(source, chunks.WholeFlag());
        });
      }
      trace.Add(Span::kFlag, flag_begin, ticket);
    }
  }

  template <class Link, class Tile>
  __device__ static __forceinline__ void PushChunk(const GemmParams& params,
                                                   SharedMemory<Tile>& smem, Link& link,
                                                   const protocol::PushCoord& push,
                                                   std::int32_t parity, RingCursor<2>& loads,
                                                   RingCursor<2>& stores) {
    const protocol::ChunkGrid& chunks = params.chunks;
    const std::int32_t row0 = push.chunk.row_chunk * chunks.chunk_rows;
    const std::int32_t k0 = push.chunk.depth_chunk * chunks.chunk_depth;
    const std::int32_t rows = min(chunks.chunk_rows, chunks.rows - row0);
    const std::int32_t depth = min(chunks.chunk_depth, chunks.depth - k0);
    const std::int32_t columns = protocol::CeilDiv(depth, kPushColumns);
    const std::int32_t boxes = columns * protocol::CeilDiv(rows, Tile::kPushRows);
    const CUtensorMap& target = params.area[push.peer];

    std::int32_t load_row = row0, load_k = k0, store_row = row0, store_k = k0;
    const auto advance = [&](std::int32_t& row, std::int32_t& k) {
      k += kPushColumns;
      if (k >= k0 + depth) {
        k = k0;
        row += Tile::kPushRows;
      }
    };
    const auto load = [&] {
      // Pairs with the wait for the push box below, same thread; TMA completes it.
      MBarrier& full = smem.push_full[loads.Slot()];
      full.ArriveExpect(Tile::kPushBytes);
      TmaLoad<1>(params.push_source, full, smem.push[loads.Slot()], load_k, load_row,
                 push.chunk.batch);
      advance(load_row, load_k);
      loads.Advance();
    };
    load();  // both buffers are free: the chunk before ended with WaitStores<0>
    for (std::int32_t box = 0; box < boxes; ++box) {
      bulk::WaitStoreReads<0>();  // the other buffer's store has read it
      link.AwaitDeparted(0);
      if (box + 1 < boxes) load();
      // TMA wrote the buffer and TMA reads it: one proxy, ordered by the barrier.
      smem.push_full[stores.Slot()].Wait(stores.FullParity(), "push box");
      TmaStore(target, smem.push[stores.Slot()], store_k, store_row, push.chunk.batch,
               params.call.rank, parity);
      bulk::CommitStores();
      // What of the box is inside the shard: TMA leaves out the rest.
      link.Depart(2 * min(Tile::kPushRows, chunks.rows - store_row) *
                  min(kPushColumns, chunks.depth - store_k));
      advance(store_row, store_k);
      stores.Advance();
    }
  }
};

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_PUSH_TMA_CUH_
