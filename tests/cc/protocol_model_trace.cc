// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What a state at rest means, and the words of a trace.
#include <string>

#include "tests/cc/protocol_model.h"

namespace jax_flux::test {

using namespace protocol;

const char* Name(BreakKind kind) {
  static const char* const kNames[] = {
      "none",          "deadlock",        "wrong data",      "two writers",   "flag backwards",
      "too far ahead", "mismatch passed", "mismatch unseen", "false mismatch"};
  return kNames[static_cast<int>(kind)];
}

Break Model::AtRest(const State& rest) const {
  State state = rest;
  bool failed = false;
  std::string waiting;
  for (int rank = 0; rank < config_.world; ++rank) {
    const Context at = Enter(&state, rank * threads_per_rank_);
    failed |= at.words->failed != 0;
    if (at.call == nullptr || at.words->failed) continue;
    waiting += (waiting.empty() ? "rank " : ", rank ") + std::to_string(rank) + " in call " +
               std::to_string(at.words->call + 1);
  }
  if (waiting.empty()) return {};
  return {failed ? BreakKind::kMismatchUnseen : BreakKind::kDeadlock,
          waiting + (failed ? " waits on" : " waits for ever")};
}

std::string Model::Describe(const State& before, int thread) const {
  State state = before;
  Break found;
  const std::uint8_t failed_before = Enter(&state, thread).words->failed;
  Context at = Enter(&state, thread);
  if (at.call == nullptr) return "";
  const Thread now = *at.thread;
  const int epoch = now.epoch;
  int peer = 0;
  std::string text;
  switch (now.pc) {
    case kStart:
      text = "call " + std::to_string(at.words->call + 1) + ": reads epoch " +
             std::to_string(at.control->epoch);
      break;
    case kPost:
      text = "enters at rank " + std::to_string(PushPeerAt(at.rank, config_.world, now.step));
      break;
    case kPushData:
    case kTileData:
    case kEngine: {
      const Piece piece = PushedPiece(at, &peer);
      text = "writes piece " + std::to_string(piece.index) + " to rank " + std::to_string(peer);
      break;
    }
    case kPushFlag:
    case kTileFlag:
      PushedPiece(at, &peer);
      text = "flags it " + std::to_string(epoch);
      break;
    case kEngineFlag:
      text = "copies the flag " + std::to_string(config_.fault == Fault::kLiveEpochCopied
                                                     ? at.control->epoch
                                                     : at.control->source);
      break;
    case kClaimPush:
      text = "claims push " + std::to_string(at.control->pushes);
      break;
    case kClaimTile:
      text = "claims tile " + std::to_string(config_.fault == Fault::kStaticSchedule
                                                 ? at.cta + now.next * Ctas(at.rank)
                                                 : at.control->tiles);
      break;
    case kAwait:
      text = "reads a piece";
      break;
    case kGateWait:
      text = "passes the gate";
      break;
    case kArrive:
      text = "arrives";
      break;
    case kEnd:
      text = "ends the call";
      break;
    default:
      break;
  }
  if (!Step(&state, thread, &found)) return "";
  at = Enter(&state, thread);
  if (at.words->failed != failed_before) text = "fails: another site";
  // Claims only matter to the faults in who claims what.
  const bool claim = now.pc == kClaimPush || now.pc == kClaimTile;
  if (claim && config_.fault != Fault::kEarlyEpoch && config_.fault != Fault::kWaitBeforePush &&
      config_.fault != Fault::kStaticSchedule) {
    return "";
  }
  static const char* const kRoles[] = {"", " pusher", " beside it: copy engine"};
  return "cta " + std::to_string(at.cta) + kRoles[at.role] + " " + text;
}

}  // namespace jax_flux::test
