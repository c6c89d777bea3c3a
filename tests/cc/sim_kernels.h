// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The fused calls with threads as CTA roles and plain loops as the GEMM. Order, waits, flags and
// tickets are those of cuda/protocol; a launch is every Role* below run by all threads of a rank.
//   x[b, m, k]     this rank's shard (AG);  x[b, W, m, k] for RS
//   w[k, n]        this rank's columns (AG) or depth (RS)
//   y[b, W, m, n]  (AG), y[b, m, n] (RS), gathered[b, W, m, k] (copy)
#ifndef JAX_FLUX_TESTS_CC_SIM_KERNELS_H_
#define JAX_FLUX_TESTS_CC_SIM_KERNELS_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "cuda/protocol/epoch.h"
#include "tests/cc/sim_memory.h"

namespace jax_flux::test {

struct Extents {
  std::int32_t batch, rows, depth, columns;  // b, m, k, n
  std::int32_t tile_rows, tile_columns, tile_depth, group;
  std::int32_t chunk_rows, chunk_depth;
  bool depth_outer;
  std::int32_t pack = 0;  // segments of a tile, rows <= tile_rows; 0: one

  protocol::ChunkGrid Chunks() const {
    return {batch, rows, depth, chunk_rows, chunk_depth, depth_outer, 1, pack > 0};
  }
  protocol::TileGrid Tiles(std::int32_t world, std::int32_t rank) const {
    return {world, rank, batch, rows, columns, tile_rows, tile_columns, group, 1, pack};
  }
  // Pieces that a copy engine carries: rows through all batches, whole k.
  protocol::ChunkGrid Pieces() const { return {1, batch * rows, depth, chunk_rows, depth, false}; }
  // A group of one waits for nobody, so not for itself either: only the plain kernel serves it.
  Extents Unpacked() const {
    Extents extents = *this;
    extents.pack = 0;
    return extents;
  }
  std::uint64_t ShardFloats() const { return static_cast<std::uint64_t>(batch) * rows * depth; }
  std::uint64_t TileFloats() const { return static_cast<std::uint64_t>(tile_rows) * tile_columns; }
};

struct Operands {
  const float* x;     // pushed and gathered
  const float* w;     // [k, n]
  const float* rs_x;  // [b, W, m, k] of a reduce-scatter
  float* y;
};

enum class FlagPlace { kAfterData, kBeforeData };  // kBeforeData: a negative control

template <class Mem, FlagPlace kFlagPlace = FlagPlace::kAfterData>
class Kernel {
 public:
  // `copied`: copy engines bring the shards of the peers.
  Kernel(const protocol::Call& call, const Extents& extents, const Operands& operands, bool copied)
      : call_(call),
        extents_(call.world > 1 ? extents : extents.Unpacked()),
        operands_(operands),
        epoch_(protocol::CallEpoch<Mem>(call)),
        copied_(copied) {}

  std::uint64_t epoch() const { return epoch_; }

  void Enter() const { protocol::PostEntries<Mem>(call_, epoch_); }
  void Finish(std::uint32_t cta_count, bool awaits) const {
    protocol::FinishCta<Mem>(call_, epoch_, cta_count, awaits);
  }

  void OpenGate() const { protocol::OpenCopyGate<Mem>(call_, epoch_); }

  // What the copy engines of a rank do: they know addresses only, so the flag is a copy of a word.
  void CopyPieces() const {
    const protocol::ChunkGrid grid = extents_.Pieces();
    const std::uint64_t floats = static_cast<std::uint64_t>(extents_.depth);
    for (std::int32_t step = 0; step < call_.world - 1; ++step) {
      const std::int32_t peer = protocol::PushPeerAt(call_.rank, call_.world, step);
      for (std::int32_t index = 0; index < grid.Count(); ++index) {
        RandomDelay();
        const auto first = static_cast<std::uint64_t>(index * grid.chunk_rows);
        const auto end =
            static_cast<std::uint64_t>(std::min((index + 1) * grid.chunk_rows, grid.rows));
        std::copy(operands_.x + first * floats, operands_.x + end * floats,
                  Slot(peer, call_.rank) + first * floats);
        RandomDelay();
        Mem::StoreReleaseSys(call_.base[peer] + call_.layout.CopyFlagOffset(call_.rank, index),
                             Mem::LoadRelaxed(call_.Control(protocol::ControlWord::kCopyEpoch)));
      }
    }
  }

