// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
#include "tests/cc/explore.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tests/cc/check.h"

namespace jax_flux::test {
namespace {

struct Hash {
  std::uint64_t a, b;
  bool operator==(const Hash& other) const { return a == other.a && b == other.b; }
};

std::uint64_t Mix(std::uint64_t x, std::uint64_t y) {
  const unsigned __int128 product = static_cast<unsigned __int128>(x) * y;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

Hash HashOf(const State& state, int bytes) {
  Hash h{0x9e3779b97f4a7c15u, 0xc2b2ae3d27d4eb4fu};
  for (int at = 0; at < bytes; at += 8) {
    std::uint64_t word;
    std::memcpy(&word, state.bytes.data() + at, 8);
    h.a = Mix(h.a ^ word, 0xa0761d6478bd642fu) + 0xe7037ed1a0b428dbu;
    h.b = Mix(h.b + word, 0x8ebc6af09c88c6e3u) ^ 0x589965cc75374cc3u;
  }
  if (h.a == 0 && h.b == 0) h.a = 1;
  return h;
}

// Open addressing; the value is the number of ways from a state to an end.
class Visited {
 public:
  // Null if new, else the value kept with the state.
  double* Find(const Hash& hash) {
    for (std::size_t at = hash.a & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].hash == hash) return &slots_[at].ways;
      if (slots_[at].hash == Hash{0, 0}) return nullptr;
    }
  }
  void Insert(const Hash& hash) {
    if (2 * (count_ + 1) > slots_.size()) Grow();
    Place({hash, 0});
    count_ += 1;
  }
  std::uint64_t size() const { return count_; }

 private:
  struct Slot {
    Hash hash;
    double ways;
  };
  void Place(const Slot& slot) {
    std::size_t at = slot.hash.a & (slots_.size() - 1);
    while (!(slots_[at].hash == Hash{0, 0})) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = slot;
  }
  void Grow() {
    std::vector<Slot> old(slots_.size() * 2, Slot{{0, 0}, 0});
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (!(slot.hash == Hash{0, 0})) Place(slot);
    }
  }
  std::vector<Slot> slots_ = std::vector<Slot>(1 << 12, Slot{{0, 0}, 0});
  std::uint64_t count_ = 0;
};

bool Counts(const Break& found, std::uint32_t ignored) {
  return found.kind != BreakKind::kNone && !(ignored >> static_cast<int>(found.kind) & 1);
}

void Copy(const State& from, State* to, int bytes) {
  std::memcpy(to->bytes.data(), from.bytes.data(), static_cast<std::size_t>(bytes));
}

struct Frame {
  State state;
  Hash hash;
  int next_thread = 0;
  bool moved = false;
  double ways = 0;
};

}  // namespace

// Every execution is finite: a step moves its thread forward, and waits are guards, not loops. So
// the state graph has no cycle and depth-first search meets every state and every dead end.
Explored ExploreAll(const Model& model, std::uint32_t ignored, std::uint64_t max_states) {
  Explored result;
  const int bytes = model.StateBytes();
  Visited visited;
  std::vector<Frame> stack(1);
  std::size_t depth = 1;
  stack[0].state = model.Initial();
  stack[0].hash = HashOf(stack[0].state, bytes);
  visited.Insert(stack[0].hash);
  std::vector<int> path;
  while (depth > 0) {
    if (stack.size() == depth) stack.emplace_back();
    Frame& top = stack[depth - 1];
    if (top.next_thread == model.Threads()) {
      if (!top.moved) {
        top.ways = 1;
        result.found = model.AtRest(top.state);
        if (Counts(result.found, ignored)) break;
      }
      *visited.Find(top.hash) = top.ways;
      depth -= 1;
      if (depth > 0) {
        stack[depth - 1].ways += top.ways;
        path.pop_back();
      }
      continue;
    }
    Frame& next = stack[depth];
    const int thread = top.next_thread++;
    Copy(top.state, &next.state, bytes);
    Break found;
    if (!model.Step(&next.state, thread, &found)) continue;
    top.moved = true;
    result.steps += 1;
    path.push_back(thread);
    if (Counts(found, ignored)) {
      result.found = found;
      break;
    }
    next.hash = HashOf(next.state, bytes);
    if (const double* ways = visited.Find(next.hash)) {
      top.ways += *ways;
      path.pop_back();
      continue;
    }
    if (visited.size() >= max_states) {
      result.complete = false;
      break;
    }
    visited.Insert(next.hash);
    next.next_thread = 0;
    next.moved = false;
    next.ways = 0;
    depth += 1;
  }
  if (!Counts(result.found, ignored)) result.found = {};
  result.states = visited.size();
  result.interleavings = stack[0].ways;
  result.threads = path;
  return result;
}

