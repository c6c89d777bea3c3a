// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Packed tiles in the model: a ticket stands for parts of several segments. Thread::next is the
// part at hand. A matmul_rs tile sends every foreign part, then waits for partials of its own; an
// ag_matmul tile waits for each part, the own one too, which its rank sends to itself. One thread
// does it all in sequence: of the streams and CTAs that share a tile on the device none waits for
// more than that.
#include "tests/cc/protocol_model.h"

namespace jax_flux::test {

using namespace protocol;

Model::Packed Model::PackedItem(const Context& at) const {
  const TileGrid grid = Tiles(*at.call, at.rank);
  const SegmentOrder order = at.launch.rs_tiles ? SegmentOrder::kOwnLast : SegmentOrder::kOwnFirst;
  const TileCoord tile = PackedTileAt(grid, order, at.thread->item);
  const int count = PackedSegments(grid, tile.segment, grid.pack);
  const int own = at.rank - tile.segment;
  Packed item;
  item.flag = grid.FlagIndex(tile.batch, tile.i, tile.j);
  item.has_own = at.launch.rs_tiles && own >= 0 && own < count;
  item.parts = count - (item.has_own ? 1 : 0);
  const int skip = item.has_own && at.thread->next >= own ? 1 : 0;
  item.segment = tile.segment + at.thread->next + skip;
  return item;
}

// Where a thread goes after it has claimed a packed tile, and after each of its parts.
void Model::BeginPacked(Context* at) const {
  at->thread->next = 0;
  const Packed item = PackedItem(*at);
  if (!at->launch.rs_tiles) {
    at->thread->pc = kAwait;
  } else if (item.has_own && (item.parts == 0 || config_.fault == Fault::kWaitBeforeSend)) {
    at->thread->pc = config_.world > 1 ? kAwait : kClaimTile;
  } else {
    at->thread->pc = kTileData;
  }
  if (at->thread->pc == kClaimTile) at->thread->item = at->thread->next = 0;
}

void Model::AfterPackedPart(Context* at) const {
  const Packed item = PackedItem(*at);
  const bool sent = at->thread->pc == kTileFlag;
  const bool wait_first = config_.fault == Fault::kWaitBeforeSend;
  at->thread->step = 0;
  if (sent || !at->launch.rs_tiles) {
    at->thread->next += 1;
    if (at->thread->next < item.parts) {
      at->thread->pc = sent ? kTileData : kAwait;
      return;
    }
    if (sent && item.has_own && !wait_first) {
      at->thread->pc = kAwait;
      return;
    }
  } else if (wait_first && item.parts > 0) {
    at->thread->pc = kTileData;
    return;
  }
  at->thread->item = at->thread->next = 0;
  at->thread->pc = kClaimTile;
}

}  // namespace jax_flux::test
