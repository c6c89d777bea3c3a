// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The actions of a thread, but for its work (protocol_model_work.cc): launches, entries, gates,
// ends.
#include <string>

#include "tests/cc/protocol_model.h"

namespace jax_flux::test {

using namespace protocol;

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
