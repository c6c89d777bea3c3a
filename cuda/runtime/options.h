// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What the process environment sets, read once.
#ifndef JAX_FLUX_CUDA_RUNTIME_OPTIONS_H_
#define JAX_FLUX_CUDA_RUNTIME_OPTIONS_H_

#include <cstdint>

#include "cuda/protocol/record.h"

namespace jax_flux::runtime {

struct Options {
  double warn_s = 30;      // JAX_FLUX_WARN_S: a wait longer than this is reported, and goes on
  double timeout_s = 600;  // JAX_FLUX_TIMEOUT_S: a wait longer than this is an error
  double queue_s = 86400;  // JAX_FLUX_QUEUE_S: the device's own work before a plan's first run
  double grace_s = 30;     // JAX_FLUX_GRACE_S: a failed device must be known to CUDA by then

  protocol::Deadline Deadline() const {
    return {static_cast<std::uint64_t>(warn_s * 1e9), static_cast<std::uint64_t>(timeout_s * 1e9)};
  }
  static const Options& Get();
};

}  // namespace jax_flux::runtime

#endif  // JAX_FLUX_CUDA_RUNTIME_OPTIONS_H_
