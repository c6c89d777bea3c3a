// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// cuda/protocol/schedule.h over many shapes: every tile and push exactly once, in protocol order;
// no two ranks push to one receiver in a step; sender and owner name the same flag.
#include "cuda/protocol/schedule.h"

#include <cstdint>
#include <set>
#include <vector>

#include "tests/cc/check.h"

namespace jax_flux::test {
namespace {

using namespace protocol;

struct Counts {
  long grids = 0;
  long tiles = 0;
  long pushes = 0;
};

void CheckSegments(std::int32_t world) {
  for (SegmentOrder order : {SegmentOrder::kOwnFirst, SegmentOrder::kOwnLast}) {
    for (std::int32_t rank = 0; rank < world; ++rank) {
      std::set<std::int32_t> seen;
      for (std::int32_t step = 0; step < world; ++step) {
        const std::int32_t segment = SegmentAt(order, rank, world, step);
        CHECK(segment >= 0 && segment < world, segment << " of " << world);
        CHECK(seen.insert(segment).second, "segment " << segment << " twice");
        const bool own = segment == rank;
        const std::int32_t own_step = order == SegmentOrder::kOwnFirst ? 0 : world - 1;
        CHECK_EQ(own, step == own_step, "W " << world << ", rank " << rank << ", step " << step);
      }
    }
  }
}

// Each step of pushes is a permutation without fixed point; over the steps it reaches every peer,
// and what a rank needs first is what its peers send first.
void CheckPushSteps(std::int32_t world) {
  for (std::int32_t step = 0; step < world - 1; ++step) {
    std::set<std::int32_t> receivers;
    for (std::int32_t rank = 0; rank < world; ++rank) {
      const std::int32_t peer = PushPeerAt(rank, world, step);
      CHECK(peer >= 0 && peer < world && peer != rank, peer << " from " << rank);
      CHECK(receivers.insert(peer).second, "two ranks push to " << peer << " in step " << step);
      CHECK_EQ(SegmentAt(SegmentOrder::kOwnFirst, peer, world, step + 1), rank,
               "all-gather at W " << world << " needs another segment in step " << step + 1);
      CHECK_EQ(SegmentAt(SegmentOrder::kOwnLast, rank, world, step), peer,
               "reduce-scatter at W " << world << " sends elsewhere in step " << step);
    }
  }
}

void CheckTiles(const TileGrid& grid, SegmentOrder order, Counts* counts) {
  const std::int32_t segment_tiles = grid.SegmentTiles();
  std::vector<int> seen(static_cast<std::size_t>(grid.TotalTiles()), 0);
  std::vector<std::int32_t> first_flags(static_cast<std::size_t>(segment_tiles));
  std::int32_t last_step = 0;
  for (std::int32_t ticket = 0; ticket < grid.TotalTiles(); ++ticket) {
    const TileCoord at = TileAt(grid, order, ticket);
    CHECK(at.batch >= 0 && at.batch < grid.batch, "ticket " << ticket << ", batch " << at.batch);
    CHECK(at.i >= 0 && at.i < grid.RowTiles(), "ticket " << ticket << ", row tile " << at.i);
    CHECK(at.j >= 0 && at.j < grid.ColumnTiles(), "ticket " << ticket << ", column " << at.j);
    // No tile is empty, and none leaves its segment.
    CHECK(at.i * grid.tile_rows < grid.rows, "ticket " << ticket);
    CHECK(at.j * grid.tile_columns < grid.columns, "ticket " << ticket);
    CHECK_EQ(at.segment, SegmentAt(order, grid.rank, grid.world, at.step), "ticket " << ticket);
    if (grid.sweep == 1) {
      CHECK(at.step == last_step || at.step == last_step + 1, "ticket " << ticket);
    } else {  // steps mix inside a sweep only, and the own segment with none
      const std::int32_t first = order == SegmentOrder::kOwnFirst ? 1 : 0;
      const std::int32_t place = ticket / segment_tiles;
      if (place >= first && place < first + grid.world - 1) {
        CHECK_EQ((at.step - first) / grid.sweep, (place - first) / grid.sweep, "ticket " << ticket);
      } else {
        CHECK_EQ(at.step, place, "ticket " << ticket);
      }
    }
    last_step = at.step;
    const std::int32_t flag = grid.FlagIndex(at.batch, at.i, at.j);
    CHECK(flag >= 0 && flag < segment_tiles, "ticket " << ticket << ", flag " << flag);
    seen[static_cast<std::size_t>(at.segment * segment_tiles + flag)] += 1;
    // The raster inside a segment is the same in every step and on every rank.
    const std::int32_t place = ticket % segment_tiles;
    if (grid.sweep == 1) {
      if (at.step == 0) first_flags[static_cast<std::size_t>(place)] = flag;
      CHECK_EQ(first_flags[static_cast<std::size_t>(place)], flag, "ticket " << ticket);
    }
    counts->tiles += 1;
  }
  for (int times : seen) CHECK_EQ(times, 1, "a tile visited not once");
  counts->grids += 1;
}

// Packed tiles: every (segment, batch, column) in exactly one of them; all packs of a column before
// the next, in the same column order on every rank; own part in the last (RS) or first (AG) pack.
void CheckPackedTiles(const TileGrid& grid, SegmentOrder order, Counts* counts) {
  const std::int32_t flags = grid.SegmentTiles();
  CHECK_EQ(grid.RowTiles(), 1, "a segment lies in one tile");
  CHECK_EQ(flags, grid.batch * grid.ColumnTiles(), "flags of a segment");
  std::vector<int> seen(static_cast<std::size_t>(grid.world * flags), 0);
  for (std::int32_t ticket = 0; ticket < grid.TotalTiles(); ++ticket) {
    const TileCoord at = PackedTileAt(grid, order, ticket);
    const std::int32_t pack = ticket % grid.Packs();
    CHECK_EQ(at.step, pack, "ticket " << ticket);
    CHECK_EQ(at.i, 0, "ticket " << ticket);
    CHECK_EQ(at.segment % grid.pack, 0, "ticket " << ticket);
    const std::int32_t flag = grid.FlagIndex(at.batch, at.i, at.j);
    CHECK_EQ(flag, ticket / grid.Packs(), "columns come in flag order");
    const std::int32_t count = PackedSegments(grid, at.segment, grid.pack);
    CHECK(count >= 1, "ticket " << ticket << " is empty");
    for (std::int32_t s = 0; s < count; ++s) {
      seen[static_cast<std::size_t>((at.segment + s) * flags + flag)] += 1;
      const std::int32_t own_pack = order == SegmentOrder::kOwnFirst ? 0 : grid.Packs() - 1;
      if (at.segment + s == grid.rank) CHECK_EQ(pack, own_pack, "ticket " << ticket);
    }
    counts->tiles += 1;
  }
  for (int times : seen) CHECK_EQ(times, 1, "a packed part visited not once");
  CHECK_EQ(PackedSegments(grid, grid.world, grid.pack), 0, "past the last segment");
  counts->grids += 1;
}

void CheckChunks(const ChunkGrid& grid, std::int32_t world, Counts* counts) {
  std::vector<std::int32_t> flags;
  for (std::int32_t index = 0; index < grid.Count(); ++index) {
    const ChunkCoord at = ChunkAt(grid, index);
    CHECK(at.batch >= 0 && at.batch < grid.batch, index);
    CHECK(at.row_chunk >= 0 && at.row_chunk * grid.chunk_rows < grid.rows, index);
    CHECK(at.depth_chunk >= 0 && at.depth_chunk * grid.chunk_depth < grid.depth, index);
    if (index > 0) {
      const ChunkCoord before = ChunkAt(grid, index - 1);
      if (before.batch == at.batch) {
        CHECK(grid.depth_outer ? before.depth_chunk <= at.depth_chunk
                               : before.row_chunk <= at.row_chunk,
              index);
      } else {
        CHECK_EQ(before.batch + 1, at.batch, index);
      }
    }
    flags.push_back(grid.FlagIndex(at.batch, at.row_chunk, at.depth_chunk));
  }
  CHECK_EQ(std::set<std::int32_t>(flags.begin(), flags.end()).size(), flags.size(), "flag twice");
  for (std::int32_t flag : flags) CHECK(flag >= 0 && flag < grid.Count(), flag);

  for (std::int32_t rank = 0; rank < world; ++rank) {
    std::set<std::pair<std::int32_t, std::int32_t>> sent;
    for (std::int32_t ticket = 0; ticket < TotalPushes(grid, world); ++ticket) {
      const PushCoord push = PushAt(grid, rank, world, ticket);
      const ChunkCoord at = push.chunk;
      const std::int32_t step = (push.peer - rank - 1 + world) % world;
      CHECK_EQ(step / grid.peers, ticket / grid.Count() / grid.peers, "turn of " << ticket);
      // No two ranks hit one receiver at a ticket.
      CHECK_EQ(PushAt(grid, 0, world, ticket).peer, PushPeerAt(0, world, step), ticket);
      CHECK(sent.insert({push.peer, grid.FlagIndex(at.batch, at.row_chunk, at.depth_chunk)}).second,
            "pushed twice: ticket " << ticket);
      counts->pushes += 1;
    }
    CHECK_EQ(sent.size(), static_cast<std::size_t>(grid.Receivers(world) * grid.Count()),
             "pushes missing");
  }
  counts->grids += 1;
}

// Sender and owner hold different ranks in their grids and different visiting orders, and derive
// the same flag from a tile's place in its segment.
void CheckFlagsAgree(TileGrid sender, TileGrid owner) {
  for (std::int32_t ticket = 0; ticket < sender.TotalTiles(); ++ticket) {
    const TileCoord at = TileAt(sender, SegmentOrder::kOwnLast, ticket);
    if (at.segment != owner.rank) continue;
    bool found = false;
    for (std::int32_t own = 0; own < owner.TotalTiles() && !found; ++own) {
      const TileCoord there = TileAt(owner, SegmentOrder::kOwnLast, own);
      found =
          there.segment == owner.rank && there.batch == at.batch && there.i == at.i &&
          there.j == at.j &&
          owner.FlagIndex(there.batch, there.i, there.j) == sender.FlagIndex(at.batch, at.i, at.j);
    }
    CHECK(found, "ticket " << ticket << " of rank " << sender.rank << " has no owner tile");
  }
}

}  // namespace
}  // namespace jax_flux::test

