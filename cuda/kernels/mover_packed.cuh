// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Seam 3 for packed tiles, the movers' side: each segment's part of a box is stored by a TMA
// instruction of its own. matmul_rs sends every foreign part of a tile and flags it before it waits
// for partials of the own part (docs/protocol.md, Packed tiles).
#ifndef JAX_FLUX_CUDA_KERNELS_MOVER_PACKED_CUH_
#define JAX_FLUX_CUDA_KERNELS_MOVER_PACKED_CUH_

#include "cuda/kernels/build.cuh"
#include "cuda/kernels/pack.cuh"
#include "cuda/kernels/sink.cuh"
#include "cuda/kernels/sync.cuh"
#include "cuda/kernels/tma.cuh"

namespace jax_flux::kernels {

// Mover side of one stream: one thread.
template <class Tile, class Sink, class Build>
struct PackedMover {
  SharedMemory<Tile>& smem;
  const GemmParams& params;
  int stream;
  std::int32_t cta_rank;
  std::uint64_t epoch = 0;
  RingCursor<Tile::kSlots> cursor;
  RingCursor<Tile::kSlots> oldest;  // first of the slots whose store may still read them
  std::int32_t pending = 0;         // their number
  typename Build::Link link;
  typename Build::Trace& trace;

  __device__ PackedMover(SharedMemory<Tile>& shared, const GemmParams& kernel_params,
                         int stream_idx, std::int32_t cluster_rank, typename Build::Trace& recorder)
      : smem(shared),
        params(kernel_params),
        stream(stream_idx),
        cta_rank(cluster_rank),
        link(kernel_params),
        trace(recorder) {
    if constexpr (Sink::kReduces) epoch = protocol::CallEpoch<DeviceMemory>(params.call);
  }

  __device__ __forceinline__ void HandleTile(const protocol::TileCoord& at, std::int32_t ticket) {
    const Pack pack = PackOf<Tile>(params, at, cta_rank);
    const PackSpan span = SpanOfStream<Tile>(pack, stream);
    if (span.Empty()) return;
    const TraceTime begin = trace.Now();
    if constexpr (!Sink::kReduces) {
      StoreBoxes<false>(
          at, pack, [](std::int32_t) { return true; },
          [&](const void* slot, std::int32_t column, std::int32_t row, std::int32_t segment) {
            TmaStore(params.y, slot, column, row, segment, at.batch);
          });
      trace.Add(Span::kStore, begin, ticket);
    } else {
      const std::int32_t parity = static_cast<std::int32_t>(epoch & 1);
      const std::int32_t own = pack.Own(params);
      const std::int32_t flag = Flag(at, pack);
      if (span.HasOther(own)) {
        SendOthers(at, pack, span, own, flag, parity);
        trace.Add(Span::kFlag, begin, ticket);
      }
      if (!span.Has(own)) return;
      // Invariant: everything of this tile that a peer waits for has left.
      const TraceTime fetch_begin = trace.Now();
      AwaitPartials(flag);
      FetchPartials(at, pack, own, parity);
      trace.Add(Span::kFetch, fetch_begin, ticket);
      StoreBoxes<false>(
          at, pack, [&](std::int32_t s) { return s == own; },
          [&](const void* slot, std::int32_t column, std::int32_t row, std::int32_t) {
            TmaStore(params.y, slot, column, row, 0, at.batch);
          });
    }
  }

