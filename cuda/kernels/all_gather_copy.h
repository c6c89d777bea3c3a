// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Argument of the copy-only all-gather. Route: ffi/all_gather_copy.cc fills it, the kernel reads
// it.
#ifndef JAX_FLUX_CUDA_KERNELS_ALL_GATHER_COPY_H_
#define JAX_FLUX_CUDA_KERNELS_ALL_GATHER_COPY_H_

#include <cstdint>

#include "cuda/protocol/epoch.h"
#include "cuda/protocol/schedule.h"

namespace jax_flux::kernels {

// x[b, m, k] -> y[b, W, m, k] as bytes. A plane is one batch of one rank: m * k elements. Slots
// hold planes one after the other at `plane_pitch`, so a bulk copy may start at each.
struct AllGatherCopyArgs {
  protocol::Call call;
  const std::uint8_t* x;  // [batch][plane_bytes]
  std::uint8_t* y;        // [batch][world][plane_bytes]
  std::uint64_t plane_bytes;
  std::uint64_t plane_pitch;
  // Planes cut into chunks: rows are units of kUnitBytes, depth is one unit.
  protocol::ChunkGrid chunks;

  static constexpr std::uint64_t kUnitBytes = 16;

  JAX_FLUX_HD std::uint64_t SlotBytes() const {
    return protocol::AlignUp(plane_pitch * static_cast<std::uint64_t>(chunks.batch),
                             protocol::kAreaBytes);
  }
};

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_ALL_GATHER_COPY_H_
