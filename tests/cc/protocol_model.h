// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The protocol as an explicit-state model: W ranks, each a sequence of calls, each call one or two
// launches, each launch a few CTAs of one or two threads. Addresses, orders and indices come from
// cuda/protocol; only the step granularity is the model's own.
//
// One action of one thread is atomic. Joined into one action, because later is always at least as
// bad: an await with the read behind it (flags only grow, which is asserted on every store), and
// the stores of one chunk. Apart: reading the epoch, each entry, each claim, a chunk's data and its
// flag, each peer's partial of a tile, arriving, and the end of the last CTA.
#ifndef JAX_FLUX_TESTS_CC_PROTOCOL_MODEL_H_
#define JAX_FLUX_TESTS_CC_PROTOCOL_MODEL_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cuda/protocol/layout.h"
#include "cuda/protocol/schedule.h"

namespace jax_flux::test {

enum class ModelOp : std::uint8_t {
  kAg,          // pushes its chunks, reads everybody's
  kRs,          // pushes foreign tiles, own tiles read every peer's partial
  kBroadcast,   // rank 0 pushes to all and waits for nobody: no data flow back
  kBackward,    // launch 1: RS and a pusher for x; launch 2 reads the AG slots
  kCopyEngine,  // one-CTA gate, then copies beside a GEMM; slots without parity
  kCopyPair,    // the same with two GEMMs, a tuple of weights: the copies may outlast the first
};

struct ModelCall {
  ModelOp op;
  int pieces;      // chunks (AG) or tiles (RS) per segment: 1 is a small call, 2 a large one
  int generation;  // 0 or 1
  int site;        // 1..15, also the identity of the data
};

// Deliberate faults: the negative controls.
enum class Fault : std::uint8_t {
  kNone,
  kHalfPerCall,       // half size depends on the call
  kFlagRowPerCall,    // flag-row stride depends on the call
  kEarlyEpoch,        // the first CTA to arrive advances the epoch
  kSharedAreas,       // AG and RS transfers share flags and slots
  kSkippedEntry,      // nobody waits for entries
  kLiveEpochCopied,   // flag copies read the epoch word: last finished epoch
  kLiveNextCopied,    // the same with a word that holds the running epoch until the call ends
  kWaitBeforePush,    // waiting tiles are claimed before pushes
  kStaticSchedule,    // tile t belongs to CTA t mod the number of CTAs
  kCheckOnlyAwaited,  // a wait looks at the awaited peer's entry only
  kWaitBeforeSend,    // a packed RS tile waits for its own partials before it sends
  kTrapUnannounced,   // a mismatch traps although the rank's entry may not be posted yet
  kNoGate,            // copies start without waiting for the peers' entries
  kCopiesInAgArea,    // copies use flags and slots of the AG area
};

enum class BreakKind : std::uint8_t {
  kNone,
  kDeadlock,
  kWrongData,       // a read saw another call's data
  kTwoWriters,      // a flag word written by two ranks
  kFlagBackwards,   // a flag or entry that does not grow
  kTooFarAhead,     // a rank more than one call ahead
  kMismatchPassed,  // a rank finished a call that a peer did not make
  kMismatchUnseen,  // a rank is left waiting although the orders differ
  kFalseMismatch,   // a rank fails although both make the same call
  kCount,
};
const char* Name(BreakKind kind);

struct ModelConfig {
  std::string name;
  int world = 2;
  std::vector<std::vector<ModelCall>> programs;  // one for all ranks, or one per rank
  std::vector<int> ctas;                         // per rank; one entry for all
  bool pusher_thread = false;                    // AG: pushes in a second thread of each CTA
  int resident = 99;                             // CTAs of a rank that can run at once
  int pack = 0;                                  // segments of a tile; 0: tiles of one segment
  Fault fault = Fault::kNone;
  std::uint32_t ignored = 0;  // mask of break kinds to look past
};

inline constexpr int kMaxStateBytes = 1024;
struct State {
  std::array<std::uint8_t, kMaxStateBytes> bytes;
};

struct Break {
  BreakKind kind = BreakKind::kNone;
  std::string text;
};

class Model {
 public:
  explicit Model(const ModelConfig& config);

  int StateBytes() const { return state_bytes_; }
  int Threads() const { return config_.world * threads_per_rank_; }
  int RankOf(int thread) const { return thread / threads_per_rank_; }
  State Initial() const;
  // Runs the next action of `thread` in place. False if it is blocked, ended or failed; the state
  // is then unchanged.
  bool Step(State* state, int thread, Break* found) const;
  // What is wrong with a state in which no thread can move.
  Break AtRest(const State& state) const;
  // The next action of `thread`, for a trace; empty if it cannot move.
  std::string Describe(const State& state, int thread) const;

