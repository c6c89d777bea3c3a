// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cuda/ffi/copy_transport.h"

#include "cuda/kernels/copy.h"

namespace jax_flux::ffi {
using runtime::Status;

Status PrepareCopies(const GemmCall& call) {
  if (!call.copies()) return Status();
  JAX_FLUX_RETURN_IF_CUDA_ERROR(kernels::Touch(kernels::CopyGate()));
  return Status();
}

Status EnqueueCopies(const GemmCall& call, const runtime::Binding& binding,
                     const kernels::GemmProblem& problem, const void* x, cudaStream_t stream) {
  const protocol::Call gate = binding.MakeCall(call.site.op, call.site.site, /*first_launch=*/true,
                                               /*last_launch=*/false);
  JAX_FLUX_RETURN_IF_CUDA_ERROR(kernels::LaunchCopyGate(gate, stream));
  CountLaunch(stream);
  auto sides = binding.side_streams->Fork(stream);
  if (!sides.ok()) return sides.status();
  JAX_FLUX_RETURN_IF_CUDA_ERROR(kernels::CopyShards(gate, problem, call.Plan(problem), x,
                                                    sides.value(), runtime::SideStreams::kCount));
  return Status();
}

Status JoinCopies(const runtime::Binding& binding, cudaStream_t stream) {
  return binding.side_streams->Join(stream);
}

}  // namespace jax_flux::ffi
