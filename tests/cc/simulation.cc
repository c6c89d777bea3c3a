// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
#include "tests/cc/simulation.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>

namespace jax_flux::test {

using namespace protocol;

namespace {

// The stream of one rank: a launch begins when all threads of the last one have ended.
class LaunchBarrier {
 public:
  explicit LaunchBarrier(int threads) : threads_(threads) {}

  // The last to arrive runs `between` alone. Throws if the rank trapped meanwhile.
  template <class Between>
  void Wait(const std::atomic<bool>& trapped, Between between) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (++arrived_ == threads_) {
      between();
      arrived_ = 0;
      round_ += 1;
      changed_.notify_all();
      return;
    }
    const long round = round_;
    while (round_ == round) {
      changed_.wait_for(lock, std::chrono::milliseconds(20));
      if (trapped.load(std::memory_order_relaxed)) throw Trapped();
    }
  }

 private:
  const int threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  long round_ = 0;
};

// Small integers, another set for every rank, call and operand.
float Value(int operand, int rank, long call, std::uint64_t index) {
  std::uint64_t h = index * 0x9e3779b97f4a7c15u +
                    static_cast<std::uint64_t>(call) * 0xbf58476d1ce4e5b9u +
                    static_cast<std::uint64_t>(rank * 4 + operand) * 0x94d049bb133111ebu;
  h ^= h >> 31;
  h *= 0xd6e8feb86659fd93u;
  return static_cast<float>(static_cast<int>(h >> 33) % 4);
}

// Scales that make a float32 sum depend on its order.
float Scale(int rank) { return static_cast<float>(1 << (10 * (rank % 3))); }

GenerationLayout LayoutFor(const std::vector<Extents>& shapes, int world) {
  GenerationShape shape{world, 0, 0, 0, 0, 0, 0};
  for (const Extents& extents : shapes) {
    const std::int32_t tiles = extents.Tiles(world, 0).SegmentTiles();
    const auto ranks = static_cast<std::uint64_t>(world);
    shape.ag_flags = std::max(shape.ag_flags, extents.Chunks().Flags());
    shape.rs_flags = std::max(shape.rs_flags, tiles);
    shape.ag_half_bytes =
        std::max(shape.ag_half_bytes, ranks * extents.ShardFloats() * sizeof(float));
    shape.copy_flags = std::max(shape.copy_flags, extents.Pieces().Count());
    shape.copy_bytes = shape.ag_half_bytes;
    shape.rs_half_bytes = std::max(shape.rs_half_bytes, ranks * static_cast<std::uint64_t>(tiles) *
                                                            extents.TileFloats() * sizeof(float));
  }
  return {shape};
}

struct Rank {
  Rank(int threads, int ctas) : barrier(threads), pushers_done(static_cast<std::size_t>(ctas)) {}

  LaunchBarrier barrier;
  std::atomic<bool> trapped{false};
  std::vector<std::unique_ptr<Workspace>> workspaces;  // per generation
  std::vector<std::atomic<int>> pushers_done;          // per CTA: launches whose pusher has ended
  std::atomic<int> ended_ctas{0};                      // of all launches so far
  FailureRecord record{};
  // Written between launches only.
  std::vector<float> x, w, rs_x, y;
  Call call{};
  Extents extents{};
  Operands operands{};
  SimOp op = SimOp::kCopy;
  int launch = 0;    // of the running call
  int launches = 0;  // of all calls so far
  int call_index = -1;
};

class Simulation {
 public:
  explicit Simulation(const SimConfig& config) : config_(config) {
    const auto small = static_cast<std::ptrdiff_t>(
        std::min<std::size_t>(config.shapes.size(), static_cast<std::size_t>(config.small_shapes)));
    layouts_.push_back(
        LayoutFor({config.shapes.begin(), config.shapes.begin() + small}, config.world));
    layouts_.push_back(LayoutFor(config.shapes, config.world));
    for (int rank = 0; rank < config.world; ++rank) {
      ranks_.push_back(std::make_unique<Rank>(2 * Ctas(rank), Ctas(rank)));
      for (const GenerationLayout& layout : layouts_) {
        ranks_.back()->workspaces.push_back(std::make_unique<Workspace>(layout));
      }
    }
  }

