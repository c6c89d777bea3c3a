// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Seam 3: where a finished tile goes. A consumer warpgroup rounds its accumulators into the slots
// of its stream box by box; the stream's mover thread stores each box by TMA and hands the slot
// back. So MMA warps never wait for a store beyond their slots, and never for a peer to *send*.
// An own tile of matmul_rs uses the same slots the other way round first: the mover fetches the
// peers' partials box by box, the consumers add them.
#ifndef JAX_FLUX_CUDA_KERNELS_SINK_CUH_
#define JAX_FLUX_CUDA_KERNELS_SINK_CUH_

#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/copy_sm90.hpp>
#include <cute/tensor.hpp>

#include "cuda/kernels/build.cuh"
#include "cuda/kernels/element.cuh"
#include "cuda/kernels/params.h"
#include "cuda/kernels/sync.cuh"
#include "cuda/kernels/tickets.cuh"
#include "cuda/kernels/tile.cuh"
#include "cuda/kernels/tma.cuh"

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

#endif  // JAX_FLUX_CUDA_KERNELS_SINK_CUH_
