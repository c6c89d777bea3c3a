// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The actions of a thread: what one step of each kind does to the state.
#include <string>

#include "tests/cc/protocol_model.h"

namespace jax_flux::test {

using namespace protocol;

// --- data and flags ------------------------------------------------------------------------------

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

// --- actions -------------------------------------------------------------------------------------

State Model::Initial() const {
  State state;
  state.bytes.fill(0);
  for (int rank = 0; rank < config_.world; ++rank) {
    Context at = Enter(&state, rank * threads_per_rank_);
    if (config_.fault == Fault::kLiveNextCopied) at.control->source = 1;
    // Before the first call: as after a launch that has just ended.
    at.words->launch = 0xff;
    EndLaunch(&at);
  }
  return state;
}

// The stream: the next launch begins when every thread of the last one has ended.
void Model::EndLaunch(Context* at) const {
  const bool start = at->words->launch == 0xff;
  at->words->launch = static_cast<std::uint8_t>(start ? 0 : at->words->launch + 1);
  if (!start && at->words->launch == LaunchCount(*at->call)) {
    at->words->launch = 0;
    at->words->call += 1;
    CheckAhead(at);
  }
  const int first = at->rank * threads_per_rank_;
  for (int local = 0; local < threads_per_rank_; ++local) {
    Context other = Enter(at->state, first + local);
    bool runs = other.call != nullptr;
    if (runs && other.role == 2) {
      // Forked behind the gate, the first launch; joined behind the last one.
      const bool forked = other.launch.engine && other.words->launch == 1;
      if (forked || other.launch.first) {
        *other.thread = {static_cast<std::uint8_t>(forked ? kEngine : kExit), 0, 0, 0, 0};
      }
      continue;
    }
    runs = runs && other.cta < (other.launch.gate ? 1 : Ctas(at->rank));
    runs = runs && (other.role == 0 || other.launch.pushes);
    *other.thread = {static_cast<std::uint8_t>(runs ? kStart : kExit), 0, 0, 0, 0};
  }
}

// At the end of a call: nobody more than one behind, and everybody makes the same call.
void Model::CheckAhead(Context* at) const {
  const int finished = at->words->call;
  for (int peer = 0; peer < config_.world; ++peer) {
    const Context other = Enter(at->state, peer * threads_per_rank_);
    if (other.words->call < finished - 1) {
      at->Report(BreakKind::kTooFarAhead, "rank " + std::to_string(at->rank) +
                                              " has finished call " + std::to_string(finished) +
                                              " before rank " + std::to_string(peer) +
                                              " has finished call " + std::to_string(finished - 1));
    }
    if (mixed_programs_ && CallOf(peer, finished - 1).site != CallOf(at->rank, finished - 1).site) {
      at->Report(BreakKind::kMismatchPassed, "rank " + std::to_string(at->rank) +
                                                 " finished a call that rank " +
                                                 std::to_string(peer) + " does not make");
    }
  }
}

void Model::Exit(Context* at) const {
  *at->thread = {kExit, 0, 0, 0, 0};
  const auto* threads =
      reinterpret_cast<const Thread*>(at->block + sizeof(RankWords) + 2 * sizeof(Control));
  for (int local = 0; local < threads_per_rank_; ++local) {
    const bool engine = at->launch.engine && local == threads_per_rank_ - 1;
    if (threads[local].pc != kExit && !(engine && !at->launch.last)) return;
  }
  EndLaunch(at);
}

void Model::BeginWork(Context* at) const {
  at->thread->step = 0;
  at->thread->item = 0;
  const bool here = at->launch.pushes && (at->role == 1 || !config_.pusher_thread);
  const bool wait_first = config_.fault == Fault::kWaitBeforePush;
  at->thread->pc = here && !(wait_first && at->role == 0) ? kClaimPush : kClaimTile;
}

bool Model::StepStart(Context* at) const {
  // A CTA starts when one of the device's places for it is free.
  int running = 0;
  const int roles = config_.pusher_thread ? 2 : 1;
  const auto* threads = at->thread - (at->cta * roles + at->role);
  for (int cta = 0; cta < max_ctas_; ++cta) {
    const std::uint8_t pc = threads[cta * roles].pc;
    running += pc != kStart && pc != kExit;
  }
  if (running >= config_.resident) return false;
  at->thread->epoch = static_cast<std::uint8_t>(at->control->epoch + 1);
  if (at->cta == 0 && at->role == 0 && at->launch.first && config_.world > 1) {
    at->thread->pc = kPost;
  } else {
    BeginWork(at);
  }
  return true;
}

bool Model::StepPost(Context* at) const {
  const int peer = PushPeerAt(at->rank, config_.world, at->thread->step);
  const auto& layout = layouts_[static_cast<std::size_t>(at->call->generation)];
  const std::uint64_t address = layout.EntryOffset(at->rank, at->thread->epoch);
  std::uint8_t* entry = At(at->state, peer, Cell(at->call->generation, address));
  std::uint8_t* site = At(at->state, peer, Cell(at->call->generation, address + kFlagBytes));
  // With mixed programs the two words are stored apart, the site first.
  if (mixed_programs_ && at->thread->next == 0) {
    *site = static_cast<std::uint8_t>(at->call->site);
    at->thread->next = 1;
    return true;
  }
  if (*entry >= at->thread->epoch) {
    at->Report(BreakKind::kFlagBackwards, "entry of rank " + std::to_string(at->rank));
  }
  *site = static_cast<std::uint8_t>(at->call->site);
  *entry = at->thread->epoch;
  at->thread->next = 0;
  at->thread->step += 1;
  if (at->thread->step < config_.world - 1) return true;
  at->thread->step = 0;
  if (at->launch.gate) {
    at->thread->pc = kGateWait;
  } else {
    BeginWork(at);
  }
  return true;
}

// A rank that fails on a mismatch stores its entry first, whoever was to post it.
void Model::AnnounceTrap(Context* at) const {
  const auto& layout = layouts_[static_cast<std::size_t>(at->call->generation)];
  const std::uint64_t address = layout.EntryOffset(at->rank, at->thread->epoch);
  const int entry = Cell(at->call->generation, address);
  const int site = Cell(at->call->generation, address + kFlagBytes);
  for (int step = 0; step < config_.world - 1; ++step) {
    const int peer = PushPeerAt(at->rank, config_.world, step);
    *At(at->state, peer, site) = static_cast<std::uint8_t>(at->call->site);
    *At(at->state, peer, entry) = at->thread->epoch;
  }
}

// Fails the rank if a peer looked at has entered this epoch with another site.
bool Model::SpinCheck(Context* at, int awaited) const {
  if (!mixed_programs_) return false;
  const auto& layout = layouts_[static_cast<std::size_t>(at->call->generation)];
  for (int step = 0; step < config_.world - 1; ++step) {
    const int peer = PushPeerAt(at->rank, config_.world, step);
    if (config_.fault == Fault::kCheckOnlyAwaited && awaited >= 0 && peer != awaited) continue;
    const std::uint64_t address = layout.EntryOffset(peer, at->thread->epoch);
    const int entry = Cell(at->call->generation, address);
    const int site = Cell(at->call->generation, address + kFlagBytes);
    if (*At(at->state, at->rank, entry) == at->thread->epoch &&
        *At(at->state, at->rank, site) != at->call->site) {
      if (CallOf(peer, at->words->call).site == at->call->site) {
        at->Report(BreakKind::kFalseMismatch, "rank " + std::to_string(at->rank) + " takes rank " +
                                                  std::to_string(peer) + " to make another call");
      }
      at->words->failed = 1;
      if (config_.fault != Fault::kTrapUnannounced) AnnounceTrap(at);
      return true;
    }
  }
  return false;
}

bool Model::EntriesSeen(Context* at) const {
  const auto& layout = layouts_[static_cast<std::size_t>(at->call->generation)];
  for (int step = 0; step < config_.world - 1; ++step) {
    const int peer = PushPeerAt(at->rank, config_.world, step);
    const std::uint64_t address = layout.EntryOffset(peer, at->thread->epoch);
    if (*At(at->state, at->rank, Cell(at->call->generation, address)) < at->thread->epoch) {
      return false;
    }
  }
  return true;
}

bool Model::StepGate(Context* at) const {
  if (config_.fault != Fault::kNoGate) {
    if (SpinCheck(at, -1)) return true;
    if (!EntriesSeen(at)) return false;
  }
  if (config_.fault != Fault::kLiveNextCopied) at->control->source = at->thread->epoch;
  Exit(at);
  return true;
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

bool Model::StepFinish(Context* at) const {
  const bool early = config_.fault == Fault::kEarlyEpoch;
  const int ctas = at->launch.gate ? 1 : Ctas(at->rank);
  if (at->thread->pc == kArrive) {
    if (config_.pusher_thread && at->thread[1].pc != kExit) return false;
    if (at->cta == 0 && at->launch.last && config_.fault != Fault::kSkippedEntry) {
      if (SpinCheck(at, -1)) return true;
      if (!EntriesSeen(at)) return false;
    }
    at->control->done += 1;
    const bool last = at->control->done == ctas;
    const bool ends = early ? at->control->done == 1 : last;
    if (early && last) at->control->done = 0;
    if (ends) {
      at->thread->pc = kEnd;
    } else {
      Exit(at);
    }
    return true;
  }
  at->control->tiles = at->control->pushes = 0;
  if (!early) at->control->done = 0;
  if (at->launch.last) {
    at->control->epoch = at->thread->epoch;
    if (config_.fault == Fault::kLiveNextCopied) {
      at->control->source = static_cast<std::uint8_t>(at->thread->epoch + 1);
    }
  }
  Exit(at);
  return true;
}

bool Model::Step(State* state, int thread, Break* found) const {
  Context at = Enter(state, thread);
  at.found = found;
  if (at.call == nullptr || at.words->failed) return false;
  switch (at.thread->pc) {
    case kStart:
      return StepStart(&at);
    case kPost:
      return StepPost(&at);
    case kGateWait:
      return StepGate(&at);
    case kClaimPush:
    case kPushData:
    case kPushFlag:
    case kTileData:
    case kTileFlag:
      return StepPush(&at);
    case kClaimTile:
      return StepTile(&at);
    case kAwait:
      return StepAwait(&at);
    case kEngine:
    case kEngineFlag:
      return StepEngine(&at);
    case kArrive:
    case kEnd:
      return StepFinish(&at);
    default:
      return false;
  }
}

}  // namespace jax_flux::test
