// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Seam 1, integers only: ticket -> tile, ticket -> push, tile -> chunks and flags.
// Tickets are claimed in protocol order: whatever never waits comes before whatever may wait, so
// one resident CTA is enough to finish a call.
#ifndef JAX_FLUX_CUDA_PROTOCOL_SCHEDULE_H_
#define JAX_FLUX_CUDA_PROTOCOL_SCHEDULE_H_

#include "cuda/protocol/base.h"

namespace jax_flux::protocol {

// Order in which a rank works through the W segments.
enum class SegmentOrder : std::int32_t {
  kOwnFirst,  // all-gather: own, r-1, r-2, ...: own waits for nobody, r-1 sends to us first
  kOwnLast,   // reduce-scatter: r+1, r+2, ..., own: foreign tiles wait for nobody
};

JAX_FLUX_HD std::int32_t SegmentAt(SegmentOrder order, std::int32_t rank, std::int32_t world,
                                   std::int32_t step) {
  return order == SegmentOrder::kOwnFirst ? (rank + world - step) % world
                                          : (rank + 1 + step) % world;
}

// Receiver of push step s: r+1 needs our shard first, and no two ranks hit one receiver in a step.
// Step W-1 is the rank itself.
JAX_FLUX_HD std::int32_t PushPeerAt(std::int32_t rank, std::int32_t world, std::int32_t step) {
  return (rank + 1 + step) % world;
}

// Source of the partial that an owner adds at a step: the rank that made it first, r-1, begins (its
// first segment is ours), and r+1, whose last foreign segment is ours, ends.
JAX_FLUX_HD std::int32_t PartialSourceAt(std::int32_t rank, std::int32_t world, std::int32_t step) {
  return (rank + world - 1 - step) % world;
}

// Tiles of an output of W segments x batch x rows x columns. A tile is what one cluster claims;
// none straddles a segment or a batch, so ragged rows need no padding.
struct TileGrid {
  std::int32_t world;
  std::int32_t rank;
  std::int32_t batch;
  std::int32_t rows;       // rows of one segment (m_local)
  std::int32_t columns;    // n
  std::int32_t tile_rows;  // rows of a cluster tile
  std::int32_t tile_columns;
  std::int32_t group;  // raster: tile rows walked together before the next tile column
  // Peers' segments that share one sweep over the columns. Short segments one by one would each
  // read all of w from memory again.
  std::int32_t sweep = 1;
  // Segments that one tile packs below each other, tile_rows each (rows <= tile_rows); 0: a tile
  // holds rows of one segment. Then all segments, own too, share the one walk over the columns.
  std::int32_t pack = 0;

  JAX_FLUX_HD std::int32_t RowTiles() const { return CeilDiv(rows, tile_rows); }
  JAX_FLUX_HD std::int32_t ColumnTiles() const { return CeilDiv(columns, tile_columns); }
  JAX_FLUX_HD std::int32_t SegmentTiles() const { return batch * RowTiles() * ColumnTiles(); }
  // Tiles that all segments of one (batch, column) make when packed.
  JAX_FLUX_HD std::int32_t Packs() const { return CeilDiv(world, pack); }
  JAX_FLUX_HD std::int32_t TotalTiles() const {
    return pack > 0 ? batch * ColumnTiles() * Packs() : world * SegmentTiles();
  }
  // Index of a tile inside its segment; sender and owner derive the same flag from it.
  JAX_FLUX_HD std::int32_t FlagIndex(std::int32_t b, std::int32_t i, std::int32_t j) const {
    return (b * RowTiles() + i) * ColumnTiles() + j;
  }
};

struct TileCoord {
  std::int32_t step;     // position in the segment order, 0 .. W-1; in the order of packs
  std::int32_t segment;  // rank that owns (RS) or sent (AG) these rows; the first of a pack
  std::int32_t batch;
  std::int32_t i;  // tile row inside the segment
  std::int32_t j;  // tile column
};

// Packed tiles: column by column, all packs of a column before the next. A walk over the columns is
// a walk over w, so w is read once. A pack holds segments in the order of ranks, so that one TMA
// instruction loads them all. What may wait then comes before what does not; it ends all the same,
// because every rank walks the same columns (docs/protocol.md, Packed tiles).
JAX_FLUX_HD TileCoord PackedTileAt(const TileGrid& grid, SegmentOrder order, std::int32_t ticket) {
  const std::int32_t packs = grid.Packs();
  const std::int32_t column = ticket / packs;
  TileCoord at;
  at.step = ticket - column * packs;
  at.segment = SegmentAt(order, grid.rank / grid.pack, packs, at.step) * grid.pack;
  at.batch = column / grid.ColumnTiles();
  at.i = 0;
  at.j = column - at.batch * grid.ColumnTiles();
  return at;
}

// Segments that exist of `capacity` from `first` on: the last pack may be short, and a CTA's part
// of it empty.
JAX_FLUX_HD std::int32_t PackedSegments(const TileGrid& grid, std::int32_t first,
                                        std::int32_t capacity) {
  const std::int32_t left = grid.world - first;
  return left < 0 ? 0 : left < capacity ? left : capacity;
}

// Grouped raster inside (segments of a sweep, batch): `group` tile rows share a walk over the
// columns, which keeps their A rows in L2 while B streams through. The own segment is a sweep of
// its own: what never waits stays before what may.
JAX_FLUX_HD TileCoord TileAt(const TileGrid& grid, SegmentOrder order, std::int32_t ticket) {
  const std::int32_t row_tiles = grid.RowTiles();
  const std::int32_t column_tiles = grid.ColumnTiles();
  const std::int32_t segment_tiles = grid.batch * row_tiles * column_tiles;
  const std::int32_t foreign = grid.world - 1;
  const std::int32_t first_foreign = order == SegmentOrder::kOwnFirst ? 1 : 0;
  std::int32_t first_step = ticket / segment_tiles;
  std::int32_t steps = 1;
  const std::int32_t place = first_step - first_foreign;
  if (place >= 0 && place < foreign) {
    const std::int32_t base = place / grid.sweep * grid.sweep;
    first_step = first_foreign + base;
    steps = foreign - base < grid.sweep ? foreign - base : grid.sweep;
  }
  std::int32_t rest = ticket - first_step * segment_tiles;
  const std::int32_t rows = steps * row_tiles;
  TileCoord at;
  at.batch = rest / (rows * column_tiles);
  rest -= at.batch * rows * column_tiles;
  const std::int32_t first = rest / (grid.group * column_tiles) * grid.group;
  const std::int32_t height = rows - first < grid.group ? rows - first : grid.group;
  rest -= first * column_tiles;
  const std::int32_t row = first + rest % height;
  at.step = first_step + row / row_tiles;
  at.segment = SegmentAt(order, grid.rank, grid.world, at.step);
  at.i = row % row_tiles;
  at.j = rest / height;
  return at;
}

// A shard cut into chunks: the unit that one pusher sends and one flag announces.
struct ChunkGrid {
  std::int32_t batch;
  std::int32_t rows;   // m_local
  std::int32_t depth;  // k
  std::int32_t chunk_rows;
  std::int32_t chunk_depth;
  bool depth_outer;  // send all rows of a k range first (small m) or all k of a row range
  // Peers that are served in turn, chunk by chunk; the next ones after all chunks of these.
  std::int32_t peers = 1;
  // The own shard goes to the own slot too, last: packed tiles load all segments in one go.
  bool to_self = false;

