// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Meeting of the threads of one process that drive the ranks of one group, by host means alone.
#ifndef JAX_FLUX_CUDA_RUNTIME_RENDEZVOUS_H_
#define JAX_FLUX_CUDA_RUNTIME_RENDEZVOUS_H_

#include <cstdint>
#include <tuple>

namespace jax_flux::runtime {

// Group, plan and step: equal for the threads that meet, never reused.
using MeetingKey = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;

// Returns when `count` threads have called it with this key; false after `limit_s` seconds.
bool Meet(const MeetingKey& key, int count, double limit_s);

}  // namespace jax_flux::runtime

#endif  // JAX_FLUX_CUDA_RUNTIME_RENDEZVOUS_H_