Explored FindNearest(const Model& model, std::uint32_t ignored, std::uint64_t max_states) {
  struct Node {
    std::uint32_t parent;
    std::int32_t thread;
  };
  Explored result;
  const auto bytes = static_cast<std::size_t>(model.StateBytes());
  Visited visited;
  std::vector<Node> nodes;
  std::vector<std::uint8_t> states;  // of `nodes`, packed
  const auto add = [&](const State& state, std::uint32_t parent, int thread) {
    nodes.push_back({parent, thread});
    states.insert(states.end(), state.bytes.begin(),
                  state.bytes.begin() + static_cast<std::ptrdiff_t>(bytes));
  };
  const auto finish = [&](std::size_t node, int thread, const Break& found) {
    result.found = found;
    if (thread >= 0) result.threads.push_back(thread);
    for (; node != 0; node = nodes[node].parent) result.threads.push_back(nodes[node].thread);
    std::reverse(result.threads.begin(), result.threads.end());
  };
  State state = model.Initial();
  State next = state;
  visited.Insert(HashOf(state, static_cast<int>(bytes)));
  add(state, 0, -1);
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    std::memcpy(state.bytes.data(), states.data() + node * bytes, bytes);
    bool moved = false;
    for (int thread = 0; thread < model.Threads(); ++thread) {
      Copy(state, &next, static_cast<int>(bytes));
      Break found;
      if (!model.Step(&next, thread, &found)) continue;
      moved = true;
      result.steps += 1;
      if (Counts(found, ignored)) {
        finish(node, thread, found);
        result.states = visited.size();
        return result;
      }
      const Hash hash = HashOf(next, static_cast<int>(bytes));
      if (visited.Find(hash) != nullptr) continue;
      visited.Insert(hash);
      add(next, static_cast<std::uint32_t>(node), thread);
    }
    const Break rest = moved ? Break{} : model.AtRest(state);
    if (Counts(rest, ignored)) {
      finish(node, -1, rest);
      break;
    }
    if (nodes.size() >= max_states) {
      result.complete = false;
      break;
    }
  }
  result.states = visited.size();
  return result;
}

namespace {

// Reorders the steps of a trace so that a rank runs on while it can. Empty if the break is lost.
std::vector<int> Grouped(const Model& model, const Explored& explored, std::uint32_t ignored) {
  std::vector<int> left(static_cast<std::size_t>(model.Threads()), 0);
  for (int thread : explored.threads) left[static_cast<std::size_t>(thread)] += 1;
  State state = model.Initial();
  std::vector<int> order;
  int last = explored.threads[0];
  while (order.size() < explored.threads.size()) {
    bool moved = false;
    for (int choice = 0; choice < model.Threads() && !moved; ++choice) {
      const int thread = (last + choice) % model.Threads();
      if (left[static_cast<std::size_t>(thread)] == 0) continue;
      State next = state;
      Break found;
      if (!model.Step(&next, thread, &found)) continue;
      if (Counts(found, ignored) && order.size() + 1 < explored.threads.size()) {
        if (found.kind == explored.found.kind) {
          order.push_back(thread);
          return order;
        }
        return {};
      }
      left[static_cast<std::size_t>(thread)] -= 1;
      order.push_back(thread);
      state = next;
      last = thread;
      moved = true;
      if (order.size() == explored.threads.size() && Counts(found, ignored)) return order;
    }
    if (!moved) return {};
  }
  bool stuck = true;
  for (int thread = 0; thread < model.Threads(); ++thread) {
    State next = state;
    Break found;
    stuck = stuck && !model.Step(&next, thread, &found);
  }
  return stuck && Counts(model.AtRest(state), ignored) ? order : std::vector<int>{};
}

}  // namespace

std::string Trace(const Model& model, const Explored& explored, std::uint32_t ignored) {
  std::vector<int> order = Grouped(model, explored, ignored);
  if (order.empty()) order = explored.threads;
  State state = model.Initial();
  std::string text;
  int last_rank = -1;
  std::string last_actor;
  for (int thread : order) {
    const std::string what = model.Describe(state, thread);
    const int rank = model.RankOf(thread);
    Break found;
    model.Step(&state, thread, &found);
    if (what.empty()) continue;
    if (rank != last_rank) {
      text += (text.empty() ? "" : "\n") + std::string("    rank ") + std::to_string(rank) + ":";
      last_actor.clear();
    }
    // "cta 0" is named when the actor changes.
    std::size_t split = what.find(' ', 4);
    for (const char* role : {" pusher", " beside it: copy engine"}) {
      if (what.compare(split, std::strlen(role), role) == 0) split += std::strlen(role);
    }
    const std::string actor = what.substr(0, split);
    text += actor == last_actor ? "," : (last_actor.empty() ? " " : "; ") + actor;
    text += what.substr(split);
    last_actor = actor;
    last_rank = rank;
  }
  return text + "\n    => " + Name(explored.found.kind) + ": " + explored.found.text + "\n";
}

}  // namespace jax_flux::test