  JAX_FLUX_HD std::int32_t Receivers(std::int32_t world) const {
    return to_self ? world : world - 1;
  }
  JAX_FLUX_HD std::int32_t RowChunks() const { return CeilDiv(rows, chunk_rows); }
  JAX_FLUX_HD std::int32_t DepthChunks() const { return CeilDiv(depth, chunk_depth); }
  JAX_FLUX_HD std::int32_t Count() const { return batch * RowChunks() * DepthChunks(); }
  JAX_FLUX_HD std::int32_t FlagIndex(std::int32_t b, std::int32_t r, std::int32_t d) const {
    return (b * RowChunks() + r) * DepthChunks() + d;
  }
  // One more flag: the whole shard is there. It saves later tiles the look at every chunk's.
  JAX_FLUX_HD std::int32_t WholeFlag() const { return Count(); }
  JAX_FLUX_HD std::int32_t Flags() const { return Count() + 1; }
};

struct ChunkCoord {
  std::int32_t batch;
  std::int32_t row_chunk;
  std::int32_t depth_chunk;
};

JAX_FLUX_HD ChunkCoord ChunkAt(const ChunkGrid& grid, std::int32_t index) {
  const std::int32_t row_chunks = grid.RowChunks();
  const std::int32_t depth_chunks = grid.DepthChunks();
  const std::int32_t plane = row_chunks * depth_chunks;
  ChunkCoord at;
  at.batch = index / plane;
  const std::int32_t rest = index - at.batch * plane;
  at.row_chunk = grid.depth_outer ? rest % row_chunks : rest / depth_chunks;
  at.depth_chunk = grid.depth_outer ? rest / row_chunks : rest % depth_chunks;
  return at;
}

struct PushCoord {
  std::int32_t peer;
  ChunkCoord chunk;
};

// Pushes by ticket: every chunk to the first `peers` of r+1, r+2, ..., then to the next ones:
// farthest-needed last. All ranks count alike, so no two of them hit one receiver at a ticket.
JAX_FLUX_HD PushCoord PushAt(const ChunkGrid& grid, std::int32_t rank, std::int32_t world,
                             std::int32_t ticket) {
  const std::int32_t count = grid.Count();
  const std::int32_t first = ticket / count / grid.peers * grid.peers;
  const std::int32_t left = grid.Receivers(world) - first;
  const std::int32_t peers = left < grid.peers ? left : grid.peers;
  const std::int32_t rest = ticket - first * count;
  return {PushPeerAt(rank, world, first + rest % peers), ChunkAt(grid, rest / peers)};
}

JAX_FLUX_HD std::int32_t TotalPushes(const ChunkGrid& grid, std::int32_t world) {
  return grid.Receivers(world) * grid.Count();
}

}  // namespace jax_flux::protocol

#endif  // JAX_FLUX_CUDA_PROTOCOL_SCHEDULE_H_
