// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Seam 3, the movers' side: one thread per stream stores finished boxes by TMA, to y or to the peer
// that owns them, and fetches the peers' partials of own tiles. The consumers' side: sink.cuh.
#ifndef JAX_FLUX_CUDA_KERNELS_MOVER_CUH_
#define JAX_FLUX_CUDA_KERNELS_MOVER_CUH_

#include "cuda/kernels/build.cuh"
#include "cuda/kernels/sink.cuh"
#include "cuda/kernels/sync.cuh"
#include "cuda/kernels/tma.cuh"

namespace jax_flux::kernels {

// Mover side of one stream: one thread.
template <class Tile, class Sink, class Build>
struct SlotMover {
  SharedMemory<Tile>& smem;
  const GemmParams& params;
  int stream;
  std::int32_t cta_rank;
  std::uint64_t epoch = 0;
  RingCursor<Tile::kSlots> cursor;
  typename Build::Link link;
  typename Build::Trace& trace;

  __device__ SlotMover(SharedMemory<Tile>& shared, const GemmParams& kernel_params, int stream_idx,
                       std::int32_t cluster_rank, typename Build::Trace& recorder)
      : smem(shared),
        params(kernel_params),
        stream(stream_idx),
        cta_rank(cluster_rank),
        link(kernel_params),
        trace(recorder) {
    if constexpr (Sink::kReduces) epoch = protocol::CallEpoch<DeviceMemory>(params.call);
  }

  __device__ __forceinline__ void HandleTile(protocol::TileCoord at, std::int32_t ticket,
                                             const TicketRing<Tile>& tickets) {
    if constexpr (!Sink::kReduces) {
      const int weight = TakeWeight(params, at);
      const CUtensorMap& y = weight == 0 ? params.y : params.more[weight - 1].y;
      StoreTile<false>(at, ticket, [&](const void* slot, std::int32_t column, std::int32_t row) {
        TmaStore(y, slot, column, row, at.segment, at.batch);
      });
    } else {
      const std::int32_t parity = static_cast<std::int32_t>(epoch & 1);
      const std::int32_t rank = params.call.rank;
      const std::int32_t flag = params.grid.FlagIndex(at.batch, at.i, at.j) * Tile::kFlagsPerTile +
                                cta_rank * Tile::kMmaWarpgroups + (Tile::kPingPong ? 0 : stream);
      if (at.segment == rank) {
        FetchPartials(at, flag, parity, ticket, tickets);
        StoreTile<false>(at, ticket, [&](const void* slot, std::int32_t column, std::int32_t row) {
          TmaStore(params.y, slot, column, row, 0, at.batch);
        });
        return;
      }
      StoreTile<true>(at, ticket, [&](const void* slot, std::int32_t column, std::int32_t row) {
        TmaStore(params.area[at.segment], slot, column, row, at.batch, rank, parity);
      });
      const TraceTime flag_begin = trace.Now();
      // wait_group 0, not .read: the boxes are written at the owner before the flag is.
      bulk::WaitStores<0>();
      // Release, system scope; pairs with FetchPartials on rank `segment`.
      link.Publish(params.call, epoch, at.segment, [&](std::int32_t source) {
        return params.call.layout.RsFlagOffset(source, flag);
      });
      trace.Add(Span::kFlag, flag_begin, ticket);
    }
  }

 private:
  __device__ __forceinline__ std::int32_t BoxColumn(const protocol::TileCoord& at, int box) const {
    return CtaColumn<Tile>(at, cta_rank) + box % Tile::kColumnBoxes * kBoxColumns;
  }
  __device__ __forceinline__ std::int32_t BoxRow(const protocol::TileCoord& at, int box) const {
    return CtaRow<Tile>(at, cta_rank) + Tile::BlockRow(stream, box / Tile::kColumnBoxes);
  }

  // Bytes of a box that lie inside the segment: TMA leaves out the rest.
  __device__ __forceinline__ std::int32_t BoxBytes(std::int32_t column, std::int32_t row) const {
    return 2 * max(0, min(kBoxRows, params.grid.rows - row)) *
           max(0, min(kBoxColumns, params.grid.columns - column));
  }