  SimResult Run() {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < config_.world; ++rank) {
      if (rank == config_.absent_rank) continue;
      for (int cta = 0; cta < Ctas(rank); ++cta) {
        for (int role = 0; role < 2; ++role) {
          threads.emplace_back([this, rank, cta, role] { Thread(rank, cta, role); });
        }
      }
    }
    for (std::thread& thread : threads) thread.join();
    SimResult result;
    for (const auto& rank : ranks_) {
      result.records.push_back(rank->record);
      result.finished_calls.push_back(rank->call_index < 0 ? 0 : rank->call_index);
    }
    result.wrong = wrong_;
    return result;
  }

 private:
  int Ctas(int rank) const {
    return config_.ctas[config_.ctas.size() > 1 ? static_cast<std::size_t>(rank) : 0];
  }
  const std::vector<SimCall>& Program(int rank) const {
    return config_.programs[config_.programs.size() > 1 ? static_cast<std::size_t>(rank) : 0];
  }

  void Thread(int rank_index, int cta, int role) {
    Rank& rank = *ranks_[static_cast<std::size_t>(rank_index)];
    this_thread_context = {
        &rank.trapped,
        config_.seed * 1000003u + static_cast<std::uint64_t>(rank_index * 64 + cta * 2 + role),
        config_.delay_one_in};
    try {
      for (;;) {
        rank.barrier.Wait(rank.trapped, [&] { Between(rank_index); });
        if (rank.call_index == static_cast<int>(Program(rank_index).size())) return;
        switch (config_.fault) {
          case SimFault::kNone:
            Launch<OrderedMemory, FlagPlace::kAfterData>(&rank, cta, role, Ctas(rank_index));
            break;
          case SimFault::kRelaxedFlag:
            Launch<RelaxedMemory, FlagPlace::kAfterData>(&rank, cta, role, Ctas(rank_index));
            break;
          case SimFault::kFlagBeforeData:
            Launch<OrderedMemory, FlagPlace::kBeforeData>(&rank, cta, role, Ctas(rank_index));
            break;
        }
      }
    } catch (const Trapped&) {
    }
  }

  // One thread's part of a launch. Role 1 is the CTA's idle warp: it pushes; role 0 does the rest
  // and ends the CTA after role 1 has ended.
  template <class Mem, FlagPlace kFlagPlace>
  void Launch(Rank* rank, int cta, int role, int ctas) {
    RandomDelay();
    // A CTA of a launch that does not fit starts when an earlier one has left its place.
    const int before = (rank->launches - 1) * ctas + cta - config_.resident;
    while (rank->ended_ctas.load(std::memory_order_acquire) <= before) Mem::Pause();
    const bool copied = rank->op == SimOp::kCopied;
    const Kernel<Mem, kFlagPlace> kernel(rank->call, rank->extents, rank->operands, copied);
    const bool first = rank->call.first_launch;
    std::atomic<int>& pusher_done = rank->pushers_done[static_cast<std::size_t>(cta)];
    if (role == 1) {
      // In the copy-only op one role does both, in the order of the tickets.
      const bool pushes = rank->op == SimOp::kAg || (rank->op == SimOp::kBackward && first);
      if (pushes) kernel.Push();
      // Forked behind the gate and joined with the launch, as the side streams are.
      if (copied && !first && cta == 0) kernel.CopyPieces();
      pusher_done.store(rank->launches, std::memory_order_release);
      return;
    }
    if (copied && first) {  // the gate is a launch of one CTA
      if (cta == 0) kernel.OpenGate();
      rank->ended_ctas.fetch_add(1, std::memory_order_release);
      return;
    }
    if (cta == 0 && first) kernel.Enter();
    if (rank->op == SimOp::kCopy) {
      kernel.Push();
      kernel.CopyOut();
    } else if (rank->op == SimOp::kBroadcast) {
      if (rank->call.rank == 0) {
        kernel.Push();
      } else {
        kernel.ReceiveShard(0);
      }
    } else if (rank->op == SimOp::kRs || (rank->op == SimOp::kBackward && first)) {
      kernel.ReducedTiles();
    } else {
      kernel.GatheredTiles();
    }
    while (pusher_done.load(std::memory_order_acquire) < rank->launches) Mem::Pause();
    kernel.Finish(static_cast<std::uint32_t>(ctas), cta == 0);
    rank->ended_ctas.fetch_add(1, std::memory_order_release);
  }