 private:
  __device__ __forceinline__ void SendOthers(const protocol::TileCoord& at, const Pack& pack,
                                             const PackSpan& span, std::int32_t own,
                                             std::int32_t flag, std::int32_t parity) {
    const std::int32_t rank = params.call.rank;
    StoreBoxes<true>(
        at, pack, [&](std::int32_t s) { return s != own; },
        [&](const void* slot, std::int32_t column, std::int32_t row, std::int32_t segment) {
          TmaStore(params.area[segment], slot, column, row, at.batch, rank, parity);
        });
    // wait_group 0, not .read: the boxes are written at the owners before the flags are.
    bulk::WaitStores<0>();
    // Release, system scope; pairs with AwaitPartials on the owners.
    const std::int32_t skip = span.Has(own) ? own : span.end;
    link.PublishAll(
        params.call, epoch, span.end - span.begin - (skip < span.end ? 1 : 0),
        [&](std::int32_t i) {
          const std::int32_t s = span.begin + i;
          return pack.first + s + (s >= skip ? 1 : 0);
        },
        [&](std::int32_t source) { return params.call.layout.RsFlagOffset(source, flag); });
  }

  // Flag of a segment's rows that this stream stores; the same for all segments of the tile.
  __device__ __forceinline__ std::int32_t Flag(const protocol::TileCoord& at,
                                               const Pack& pack) const {
    const std::int32_t tile = params.grid.FlagIndex(at.batch, at.i, at.j);
    if (Tile::kPingPong || pack.height <= kBoxRows) return tile;
    return tile * Tile::kMmaWarpgroups + stream;
  }
  __device__ __forceinline__ std::int32_t BoxColumn(const protocol::TileCoord& at,
                                                    int column) const {
    return CtaColumn<Tile>(at, cta_rank) + column * kBoxColumns;
  }

  __device__ __forceinline__ void ReleaseOldest() {
    // The consumers may refill it; pairs with their wait in WriteBox, CTA scope.
    smem.slot_empty[stream][oldest.Slot()].Arrive();
    oldest.Advance();
    --pending;
  }

  // Stores the parts of the tile that `keep` names, box by box in the consumers' order.
  template <bool kToPeer, class Keep, class Store>
  __device__ __forceinline__ void StoreBoxes(const protocol::TileCoord& at, const Pack& pack,
                                             Keep keep, Store store) {
    oldest = cursor;
    const std::int32_t height = pack.BoxHeight();
    for (int block = 0; block < Tile::kRowBlocks; ++block) {
      const std::int32_t first_row = Tile::BlockRow(stream, block);
      const PackSpan span = SpanOfBlock<Tile>(pack, stream, block);
      bool wanted = false;
      for (std::int32_t s = span.begin; s < span.end; ++s) wanted |= keep(s);
      if (!wanted) continue;
      for (int column = 0; column < Tile::kColumnBoxes; ++column) {
        if (pending == Tile::kSlots) {
          bulk::WaitStoreReads<Tile::kSlots - 1>();
          if constexpr (kToPeer) link.AwaitDeparted(Tile::kSlots - 1);
          ReleaseOldest();
        }
        // A partial may still lie in the slot: stay in step with its barrier. Pairs with AddOwn.
        smem.slot_empty[stream][cursor.Slot()].Wait(cursor.EmptyParity(), "drained slot");
        // Pairs with the consumers' Arrive after their proxy fence in WriteBox, CTA scope.
        smem.slot_full[stream][cursor.Slot()].Wait(cursor.FullParity(), "finished box");
        const std::uint8_t* slot = smem.slot[stream][cursor.Slot()];
        for (std::int32_t s = span.begin; s < span.end; ++s) {
          if (!keep(s)) continue;
          const std::int32_t offset =
              s * pack.height - first_row;  // < 0: an earlier block began it
          store(slot + (offset > 0 ? offset * 128 : 0), BoxColumn(at, column),
                offset > 0 ? 0 : -offset, pack.first + s);
        }
        bulk::CommitStores();
        if constexpr (kToPeer) link.Depart(BoxBytes(at, pack, column, first_row, span, keep));
        ++pending;
        cursor.Advance();
      }
    }
    bulk::WaitStoreReads<0>();
    if constexpr (kToPeer) link.AwaitDeparted(0);
    while (pending > 0) ReleaseOldest();
  }