  template <bool kToPeer, class Store>
  __device__ __forceinline__ void StoreTile(const protocol::TileCoord& at, std::int32_t ticket,
                                            Store store) {
    TraceTime begin = 0;
    RingCursor<Tile::kSlots> oldest = cursor;  // slots whose store may still read them
    for (int box = 0; box < Tile::kBoxes; ++box) {
      if (box >= Tile::kSlots) {
        bulk::WaitStoreReads<Tile::kSlots - 1>();
        if constexpr (kToPeer) link.AwaitDeparted(Tile::kSlots - 1);
        // The consumers may refill it; pairs with their wait in Write, CTA scope.
        smem.slot_empty[stream][oldest.Slot()].Arrive(Tile::kSlotReaders);
        oldest.Advance();
      }
      if constexpr (Sink::kReduces) {
        // A partial may still lie in the slot: stay in step with its barrier. Pairs with Add.
        smem.slot_empty[stream][cursor.Slot()].Wait(cursor.EmptyParity(), "drained slot");
      }
      // Pairs with the consumers' Arrive after their proxy fence in Write, CTA scope.
      smem.slot_full[stream][cursor.Slot()].Wait(cursor.FullParity(), "finished box");
      if (box == 0) begin = trace.Now();
      store(smem.slot[stream][cursor.Slot()], BoxColumn(at, box), BoxRow(at, box));
      bulk::CommitStores();
      if constexpr (kToPeer) link.Depart(BoxBytes(BoxColumn(at, box), BoxRow(at, box)));
      cursor.Advance();
    }
    bulk::WaitStoreReads<0>();
    if constexpr (kToPeer) link.AwaitDeparted(0);
    for (int left = 0; left < Tile::kSlots; ++left) {
      smem.slot_empty[stream][oldest.Slot()].Arrive(Tile::kSlotReaders);  // as above
      oldest.Advance();
    }
    trace.Add(Span::kStore, begin, ticket);
  }

  // Bit per step of PartialSourceAt: whether the flag of that partial is up. Relaxed reads, several
  // in flight at once; the fences make them acquires and order the async proxy's reads after them.
  __device__ __forceinline__ std::uint32_t PartialsHere(std::int32_t flag) const {
    constexpr std::int32_t kSweep = 3;  // the mover has no registers for more
    const protocol::Call& call = params.call;
    std::uint32_t here = 0;
#pragma unroll 1
    for (std::int32_t first = 0; first < call.world - 1; first += kSweep) {
      std::uint64_t seen[kSweep];
#pragma unroll
      for (std::int32_t i = 0; i < kSweep; ++i) {
        // Past the last partial, the last one again.
        const std::int32_t step = first + i < call.world - 1 ? first + i : call.world - 2;
        const std::int32_t source = protocol::PartialSourceAt(call.rank, call.world, step);
        seen[i] = DeviceMemory::LoadRelaxed(call.base[call.rank] +
                                            call.layout.RsFlagOffset(source, flag));
      }
#pragma unroll
      for (std::int32_t i = 0; i < kSweep; ++i) here |= (seen[i] >= epoch ? 1u : 0u) << (first + i);
    }
    if (here == 0) return 0;
    // Acquire, system scope; pairs with PublishFlag of the streams that made the partials.
    FenceAcquireSys();
    bulk::FenceGenericToAsync();
    return here;
  }

