// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// ag_matmul whose shards copy engines carry, in the order of its enqueueing:
//
//   main stream   gate --+-- GEMM, once per four weights ---+-- join
//   2 side streams       +-- piece, its flag, piece, ... --+      pieces in turn, peer r+1 first
//
// The copies are enqueued before the GEMM. What is before them in a hardware queue was enqueued
// before this call, so it waits for earlier calls at most; never for the GEMM, which waits for
// them. Route: ag_matmul.cc -> here -> kernels/copy.h, runtime/side_streams.h.
#ifndef JAX_FLUX_CUDA_FFI_COPY_TRANSPORT_H_
#define JAX_FLUX_CUDA_FFI_COPY_TRANSPORT_H_

#include "cuda/ffi/gemm_call.h"

namespace jax_flux::ffi {

// SMs that the GEMM leaves to copies which stay on its GPU, because ranks share it: such a copy is
// a kernel, and beside a GEMM that holds every SM and waits for it, it would never start.
inline constexpr std::int32_t kSmsForLocalCopies = 4;

// Loads the gate on the current device.
runtime::Status PrepareCopies(const GemmCall& call);

// Gate and copies of x. The call's GEMMs follow; hold the side streams' mutex until JoinCopies.
runtime::Status EnqueueCopies(const GemmCall& call, const runtime::Binding& binding,
                              const kernels::GemmProblem& problem, const void* x,
                              cudaStream_t stream);
// x may be freed and the next call may start when the copies have ended.
runtime::Status JoinCopies(const runtime::Binding& binding, cudaStream_t stream);

}  // namespace jax_flux::ffi

#endif  // JAX_FLUX_CUDA_FFI_COPY_TRANSPORT_H_