  // Alone on the rank: checks the call that has ended and sets up the next launch.
  void Between(int rank_index) {
    Rank& rank = *ranks_[static_cast<std::size_t>(rank_index)];
    const std::vector<SimCall>& program = Program(rank_index);
    rank.launches += 1;
    const bool ended = rank.call_index < 0 || rank.call.last_launch;
    if (rank.call_index >= 0) Check(rank_index);
    if (ended) {
      rank.call_index += 1;
      rank.launch = 0;
      if (rank.call_index == static_cast<int>(program.size())) return;
      Fill(rank_index, program[static_cast<std::size_t>(rank.call_index)]);
    } else {
      rank.launch += 1;
      rank.call.first_launch = false;
      rank.call.last_launch = true;
    }
    std::fill(rank.y.begin(), rank.y.end(), std::numeric_limits<float>::quiet_NaN());
    if (rank_index == config_.delayed_rank) {
      const auto us = this_thread_context.Random() % static_cast<std::uint32_t>(config_.delay_us);
      std::this_thread::sleep_for(std::chrono::microseconds(config_.delay_us / 2 + us / 2));
    }
  }

  void Fill(int rank_index, const SimCall& sim_call) {
    Rank& rank = *ranks_[static_cast<std::size_t>(rank_index)];
    rank.op = sim_call.op;
    rank.extents = config_.shapes[static_cast<std::size_t>(sim_call.shape)];
    const Extents& e = rank.extents;
    const std::size_t generation = sim_call.shape < config_.small_shapes ? 0 : 1;
    Call& call = rank.call;
    for (int peer = 0; peer < config_.world; ++peer) {
      call.base[peer] = ranks_[static_cast<std::size_t>(peer)]->workspaces[generation]->bytes();
    }
    call.layout = layouts_[generation];
    call.rank = rank_index;
    call.world = config_.world;
    call.op = sim_call.op == SimOp::kCopy                                  ? Op::kAllGatherCopy
              : sim_call.op == SimOp::kAg || sim_call.op == SimOp::kCopied ? Op::kAgMatmul
                                                                           : Op::kMatmulRs;
    call.first_launch = true;
    call.last_launch = sim_call.op != SimOp::kBackward && sim_call.op != SimOp::kCopied;
    call.site = sim_call.site;
    call.deadline = config_.deadline;
    call.record = &rank.record;

    rank.x = Matrix(0, rank_index, rank.call_index, e.ShardFloats(), 1);
    rank.w = Matrix(1, rank_index, rank.call_index,
                    static_cast<std::uint64_t>(e.depth) * static_cast<std::uint64_t>(e.columns),
                    Scale(rank_index));
    rank.rs_x = Matrix(2, rank_index, rank.call_index,
                       e.ShardFloats() * static_cast<std::uint64_t>(config_.world), 1);
    rank.y.resize(static_cast<std::size_t>(config_.world * e.batch * e.rows) *
                  static_cast<std::size_t>(std::max(e.columns, e.depth)));
    rank.operands = {rank.x.data(), rank.w.data(), rank.rs_x.data(), rank.y.data()};
  }

