// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Exploration of a Model: depth first over every reachable state, or breadth first to the nearest
// break with its trace.
#ifndef JAX_FLUX_TESTS_CC_EXPLORE_H_
#define JAX_FLUX_TESTS_CC_EXPLORE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/cc/protocol_model.h"

namespace jax_flux::test {

struct Explored {
  std::uint64_t states = 0;
  std::uint64_t steps = 0;   // transitions taken
  double interleavings = 0;  // distinct complete executions (exhaustive search only)
  Break found;               // kNone if every state is right
  std::vector<int> threads;  // who moved, from the start to the break
  bool complete = true;      // false: gave up at max_states
};

// Visits every reachable state once. States are remembered by a 128-bit hash: for 10^7 states the
// chance that two of them share one is below 10^-24.
Explored ExploreAll(const Model& model, std::uint32_t ignored, std::uint64_t max_states);

// The shortest way to a break that is not in `ignored`.
Explored FindNearest(const Model& model, std::uint32_t ignored, std::uint64_t max_states);

// A trace in few lines: the same steps of every thread, each rank kept running as long as it can.
std::string Trace(const Model& model, const Explored& explored, std::uint32_t ignored);

}  // namespace jax_flux::test

#endif  // JAX_FLUX_TESTS_CC_EXPLORE_H_