  // Bytes of a box that lie inside the segments kept: TMA leaves out the rest.
  template <class Keep>
  __device__ __forceinline__ std::int32_t BoxBytes(const protocol::TileCoord& at, const Pack& pack,
                                                   int column, std::int32_t first_row,
                                                   const PackSpan& span, Keep keep) const {
    std::int32_t rows = 0;
    for (std::int32_t s = span.begin; s < span.end; ++s) {
      const std::int32_t row = max(0, first_row - s * pack.height);
      if (keep(s)) rows += max(0, min(pack.BoxHeight(), params.grid.rows - row));
    }
    return 2 * rows * max(0, min(kBoxColumns, params.grid.columns - BoxColumn(at, column)));
  }

  // Until every peer's flag of the own part is up. First relaxed reads, all in flight at once.
  __device__ __forceinline__ void AwaitPartials(std::int32_t flag) const {
    const protocol::Call& call = params.call;
    std::uint64_t seen[protocol::kMaxWorld];
#pragma unroll
    for (std::int32_t i = 0; i < protocol::kMaxWorld; ++i) {
      const std::int32_t step = i < call.world - 1 ? i : call.world - 2;
      const std::int32_t source = protocol::PushPeerAt(call.rank, call.world, step);
      seen[i] =
          DeviceMemory::LoadRelaxed(call.base[call.rank] + call.layout.RsFlagOffset(source, flag));
    }
    bool here = true;
#pragma unroll
    for (std::int32_t i = 0; i < protocol::kMaxWorld; ++i) here &= seen[i] >= epoch;
    if (here) {
      // Acquire, system scope; pairs with PublishFlag of the streams that made the partials.
      FenceAcquireSys();
    } else {
      for (std::int32_t step = 0; step < call.world - 1; ++step) {
        const std::int32_t source = protocol::PushPeerAt(call.rank, call.world, step);
        // Acquire, system scope; pairs with PublishFlag of the stream that made it on `source`.
        protocol::AwaitFlag<DeviceMemory>(call, epoch, protocol::WaitKind::kRsTile, source, flag,
                                          call.layout.RsFlagOffset(source, flag));
      }
    }
    bulk::FenceGenericToAsync();  // flags by the generic proxy, data by the async proxy
  }

  // Partials of the own part in rank order for each box, own rank left out: its sum starts from
  // the accumulators, which never were rounded.
  __device__ __forceinline__ void FetchPartials(const protocol::TileCoord& at, const Pack& pack,
                                                std::int32_t own, std::int32_t parity) {
    const std::int32_t rank = params.call.rank;
    const std::int32_t height = pack.BoxHeight();
    const std::int32_t capacity = kBoxRows / height;
    for (int block = 0; block < Tile::kRowBlocks; ++block) {
      if (!SpanOfBlock<Tile>(pack, stream, block).Has(own)) continue;
      const std::int32_t offset = Tile::BlockRow(stream, block) - own * pack.height;
      for (int column = 0; column < Tile::kColumnBoxes; ++column) {
        for (std::int32_t peer = 0; peer < params.call.world - 1; peer += capacity) {
          const std::int32_t boxes = min(capacity, params.call.world - 1 - peer);
          // Own store has read the slot, or the consumers have added what was in it.
          smem.slot_empty[stream][cursor.Slot()].Wait(cursor.EmptyParity(), "slot for a partial");
          MBarrier& full = smem.slot_full[stream][cursor.Slot()];
          full.ArriveExpect(boxes * height * 128);  // pairs with the wait in AddOwn, CTA scope
          for (std::int32_t box = 0; box < boxes; ++box) {
            const std::int32_t source = peer + box + (peer + box >= rank ? 1 : 0);
            TmaLoad<1>(params.area[rank], full,
                       smem.slot[stream][cursor.Slot()] + box * height * 128, BoxColumn(at, column),
                       offset > 0 ? offset : 0, at.batch, source, parity);
          }
          cursor.Advance();
        }
      }
    }
  }
};

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_MOVER_PACKED_CUH_