  // Pusher: our shard to every peer, chunk by chunk.
  void Push() const {
    const protocol::ChunkGrid grid = extents_.Chunks();
    const std::int32_t total = protocol::TotalPushes(grid, call_.world);
    for (;;) {
      const std::uint32_t ticket =
          protocol::ClaimTicket<Mem>(call_, protocol::ControlWord::kPushTicket);
      if (ticket >= static_cast<std::uint32_t>(total)) return;
      const protocol::PushCoord push =
          protocol::PushAt(grid, call_.rank, call_.world, static_cast<std::int32_t>(ticket));
      const protocol::ChunkCoord at = push.chunk;
      const std::uint64_t flag = call_.layout.AgFlagOffset(
          call_.rank, grid.FlagIndex(at.batch, at.row_chunk, at.depth_chunk));
      if (kFlagPlace == FlagPlace::kBeforeData) {
        protocol::PublishFlag<Mem>(call_, epoch_, push.peer, flag);
      }
      RandomDelay();
      CopyChunk(at, operands_.x, AgSlot(push.peer, call_.rank));
      if (kFlagPlace == FlagPlace::kAfterData) {
        protocol::PublishFlag<Mem>(call_, epoch_, push.peer, flag);
      }
      if (protocol::CountPushed<Mem>(call_, push.peer, grid.Count())) {
        protocol::PublishFlag<Mem>(call_, epoch_, push.peer,
                                   call_.layout.AgFlagOffset(call_.rank, grid.WholeFlag()));
      }
    }
  }

  // Whether all of a shard is here: one look instead of one per chunk.
  bool Whole(std::int32_t segment) const {
    const std::uint64_t flag = call_.layout.AgFlagOffset(segment, extents_.Chunks().WholeFlag());
    return Mem::LoadAcquireSys(call_.base[call_.rank] + flag) >= epoch_;
  }

  // Copies every segment's chunks to gathered[b, W, m, k]; ours straight from x.
  void CopyOut() const {
    const protocol::ChunkGrid grid = extents_.Chunks();
    const std::int32_t count = grid.Count();
    for (;;) {
      const auto ticket = static_cast<std::int32_t>(
          protocol::ClaimTicket<Mem>(call_, protocol::ControlWord::kCopyTicket));
      if (ticket >= count * call_.world) return;
      const std::int32_t segment = protocol::SegmentAt(protocol::SegmentOrder::kOwnFirst,
                                                       call_.rank, call_.world, ticket / count);
      const protocol::ChunkCoord at = protocol::ChunkAt(grid, ticket % count);
      const float* from = operands_.x;
      if (segment != call_.rank) {
        AwaitChunk(segment, grid.FlagIndex(at.batch, at.row_chunk, at.depth_chunk));
        from = AgSlot(call_.rank, segment);
      }
      ForChunk(at, [&](std::int32_t row, std::int32_t k) {
        operands_.y[((static_cast<std::int64_t>(at.batch) * call_.world + segment) * extents_.rows +
                     row) *
                        extents_.depth +
                    k] = from[XIndex(at.batch, row, k)];
      });
    }
  }

  // Copies the shard that `source` alone has sent to y[b, m, k].
  void ReceiveShard(std::int32_t source) const {
    const protocol::ChunkGrid grid = extents_.Chunks();
    for (;;) {
      const auto ticket = static_cast<std::int32_t>(
          protocol::ClaimTicket<Mem>(call_, protocol::ControlWord::kCopyTicket));
      if (ticket >= grid.Count()) return;
      const protocol::ChunkCoord at = protocol::ChunkAt(grid, ticket);
      AwaitChunk(source, grid.FlagIndex(at.batch, at.row_chunk, at.depth_chunk));
      CopyChunk(at, AgSlot(call_.rank, source), operands_.y);
    }
  }

  // Producer and consumer of ag_matmul: the gate opens a tile's k blocks one by one.
  void GatheredTiles() const {
    constexpr protocol::SegmentOrder kOrder = protocol::SegmentOrder::kOwnFirst;
    const protocol::TileGrid grid = extents_.Tiles(call_.world, call_.rank);
    for (;;) {
      const auto ticket = static_cast<std::int32_t>(
          protocol::ClaimTicket<Mem>(call_, protocol::ControlWord::kTileTicket));
      if (ticket >= grid.TotalTiles()) return;
      const std::vector<protocol::TileCoord> parts = Parts(grid, kOrder, ticket);
      std::vector<std::vector<float>> sums(parts.size(), std::vector<float>(extents_.TileFloats()));
      std::vector<bool> open;  // nothing to wait for
      for (const protocol::TileCoord& at : parts) {
        // A packed tile reads the own shard out of its slot as well.
        const bool in_place = at.segment == call_.rank && (extents_.pack == 0 || copied_);
        open.push_back(in_place || Whole(at.segment));
      }
      for (std::int32_t k = 0; k < extents_.depth; k += extents_.tile_depth) {
        const std::int32_t k_end = std::min(k + extents_.tile_depth, extents_.depth);
        for (std::size_t part = 0; part < parts.size(); ++part) {
          const protocol::TileCoord& at = parts[part];
          const bool in_place = at.segment == call_.rank && (extents_.pack == 0 || copied_);
          if (!open[part]) Gate(at, k, k_end);
          const float* a = in_place ? operands_.x : Slot(call_.rank, at.segment);
          Accumulate(at, a + XIndex(at.batch, 0, 0), k, k_end, &sums[part]);
        }
      }
      for (std::size_t part = 0; part < parts.size(); ++part) {
        const protocol::TileCoord& at = parts[part];
        const std::int64_t first =
            (static_cast<std::int64_t>(at.batch) * call_.world + at.segment) * extents_.rows;
        ForTile(at, [&](std::int32_t row, std::int32_t column, std::size_t index) {
          operands_.y[(first + row) * extents_.columns + column] = sums[part][index];
        });
      }
    }
  }