  static std::vector<float> Matrix(int operand, int rank, long call, std::uint64_t size,
                                   float scale) {
    std::vector<float> values(size);
    for (std::uint64_t i = 0; i < size; ++i) values[i] = Value(operand, rank, call, i) * scale;
    return values;
  }

  // Compares y with what the operands of all ranks give, bit for bit.
  void Check(int rank_index) {
    const Rank& rank = *ranks_[static_cast<std::size_t>(rank_index)];
    if (rank.op == SimOp::kCopied && rank.call.first_launch) return;
    const bool reduced =
        rank.op == SimOp::kRs || (rank.op == SimOp::kBackward && rank.call.first_launch);
    std::vector<float> expected = reduced ? ExpectReduced(rank, rank_index) : ExpectGathered(rank);
    if (rank.op == SimOp::kBroadcast) {
      expected = Matrix(0, 0, rank.call_index, rank.extents.ShardFloats(), 1);
      if (rank_index == 0) expected.clear();
    }
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (rank.y[i] == expected[i]) continue;
      const std::lock_guard<std::mutex> lock(wrong_mutex_);
      if (!wrong_.empty()) return;
      wrong_ = "rank " + std::to_string(rank_index) + " of " + std::to_string(config_.world) +
               ", call " + std::to_string(rank.call_index) + ", op " +
               std::to_string(static_cast<int>(rank.op)) + ", y[" + std::to_string(i) +
               "] = " + std::to_string(rank.y[i]) + ", expected " + std::to_string(expected[i]);
      return;
    }
  }

  std::vector<float> ExpectGathered(const Rank& rank) const {
    const Extents& e = rank.extents;
    std::vector<float> expected;
    std::vector<std::vector<float>> shards;
    for (int source = 0; source < config_.world; ++source) {
      shards.push_back(Matrix(0, source, rank.call_index, e.ShardFloats(), 1));
    }
    for (int b = 0; b < e.batch; ++b) {
      for (const std::vector<float>& shard : shards) {
        for (int row = 0; row < e.rows; ++row) {
          const float* x = shard.data() + (b * e.rows + row) * e.depth;
          if (rank.op == SimOp::kCopy) {
            expected.insert(expected.end(), x, x + e.depth);
            continue;
          }
          for (int column = 0; column < e.columns; ++column) {
            expected.push_back(Dot(x, rank.w, column, e));
          }
        }
      }
    }
    return expected;
  }

  std::vector<float> ExpectReduced(const Rank& rank, int owner) const {
    const Extents& e = rank.extents;
    std::vector<float> expected(static_cast<std::size_t>(e.batch * e.rows * e.columns), 0.0f);
    for (int source = 0; source < config_.world; ++source) {
      const std::vector<float> x =
          Matrix(2, source, rank.call_index,
                 e.ShardFloats() * static_cast<std::uint64_t>(config_.world), 1);
      const std::vector<float> w =
          Matrix(1, source, rank.call_index,
                 static_cast<std::uint64_t>(e.depth) * static_cast<std::uint64_t>(e.columns),
                 Scale(source));
      std::size_t i = 0;
      for (int b = 0; b < e.batch; ++b) {
        for (int row = 0; row < e.rows; ++row) {
          const float* at = x.data() + ((b * config_.world + owner) * e.rows + row) * e.depth;
          for (int column = 0; column < e.columns; ++column) {
            expected[i++] += Dot(at, w, column, e);
          }
        }
      }
    }
    return expected;
  }

  static float Dot(const float* x, const std::vector<float>& w, int column, const Extents& e) {
    float sum = 0;
    for (int k = 0; k < e.depth; ++k) {
      sum += x[k] * w[static_cast<std::size_t>(k * e.columns + column)];
    }
    return sum;
  }

  const SimConfig config_;
  std::vector<GenerationLayout> layouts_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::mutex wrong_mutex_;
  std::string wrong_;
};

}  // namespace

SimResult Simulate(const SimConfig& config) { return Simulation(config).Run(); }

}  // namespace jax_flux::test
