// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cuda/runtime/workspace.h"

#include <algorithm>

namespace jax_flux::runtime {
namespace {

// First sizes: small calls of a program share one generation instead of growing one by one.
constexpr std::int32_t kLeastFlags = 512;
constexpr std::uint64_t kLeastHalfBytes = 1 << 20;

template <class T>
T Grown(T need, T have, T least) {
  if (need <= have) return have;
  return std::max({need, have * 2, least});
}

}  // namespace

protocol::GenerationShape GrownShape(const protocol::GenerationShape& need,
                                     const protocol::GenerationShape* latest) {
  const protocol::GenerationShape have =
      latest != nullptr ? *latest : protocol::GenerationShape{need.world, 0, 0, 0, 0, 0, 0};
  protocol::GenerationShape shape;
  shape.world = need.world;
  shape.ag_flags = Grown(need.ag_flags, have.ag_flags, kLeastFlags);
  shape.rs_flags = Grown(need.rs_flags, have.rs_flags, kLeastFlags);
  shape.ag_half_bytes = protocol::AlignUp(
      Grown(need.ag_half_bytes, have.ag_half_bytes, kLeastHalfBytes), protocol::kAreaBytes);
  shape.rs_half_bytes = protocol::AlignUp(
      Grown(need.rs_half_bytes, have.rs_half_bytes, kLeastHalfBytes), protocol::kAreaBytes);
  shape.copy_flags = Grown(need.copy_flags, have.copy_flags, kLeastFlags);
  shape.copy_bytes = protocol::AlignUp(Grown(need.copy_bytes, have.copy_bytes, kLeastHalfBytes),
                                       protocol::kAreaBytes);
  return shape;
}

Expected<std::uint8_t*> AllocateZeroed(const NcclApi* nccl, std::uint64_t bytes,
                                       cudaStream_t stream) {
  void* memory = nullptr;
  if (nccl != nullptr) {
    const int result = nccl->MemAlloc(&memory, bytes);
    if (result != kNcclSuccess || memory == nullptr) {
      return Status(Code::kResourceExhausted,
                    Format("jax_flux: no %.1f MiB of device memory for the workspace (%s). XLA "
                           "reserves most of it: lower XLA_PYTHON_CLIENT_MEM_FRACTION.",
                           static_cast<double>(bytes) / (1 << 20), nccl->GetErrorString(result)));
    }
  } else {
    JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaMalloc(&memory, bytes));
  }
  // Peers write as soon as it is registered: zero it before, and wait.
  JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(memory, 0, bytes, stream));
  JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream));
  return static_cast<std::uint8_t*>(memory);
}

void FreeUnregistered(const NcclApi* nccl, std::uint8_t* memory) {
  if (memory == nullptr) return;
  if (nccl != nullptr) {
    nccl->MemFree(memory);
  } else {
    cudaFree(memory);
  }
}

Expected<Generation> Register(const NcclApi& nccl, NcclComm comm, int rank,
                              const protocol::GenerationShape& shape, std::uint8_t* memory,
                              cudaStream_t stream) {
  Generation generation;
  generation.layout = {shape};
  NcclWindow window = nullptr;
  JAX_FLUX_RETURN_IF_ERROR(
      nccl.Check(nccl.CommWindowRegister(comm, memory, generation.layout.TotalBytes(), &window,
                                         kNcclWindowSymmetric),
                 comm, "ncclCommWindowRegister"));
  if (window == nullptr) {
    return Status(Code::kFailedPrecondition,
                  "jax_flux: NCCL gave no symmetric window. It needs cuMem allocations and peer "
                  "access: unset NCCL_CUMEM_ENABLE=0 and NCCL_WIN_ENABLE=0, or pass "
                  "implementation=\"xla\".");
  }
  auto pointers = PeerPointers(nccl, comm, window, rank, shape.world, stream);
  if (!pointers.ok()) return pointers.status();
  generation.base = pointers.value();
  return generation;
}

}  // namespace jax_flux::runtime
