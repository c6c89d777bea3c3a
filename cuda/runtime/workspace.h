// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Makes workspace generations: symmetric memory of W ranks, zeroed, registered, never freed.
#ifndef JAX_FLUX_CUDA_RUNTIME_WORKSPACE_H_
#define JAX_FLUX_CUDA_RUNTIME_WORKSPACE_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "cuda/protocol/layout.h"
#include "cuda/runtime/nccl_api.h"
#include "cuda/runtime/status.h"

namespace jax_flux::runtime {

// One allocation per rank with its own epoch and flags. Invariant: it outlives the process's last
// kernel, because captured graphs and peers hold its addresses.
struct Generation {
  protocol::GenerationLayout layout;
  std::array<std::uint8_t*, protocol::kMaxWorld> base;  // [world] as this device sees them
};

// Shape of the next generation after `latest` (null at first) for a call that needs `need`. Every
// part that has to grow at least doubles. Equal inputs on all ranks give equal shapes.
protocol::GenerationShape GrownShape(const protocol::GenerationShape& need,
                                     const protocol::GenerationShape* latest);

// Zeroed memory of one rank. Local: no peer is involved, so a failure is ours alone.
Expected<std::uint8_t*> AllocateZeroed(const NcclApi* nccl, std::uint64_t bytes,
                                       cudaStream_t stream);

// Undoes AllocateZeroed after a peer failed; only before registration.
void FreeUnregistered(const NcclApi* nccl, std::uint8_t* memory);

// Registers `memory` on the communicator. Collective: all ranks of the group call it, in one order.
Expected<Generation> Register(const NcclApi& nccl, NcclComm comm, int rank,
                              const protocol::GenerationShape& shape, std::uint8_t* memory,
                              cudaStream_t stream);

}  // namespace jax_flux::runtime

#endif  // JAX_FLUX_CUDA_RUNTIME_WORKSPACE_H_
