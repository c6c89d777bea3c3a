// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The ring of stages under ping-pong consumers (cuda/kernels/gemm_sm90.cuh) as an explicit-state
// model over all interleavings: does a consumer ever take a stage whose load has not landed? A
// parity tells two uses of a stage apart only to who has seen the one before, and a consumer skips
// the other's tiles; AwaitTurn makes up for that.
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tests/cc/check.h"

namespace jax_flux {
namespace {

struct Case {
  int stages;
  int k_blocks;
  int tiles;
  bool turns;
};

struct State {
  int published = 0;          // tickets
  int issued = 0;             // loads, tile by tile
  std::uint32_t landed = 0;   // bit per load: they land in any order
  std::vector<int> released;  // completions of empty[stage]
  int tile[2] = {0, 1};       // of each consumer
  int block[2] = {0, 0};      // next one to wait for; k_blocks: all seen
  int turn[2] = {0, 0};       // completions of turn[consumer]

  bool operator<(const State& o) const { return Key() < o.Key(); }

 private:
  std::tuple<int, int, std::uint32_t, const std::vector<int>&, int, int, int, int, int, int> Key()
      const {
    return {published, issued,   landed,   released, tile[0],
            tile[1],   block[0], block[1], turn[0],  turn[1]};
  }
};

// mbarrier.try_wait.parity: the phase in progress has the other parity.
bool Passes(int completions, int parity) { return (completions & 1) != parity; }

class Ring {
 public:
  explicit Ring(const Case& given) : case_(given) {}

  // What goes wrong in some interleaving, or nothing.
  std::optional<std::string> Explore() {
    State start;
    start.released.assign(static_cast<std::size_t>(case_.stages), 0);
    Add(start);
    while (!todo_.empty() && !broken_) {
      const State at = todo_.back();
      todo_.pop_back();
      const std::size_t before = successors_;
      Producer(at);
      Memory(at);
      for (int consumer : {0, 1}) Consumer(at, consumer);
      const bool done = at.tile[0] >= case_.tiles && at.tile[1] >= case_.tiles;
      if (successors_ == before && !done && !broken_) broken_ = "deadlock";
    }
    return broken_;
  }

 private:
  void Add(State next) {
    ++successors_;
    if (seen_.insert(next).second) todo_.push_back(std::move(next));
  }
  bool Landed(const State& at, int load) const {
    return load < at.issued && (at.landed >> load & 1) != 0;
  }
  int FullCompletions(const State& at, int stage) const {
    int count = 0;
    for (int load = stage; Landed(at, load); load += case_.stages) ++count;
    return count;
  }

  // Publishes a tile's ticket, then issues its loads.
  void Producer(const State& at) {
    State next = at;
    if (at.issued == at.published * case_.k_blocks) {
      if (at.published == case_.tiles) return;
      ++next.published;
      return Add(next);
    }
    const int stage = at.issued % case_.stages, use = at.issued / case_.stages;
    if (!Passes(at.released[static_cast<std::size_t>(stage)], (use & 1) ^ 1)) return;
    ++next.issued;
    Add(next);
  }

  void Memory(const State& at) {
    for (int load = 0; load < at.issued; ++load) {
      if (Landed(at, load)) continue;
      State next = at;
      next.landed |= 1u << load;
      Add(next);
    }
  }

  // Waits for a stage and releases the one before; after the tile's last, the turn passes.
  void Consumer(const State& at, int consumer) {
    const int tile = at.tile[consumer], block = at.block[consumer];
    if (tile >= case_.tiles || tile >= at.published) return;
    const int load = tile * case_.k_blocks + block;
    State next = at;
    if (block == case_.k_blocks) {
      Release(&next, load - 1);
      next.block[consumer] = 0;
      next.tile[consumer] += 2;
      return Add(next);
    }
    const int own_turn = (tile / 2 ^ (consumer == 0 ? 1 : 0)) & 1;
    if (case_.turns && block == 0 && !Passes(at.turn[consumer], own_turn)) return;
    if (!Passes(FullCompletions(at, load % case_.stages), load / case_.stages & 1)) return;
    if (!Landed(at, load)) {
      broken_ = "tile " + std::to_string(tile) + " takes block " + std::to_string(block) +
                " before it has landed";
      return;
    }
    if (block > 0) Release(&next, load - 1);
    if (++next.block[consumer] == case_.k_blocks) ++next.turn[1 - consumer];
    Add(next);
  }
  void Release(State* next, int load) const {
    ++next->released[static_cast<std::size_t>(load % case_.stages)];
  }

  const Case case_;
  std::set<State> seen_;
  std::vector<State> todo_;
  std::size_t successors_ = 0;
  std::optional<std::string> broken_;
};

void TurnsKeepParitiesApart() {
  for (int stages : {2, 3, 4}) {
    for (int k_blocks = 1; k_blocks <= stages + 2; ++k_blocks) {
      const auto broken = Ring({stages, k_blocks, k_blocks <= 3 ? 6 : 4, true}).Explore();
      CHECK(!broken.has_value(), *broken << ", " << stages << " stages, k of " << k_blocks);
    }
  }
}

void WithoutTurnsAStageIsTakenTooEarly() {
  for (int k_blocks = 1; k_blocks <= 6; ++k_blocks) {
    const bool broken = Ring({4, k_blocks, 4, false}).Explore().has_value();
    CHECK_EQ(broken, k_blocks == 3 || k_blocks == 4, "k of " << k_blocks);
  }
}

}  // namespace
}  // namespace jax_flux

int main() {
  jax_flux::TurnsKeepParitiesApart();
  jax_flux::WithoutTurnsAStageIsTakenTooEarly();
  return 0;
}
