// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Ranks as groups of threads that run a program of fused calls and check every result exactly.
#ifndef JAX_FLUX_TESTS_CC_SIMULATION_H_
#define JAX_FLUX_TESTS_CC_SIMULATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/protocol/record.h"
#include "tests/cc/sim_kernels.h"

namespace jax_flux::test {

// kBroadcast: rank 0 sends its shard and waits for nobody, so only entries keep it in step.
// kCopied: a gate, then a gather by copy engines beside the tiles.
enum class SimOp : std::uint8_t { kCopy, kAg, kRs, kBackward, kCopied, kBroadcast };

struct SimCall {
  SimOp op;
  int shape;  // index into SimConfig::shapes
  std::uint64_t site;
};

// Which memory the threads see: the protocol's own, or a fault.
enum class SimFault { kNone, kRelaxedFlag, kFlagBeforeData };

struct SimConfig {
  int world = 2;
  std::vector<int> ctas = {1};  // per rank, or one for all
  std::vector<Extents> shapes;  // the first `small_shapes` live in the first generation
  int small_shapes = 99;        // the others in a larger second one
  std::vector<std::vector<SimCall>> programs;  // per rank, or one for all
  protocol::Deadline deadline{10'000'000'000u, 25'000'000'000u};
  std::uint32_t delay_one_in = 16;  // of stores and claims
  int delayed_rank = -1;            // sleeps before its launches
  int delay_us = 0;
  int absent_rank = -1;  // never starts
  int resident = 99;     // CTAs of a rank that can run at once
  std::uint64_t seed = 1;
  SimFault fault = SimFault::kNone;
};

struct SimResult {
  std::vector<protocol::FailureRecord> records;  // per rank
  std::vector<int> finished_calls;               // per rank
  std::string wrong;                             // first wrong value, empty if none
};

// Runs the programs to their end, or until a rank has failed. Every wait has a deadline, so it
// returns.
SimResult Simulate(const SimConfig& config);

}  // namespace jax_flux::test

#endif  // JAX_FLUX_TESTS_CC_SIMULATION_H_