  // matmul_rs: foreign parts of a tile leave as partials, then an own part adds all partials in
  // rank order. Flags are held back until the next tile, as a store warp may do it, and flushed
  // before any wait and at the end.
  void ReducedTiles() const {
    constexpr protocol::SegmentOrder kOrder = protocol::SegmentOrder::kOwnLast;
    const protocol::TileGrid grid = extents_.Tiles(call_.world, call_.rank);
    std::vector<std::pair<std::int32_t, std::uint64_t>> held;  // peer, flag
    const auto flush = [&] {
      for (const auto& [peer, flag] : held) {
        protocol::PublishFlag<Mem>(call_, epoch_, peer, flag);
      }
      held.clear();
    };
    for (;;) {
      const auto ticket = static_cast<std::int32_t>(
          protocol::ClaimTicket<Mem>(call_, protocol::ControlWord::kTileTicket));
      if (ticket >= grid.TotalTiles()) break;
      std::vector<protocol::TileCoord> parts = Parts(grid, kOrder, ticket);
      std::stable_partition(parts.begin(), parts.end(), [&](const protocol::TileCoord& at) {
        return at.segment != call_.rank;  // sends before the wait
      });
      for (const protocol::TileCoord& at : parts) {
        std::vector<float> sum(extents_.TileFloats());
        const float* a =
            operands_.rs_x + (static_cast<std::int64_t>(at.batch) * call_.world + at.segment) *
                                 extents_.rows * extents_.depth;
        Accumulate(at, a, 0, extents_.depth, &sum);
        if (at.segment == call_.rank) {
          flush();
          Reduce(grid, at, sum);
          continue;
        }
        if (extents_.pack == 0) flush();
        const std::int32_t index = grid.FlagIndex(at.batch, at.i, at.j);
        std::copy(sum.begin(), sum.end(), RsSlot(at.segment, call_.rank, index));
        held.emplace_back(at.segment, call_.layout.RsFlagOffset(call_.rank, index));
      }
    }
    flush();
  }

 private:
  std::int64_t XIndex(std::int32_t b, std::int32_t row, std::int32_t k) const {
    return (static_cast<std::int64_t>(b) * extents_.rows + row) * extents_.depth + k;
  }
  // What a ticket stands for: one tile of a segment, or of each segment that is packed into it.
  std::vector<protocol::TileCoord> Parts(const protocol::TileGrid& grid,
                                         protocol::SegmentOrder order, std::int32_t ticket) const {
    if (grid.pack == 0) return {protocol::TileAt(grid, order, ticket)};
    protocol::TileCoord at = protocol::PackedTileAt(grid, order, ticket);
    const std::int32_t count = protocol::PackedSegments(grid, at.segment, grid.pack);
    std::vector<protocol::TileCoord> parts;
    for (std::int32_t part = 0; part < count; ++part, ++at.segment) parts.push_back(at);
    return parts;
  }
  float* AgSlot(std::int32_t at_rank, std::int32_t source) const {
    return reinterpret_cast<float*>(call_.base[at_rank] + call_.layout.AgHalfOffset(epoch_)) +
           extents_.ShardFloats() * static_cast<std::uint64_t>(source);
  }
  // Where the shard of `source` lies in this call.
  float* Slot(std::int32_t at_rank, std::int32_t source) const {
    if (!copied_) return AgSlot(at_rank, source);
    return reinterpret_cast<float*>(call_.base[at_rank] + call_.layout.CopyDataOffset()) +
           extents_.ShardFloats() * static_cast<std::uint64_t>(source);
  }
  float* RsSlot(std::int32_t at_rank, std::int32_t source, std::int32_t tile) const {
    const std::int32_t tiles = extents_.Tiles(call_.world, 0).SegmentTiles();
    return reinterpret_cast<float*>(call_.base[at_rank] + call_.layout.RsHalfOffset(epoch_)) +
           extents_.TileFloats() * static_cast<std::uint64_t>(source * tiles + tile);
  }