  // Partials of an own tile, oldest first, own rank left out: its sum starts from the accumulators,
  // which never were rounded. The order depends on the ranks alone, so the bits are the same on
  // every run. Measured: in rank order W = 8's last tiles had waited for a late partial before the
  // early ones were added, 15 us of 237.
  __device__ __forceinline__ void FetchPartials(const protocol::TileCoord& at, std::int32_t flag,
                                                std::int32_t parity, std::int32_t ticket,
                                                const TicketRing<Tile>& tickets) {
    const TraceTime begin = trace.Now();
    const int partials = params.call.world - 1;
    std::uint32_t here = PartialsHere(flag);
    AwaitPartial(flag, 0, here, ticket);
    FetchBoxes<false, 0, Tile::kSlots>(at, parity, 0, cursor);
    // The consumers ask at the same place.
    if (partials * Tile::kBoxes > Tile::kSlots) {
      if (TakesStages(params, tickets)) {
        // Pairs with the consumers' arrivals in Add: their wgmma have read the stages.
        smem.read[stream].Wait(0, "read stages");
        RingCursor<Tile::kTailSlots> tail;
        FetchRest<true>(at, flag, parity, ticket, here, tail);
      } else {
        FetchRest<false>(at, flag, parity, ticket, here, cursor);
      }
    }
    trace.Add(Span::kFetch, begin, ticket);
  }

  // Until the partial of `step` is here; `here` as of PartialsHere, or newer.
  __device__ __forceinline__ void AwaitPartial(std::int32_t flag, std::int32_t step,
                                               std::uint32_t& here, std::int32_t ticket) {
    const TraceTime begin = trace.Now();
    // More may have come while the ones before were added.
    if ((here >> step & 1) == 0) here |= PartialsHere(flag);
    if ((here >> step & 1) == 0) {
      const protocol::Call& call = params.call;
      const std::int32_t source = protocol::PartialSourceAt(call.rank, call.world, step);
      // Acquire, system scope; pairs with PublishFlag of the stream that made it on `source`.
      protocol::AwaitFlag<DeviceMemory>(call, epoch, protocol::WaitKind::kRsTile, source, flag,
                                        call.layout.RsFlagOffset(source, flag));
      bulk::FenceGenericToAsync();  // flag by the generic proxy, data by the async proxy
    }
    trace.Add(Span::kPartial, begin, ticket, kTraceGateNs);
  }

  // What follows the first kSlots boxes, into slots or, at the tail, stages.
  template <bool kTail, class Cursor>
  __device__ __forceinline__ void FetchRest(const protocol::TileCoord& at, std::int32_t flag,
                                            std::int32_t parity, std::int32_t ticket,
                                            std::uint32_t here, Cursor& ring) {
    constexpr int kFetched = Tile::kSlots % Tile::kBoxes;
    if constexpr (kFetched > 0) FetchBoxes<kTail, kFetched, Tile::kBoxes>(at, parity, 0, ring);
#pragma unroll 1
    for (std::int32_t step = 1; step < params.call.world - 1; ++step) {
      AwaitPartial(flag, step, here, ticket);
      FetchBoxes<kTail, 0, Tile::kBoxes>(at, parity, step, ring);
    }
  }

  // Boxes of one partial. Unrolled: one thread issues them, and its instructions are the pace.
  template <bool kTail, int kBegin, int kEnd, class Cursor>
  __device__ __forceinline__ void FetchBoxes(const protocol::TileCoord& at, std::int32_t parity,
                                             std::int32_t step, Cursor& ring) {
    const int tail = SharedMemory<Tile>::TailOf(stream);
    const std::int32_t rank = params.call.rank;
    const std::int32_t source = protocol::PartialSourceAt(rank, params.call.world, step);
#pragma unroll
    for (int box = kBegin; box < kEnd; ++box) {
      MBarrier& empty =
          kTail ? smem.tail_empty[tail][ring.Slot()] : smem.slot_empty[stream][ring.Slot()];
      MBarrier& full =
          kTail ? smem.tail_full[tail][ring.Slot()] : smem.slot_full[stream][ring.Slot()];
      // Own store has read the slot, or the consumers have added what was in it.
      empty.Wait(ring.EmptyParity(), "slot for a partial");
      full.ArriveExpect(kBoxBytes);  // pairs with the wait for a partial in Add, CTA scope
      TmaLoad<1>(params.area[rank], full,
                 kTail ? smem.TailSlots(stream)[ring.Slot()] : smem.slot[stream][ring.Slot()],
                 BoxColumn(at, box), BoxRow(at, box), at.batch, source, parity);
      ring.Advance();
    }
  }
};

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_MOVER_CUH_
