// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Streams of a group for the copies that run beside a kernel of the main stream: forked from it and
// joined to it by events. Under capture the fork draws them into the graph. Made when a plan first
// needs them, never in execute, never destroyed.
#ifndef JAX_FLUX_CUDA_RUNTIME_SIDE_STREAMS_H_
#define JAX_FLUX_CUDA_RUNTIME_SIDE_STREAMS_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>

#include "cuda/protocol/base.h"
#include "cuda/protocol/layout.h"
#include "cuda/runtime/status.h"

namespace jax_flux::runtime {

class SideStreams {
 public:
  // One copies while the other's next copy starts.
  static constexpr int kCount = 2;

  // For the current device.
  static Expected<std::unique_ptr<SideStreams>> Make();

  // Copies zeros into the still unused area of every peer, and waits: whatever the driver sets up
  // at a first copy it does here, where no kernel waits for one.
  Status WarmUp(const protocol::GenerationLayout& layout,
                const std::array<std::uint8_t*, protocol::kMaxWorld>& base, int rank);

  // One fork and join at a time; hold it over all three steps.
  std::mutex& mutex() { return mutex_; }

  // From here on the streams, kCount, follow what `main` has done so far.
  Expected<const cudaStream_t*> Fork(cudaStream_t main);
  // From here on `main` follows what the forked streams do.
  Status Join(cudaStream_t main);

 private:
  struct Set {
    std::array<cudaStream_t, kCount> stream;
    std::array<cudaEvent_t, kCount> done;
    cudaEvent_t forked;
  };
  SideStreams() = default;
  // Captures have streams of their own: one that is being captured must not run other work.
  Expected<Set*> SetFor(cudaStream_t main);

  std::mutex mutex_;
  Set direct_ = {};
  Set captured_ = {};
};

}  // namespace jax_flux::runtime

#endif  // JAX_FLUX_CUDA_RUNTIME_SIDE_STREAMS_H_
