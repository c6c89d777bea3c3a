// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The actions on data, flags and tickets: pushes, tiles, waits, and copies of engines.
#include <string>

#include "tests/cc/protocol_model.h"

namespace jax_flux::test {

using namespace protocol;

std::uint8_t Model::Tag(const ModelCall& call, const Piece& piece) const {
  return static_cast<std::uint8_t>(call.site << 4 | (piece.area == Area::kRs ? 8 : 0) |
                                   piece.source << 1 | piece.index);
}

void Model::StoreData(Context* at, int peer, const Piece& piece) const {
  const std::uint64_t address = DataAddress(*at->call, piece, at->thread->epoch);
  *At(at->state, peer, Cell(at->call->generation, address)) = Tag(*at->call, piece);
}

void Model::StoreFlag(Context* at, int peer, const Piece& piece, std::uint8_t value) const {
  const int cell = Cell(at->call->generation, FlagAddress(*at->call, piece));
  std::uint8_t* word = At(at->state, peer, cell);
  const int writer = writers_[static_cast<std::size_t>(cell)][static_cast<std::size_t>(peer)];
  const std::string where =
      "a flag word at rank " + std::to_string(peer) + ", of rank " + std::to_string(writer) + ",";
  if (writer != at->rank) {
    at->Report(BreakKind::kTwoWriters,
               where + " is also written by rank " + std::to_string(at->rank));
  } else if (*word >= value) {
    at->Report(BreakKind::kFlagBackwards,
               where + " goes from " + std::to_string(*word) + " to " + std::to_string(value));
  }
  *word = value;
}

void Model::ReadData(Context* at, const Piece& piece) const {
  const std::uint64_t address = DataAddress(*at->call, piece, at->thread->epoch);
  const std::uint8_t seen = *At(at->state, at->rank, Cell(at->call->generation, address));
  if (seen == Tag(*at->call, piece) || mixed_programs_) return;
  at->Report(
      BreakKind::kWrongData,
      "rank " + std::to_string(at->rank) + " in call " + std::to_string(at->words->call + 1) +
          " reads piece " + std::to_string(piece.index) + " of rank " +
          std::to_string(piece.source) + " and finds " +
          (seen == 0 ? std::string("nothing yet")
                     : (seen & 8 ? "RS" : "AG") + std::string(" piece ") +
                           std::to_string(seen & 1) + " of rank " + std::to_string(seen >> 1 & 3) +
                           ", call " + std::to_string(seen >> 4)));
}

Model::Piece Model::PushedPiece(const Context& at, int* peer) const {
  const bool tile_part = at.thread->pc == kTileData || at.thread->pc == kTileFlag;
  if (tile_part && config_.pack > 0) {
    const Packed item = PackedItem(at);
    *peer = item.segment;
    return {Area::kRs, at.rank, item.flag};
  }
  if (tile_part) {
    const TileGrid grid = Tiles(*at.call, at.rank);
    const SegmentOrder order =
        config_.fault == Fault::kWaitBeforePush ? SegmentOrder::kOwnFirst : SegmentOrder::kOwnLast;
    const TileCoord tile = TileAt(grid, order, at.thread->item);
    *peer = tile.segment;
    return {Area::kRs, at.rank, grid.FlagIndex(tile.batch, tile.i, tile.j)};
  }
  const ChunkGrid grid = Chunks(*at.call);
  const PushCoord push = PushAt(grid, at.rank, config_.world, at.thread->item);
  *peer = push.peer;
  return {at.role == 2 ? Area::kEngine : Area::kAg, at.rank,
          grid.FlagIndex(push.chunk.batch, push.chunk.row_chunk, push.chunk.depth_chunk)};
}

bool Model::StepPush(Context* at) const {
  if (at->thread->pc == kClaimPush) {
    at->thread->item = at->control->pushes;
    if (at->thread->item < PushCount(*at)) {
      at->control->pushes += 1;
      at->thread->pc = kPushData;
    } else if (at->role == 1) {
      Exit(at);
    } else if (config_.fault == Fault::kWaitBeforePush) {
      at->thread->pc = kArrive;
    } else {
      at->thread->item = 0;
      at->thread->pc = kClaimTile;
    }
    return true;
  }
  int peer = 0;
  const Piece piece = PushedPiece(*at, &peer);
  const bool tile = at->thread->pc == kTileData || at->thread->pc == kTileFlag;
  if (at->thread->pc == kPushData || at->thread->pc == kTileData) {
    StoreData(at, peer, piece);
    at->thread->pc = tile ? kTileFlag : kPushFlag;
  } else {
    StoreFlag(at, peer, piece, at->thread->epoch);
    if (tile && config_.pack > 0) {
      AfterPackedPart(at);
      return true;
    }
    at->thread->item = 0;
    at->thread->pc = tile ? kClaimTile : kClaimPush;
  }
  return true;
}

bool Model::StepTile(Context* at) const {
  const TileGrid grid = Tiles(*at->call, at->rank);
  Thread* thread = at->thread;
  const bool static_schedule = config_.fault == Fault::kStaticSchedule;
  thread->item = static_cast<std::uint8_t>(static_schedule ? at->cta + thread->next * Ctas(at->rank)
                                                           : at->control->tiles);
  const bool none = !at->launch.rs_tiles && !at->launch.ag_tiles;
  if (none || thread->item >= grid.TotalTiles()) {
    const bool pushes_left =
        config_.fault == Fault::kWaitBeforePush && at->launch.pushes && !config_.pusher_thread;
    *thread = {static_cast<std::uint8_t>(pushes_left ? kClaimPush : kArrive), 0, 0, thread->epoch,
               0};
    return true;
  }
  if (static_schedule) {
    thread->next += 1;
  } else {
    at->control->tiles += 1;
  }
  if (config_.pack > 0) {
    BeginPacked(at);
    return true;
  }
  const bool wait_first = config_.fault == Fault::kWaitBeforePush;
  const SegmentOrder order =
      at->launch.rs_tiles && !wait_first ? SegmentOrder::kOwnLast : SegmentOrder::kOwnFirst;
  const int segment = TileAt(grid, order, thread->item).segment;
  thread->step = 0;
  if (at->launch.rs_tiles) {
    thread->pc = segment != at->rank ? kTileData : config_.world > 1 ? kAwait : kClaimTile;
  } else {
    const bool sent = at->call->op != ModelOp::kBroadcast || segment == 0;
    thread->pc = segment != at->rank && sent ? kAwait : kClaimTile;
  }
  if (thread->pc == kClaimTile) thread->item = 0;
  return true;
}

bool Model::StepAwait(Context* at) const {
  const TileGrid grid = Tiles(*at->call, at->rank);
  const bool rs = at->launch.rs_tiles;
  const bool wait_first = config_.fault == Fault::kWaitBeforePush;
  const SegmentOrder order = rs && !wait_first ? SegmentOrder::kOwnLast : SegmentOrder::kOwnFirst;
  const TileCoord tile = TileAt(grid, order, at->thread->item);
  Piece piece{Area::kAg, tile.segment, grid.FlagIndex(tile.batch, tile.i, tile.j)};
  if (config_.pack > 0) {
    const Packed item = PackedItem(*at);
    piece.source = item.segment;
    piece.index = item.flag;
  }
  if (at->launch.engine) piece.area = Area::kEngine;
  if (rs) {  // partials in rank order
    piece.area = Area::kRs;
    piece.source = at->thread->step + (at->thread->step >= at->rank ? 1 : 0);
  }
  const int flag = Cell(at->call->generation, FlagAddress(*at->call, piece));
  if (*At(at->state, at->rank, flag) < at->thread->epoch) return SpinCheck(at, piece.source);
  ReadData(at, piece);
  at->thread->step += 1;
  if (rs && at->thread->step < config_.world - 1) return true;
  if (config_.pack > 0) {
    AfterPackedPart(at);
    return true;
  }
  at->thread->step = 0;
  at->thread->item = 0;
  at->thread->pc = kClaimTile;
  return true;
}

// Copies in streams beside the GEMM: for each push its data, then its flag, whose value the copy
// engine reads from a word of this rank when it gets there. One stream here, in the order of the
// pushes: two in turn only change the order between pieces, each of which has its own flag.
bool Model::StepEngine(Context* at) const {
  int peer = 0;
  at->thread->epoch = 0;
  const Piece piece = PushedPiece(*at, &peer);
  if (at->thread->pc == kEngine) {
    StoreData(at, peer, piece);
    at->thread->pc = kEngineFlag;
    return true;
  }
  const bool live = config_.fault == Fault::kLiveEpochCopied;
  StoreFlag(at, peer, piece, live ? at->control->epoch : at->control->source);
  at->thread->pc = kEngine;
  at->thread->item += 1;
  if (at->thread->item == PushCount(*at)) Exit(at);
  return true;
}

}  // namespace jax_flux::test