 private:
  enum Pc : std::uint8_t {
    kStart,
    kPost,
    kGateWait,
    kClaimPush,
    kPushData,
    kPushFlag,
    kClaimTile,
    kTileData,
    kTileFlag,
    kAwait,
    kArrive,
    kEnd,
    kEngine,
    kEngineFlag,
    kExit,
  };
  // One thread's record in the state.
  struct Thread {
    std::uint8_t pc, item, step, epoch, next;
  };
  struct RankWords {
    std::uint8_t call, launch, failed;
  };
  struct Control {
    std::uint8_t epoch, tiles, pushes, done, source;
  };
  struct Launch {
    bool pushes = false, rs_tiles = false, ag_tiles = false, gate = false, engine = false;
    bool first = true, last = true;
  };
  enum class Area { kAg, kRs, kEngine };
  struct Piece {  // one transfer: who wrote it, which piece, where its flag and data lie
    Area area;
    int source, index;
  };

  // A packed tile: parts to send or to wait for, and whether an own part waits for partials.
  struct Packed {
    int parts, flag;
    int segment;  // of the part at hand
    bool has_own;
  };

  // What one action works on.
  struct Context {
    State* state;
    int rank, cta, role;  // role 0: main, 1: pusher, 2: copy engine
    std::uint8_t* block;  // the rank's part of the state
    RankWords* words;
    Control* control;
    Thread* thread;
    const ModelCall* call;
    Launch launch;
    Break* found;

    void Report(BreakKind kind, std::string text) const {
      if (found->kind == BreakKind::kNone) *found = {kind, std::move(text)};
    }
  };

  const ModelCall& CallOf(int rank, int call) const;
  int CallCount(int rank) const { return static_cast<int>(Program(rank).size()); }
  const std::vector<ModelCall>& Program(int rank) const;
  int Ctas(int rank) const;
  Launch LaunchOf(const ModelCall& call, int launch) const;
  int LaunchCount(const ModelCall& call) const;
  protocol::TileGrid Tiles(const ModelCall& call, int rank) const;
  protocol::ChunkGrid Chunks(const ModelCall& call) const;
  int ItemCount(const Context& at) const;
  int PushCount(const Context& at) const;

  // Addresses, as bytes of a workspace, then as cells of the state.
  std::uint64_t FlagAddress(const ModelCall& call, const Piece& piece) const;
  std::uint64_t DataAddress(const ModelCall& call, const Piece& piece, std::uint64_t epoch) const;
  void AddCell(int generation, std::uint64_t address, int writer);
  void AddCells();
  int Cell(int generation, std::uint64_t address) const;
  std::uint8_t* At(State* state, int rank, int cell) const;

  Context Enter(State* state, int thread) const;
  bool Blocked(const Context& at) const;
  bool StepStart(Context* at) const;
  bool StepPost(Context* at) const;
  bool StepGate(Context* at) const;
  bool StepPush(Context* at) const;
  bool StepTile(Context* at) const;
  bool StepAwait(Context* at) const;
  bool StepEngine(Context* at) const;
  bool StepFinish(Context* at) const;
  void BeginWork(Context* at) const;
  Packed PackedItem(const Context& at) const;
  void BeginPacked(Context* at) const;
  void AfterPackedPart(Context* at) const;
  void Exit(Context* at) const;
  void EndLaunch(Context* at) const;
  void CheckAhead(Context* at) const;
  bool SpinCheck(Context* at, int awaited) const;
  void AnnounceTrap(Context* at) const;
  bool EntriesSeen(Context* at) const;
  void StoreFlag(Context* at, int peer, const Piece& piece, std::uint8_t value) const;
  void StoreData(Context* at, int peer, const Piece& piece) const;
  void ReadData(Context* at, const Piece& piece) const;
  Piece PushedPiece(const Context& at, int* peer) const;
  std::uint8_t Tag(const ModelCall& call, const Piece& piece) const;

  ModelConfig config_;
  int threads_per_rank_ = 0;
  int max_ctas_ = 0;
  int cell_count_ = 0;
  int state_bytes_ = 0;
  bool mixed_programs_ = false;
  std::array<protocol::GenerationLayout, 2> layouts_;
  std::array<std::map<std::uint64_t, int>, 2> cell_map_;
  std::array<std::vector<std::int16_t>, 2> cell_table_;
  std::vector<std::vector<int>> writers_;  // of each cell, in each rank's workspace; -1: nobody
};

}  // namespace jax_flux::test

#endif  // JAX_FLUX_TESTS_CC_PROTOCOL_MODEL_H_