  template <class Visit>
  void ForChunk(const protocol::ChunkCoord& at, Visit visit) const {
    const std::int32_t row_end = std::min((at.row_chunk + 1) * extents_.chunk_rows, extents_.rows);
    const std::int32_t k_end =
        std::min((at.depth_chunk + 1) * extents_.chunk_depth, extents_.depth);
    for (std::int32_t row = at.row_chunk * extents_.chunk_rows; row < row_end; ++row) {
      for (std::int32_t k = at.depth_chunk * extents_.chunk_depth; k < k_end; ++k) visit(row, k);
    }
  }
  void CopyChunk(const protocol::ChunkCoord& at, const float* from, float* to) const {
    ForChunk(at, [&](std::int32_t row, std::int32_t k) {
      to[XIndex(at.batch, row, k)] = from[XIndex(at.batch, row, k)];
    });
  }
  template <class Visit>
  void ForTile(const protocol::TileCoord& at, Visit visit) const {
    for (std::int32_t row = 0; row < extents_.tile_rows; ++row) {
      for (std::int32_t column = 0; column < extents_.tile_columns; ++column) {
        const std::int32_t r = at.i * extents_.tile_rows + row;
        const std::int32_t c = at.j * extents_.tile_columns + column;
        if (r >= extents_.rows || c >= extents_.columns) continue;
        visit(r, c, static_cast<std::size_t>(row * extents_.tile_columns + column));
      }
    }
  }

  void AwaitChunk(std::int32_t segment, std::int32_t index) const {
    const protocol::FlagArea flags = copied_ ? call_.layout.CopyFlags() : call_.layout.AgFlags();
    protocol::AwaitFlag<Mem>(call_, epoch_, protocol::WaitKind::kAgChunk, segment, index,
                             flags.At(segment, index));
  }
  // Every chunk that rows of this tile and this k range touch.
  void Gate(const protocol::TileCoord& at, std::int32_t k, std::int32_t k_end) const {
    const protocol::ChunkGrid grid = copied_ ? extents_.Pieces() : extents_.Chunks();
    const std::int32_t base = copied_ ? at.batch * extents_.rows : 0;
    const std::int32_t row = base + at.i * extents_.tile_rows;
    const std::int32_t row_end = std::min(row + extents_.tile_rows, base + extents_.rows);
    for (std::int32_t d = k / grid.chunk_depth; d <= (k_end - 1) / grid.chunk_depth; ++d) {
      for (std::int32_t r = row / grid.chunk_rows; r <= (row_end - 1) / grid.chunk_rows; ++r) {
        AwaitChunk(at.segment, grid.FlagIndex(copied_ ? 0 : at.batch, r, d));
      }
    }
  }
  void Accumulate(const protocol::TileCoord& at, const float* a, std::int32_t k_begin,
                  std::int32_t k_end, std::vector<float>* sum) const {
    ForTile(at, [&](std::int32_t row, std::int32_t column, std::size_t index) {
      for (std::int32_t k = k_begin; k < k_end; ++k) {
        (*sum)[index] += a[static_cast<std::int64_t>(row) * extents_.depth + k] *
                         operands_.w[static_cast<std::int64_t>(k) * extents_.columns + column];
      }
    });
  }
  void Reduce(const protocol::TileGrid& grid, const protocol::TileCoord& at,
              const std::vector<float>& own) const {
    const std::int32_t tile = grid.FlagIndex(at.batch, at.i, at.j);
    std::vector<float> total(own.size(), 0.0f);
    for (std::int32_t source = 0; source < call_.world; ++source) {
      const float* partial = own.data();
      if (source != call_.rank) {
        protocol::AwaitFlag<Mem>(call_, epoch_, protocol::WaitKind::kRsTile, source, tile,
                                 call_.layout.RsFlagOffset(source, tile));
        partial = RsSlot(call_.rank, source, tile);
      }
      for (std::size_t i = 0; i < total.size(); ++i) total[i] += partial[i];
    }
    ForTile(at, [&](std::int32_t row, std::int32_t column, std::size_t index) {
      operands_.y[(static_cast<std::int64_t>(at.batch) * extents_.rows + row) * extents_.columns +
                  column] = total[index];
    });
  }

  const protocol::Call& call_;
  const Extents extents_;
  const Operands& operands_;
  const std::uint64_t epoch_;
  const bool copied_;
};

}  // namespace jax_flux::test

#endif  // JAX_FLUX_TESTS_CC_SIM_KERNELS_H_