int main() {
  using namespace jax_flux::test;
  const Stopwatch stopwatch;
  Counts counts;
  for (std::int32_t world = 1; world <= kMaxWorld; ++world) {
    CheckSegments(world);
    CheckPushSteps(world);
    for (std::int32_t batch : {1, 3}) {
      for (std::int32_t rows : {1, 127, 128, 129, 1000}) {
        for (std::int32_t columns : {8, 192, 200, 1537}) {
          for (std::int32_t group : {1, 2, 3, 64}) {
            for (std::int32_t rank : {0, world - 1}) {
              for (std::int32_t sweep : {1, 2, 3, 7}) {
                const TileGrid grid{world, rank, batch, rows, columns, 128, 192, group, sweep};
                CheckTiles(grid, SegmentOrder::kOwnFirst, &counts);
                CheckTiles(grid, SegmentOrder::kOwnLast, &counts);
              }
            }
          }
        }
        for (std::int32_t pack : {1, 2, 3, 8, 16}) {
          for (std::int32_t rank : {0, world - 1}) {
            const TileGrid grid{world, rank, batch, rows, 1537, 1024, 192, 1, 1, pack};
            CheckPackedTiles(grid, SegmentOrder::kOwnFirst, &counts);
            CheckPackedTiles(grid, SegmentOrder::kOwnLast, &counts);
          }
        }
        for (std::int32_t depth : {8, 64, 500}) {
          for (bool depth_outer : {false, true}) {
            for (std::int32_t peers : {1, 2, 3, 7}) {
              CheckChunks({batch, rows, depth, 128, 64, depth_outer, peers}, world, &counts);
              CheckChunks({batch, rows, depth, 48, 512, depth_outer, peers}, world, &counts);
              CheckChunks({batch, rows, depth, 48, 64, depth_outer, peers, true}, world, &counts);
            }
          }
        }
      }
    }
    for (std::int32_t other = 1; other < world; ++other) {
      CheckFlagsAgree({world, 0, 2, 300, 500, 128, 192, 2},
                      {world, other, 2, 300, 500, 128, 192, 2});
      CheckFlagsAgree({world, 0, 2, 300, 500, 128, 192, 2, 2},
                      {world, other, 2, 300, 500, 128, 192, 2, 2});
    }
  }
  std::printf("schedule_test: %ld grids, %ld tiles, %ld pushes, %.1f s\n", counts.grids,
              counts.tiles, counts.pushes, stopwatch.Seconds());
  return 0;
}
