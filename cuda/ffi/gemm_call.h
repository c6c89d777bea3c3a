// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What the handlers of the GEMMs share: attributes -> instance and plan, buffers -> shapes, launch.
// Route: ag_matmul.cc, matmul_rs.cc -> here -> stages.h (plan, workspace) and kernels/gemm.h.
//
// Attributes beyond those of stages.h, all int64: transpose_w, and raster_group, sweep_segments,
// chunk_rows, chunk_depth, push_peers, push_ctas, depth_outer, for which 0 (-1 for depth_outer)
// means the library's own choice. That choice depends on shapes and instance alone, so ranks of one
// library version agree on it. And transport, a kernels::Transport, 0 where it is left out.
// Optional: biases (bit i: result i has a bias; they follow the weights in their order) and the
// string activation ("relu", "gelu", "silu"). Calls of before they existed have neither.
//
// A group of one rank runs the plain kernel: no communicator, no workspace.
#ifndef JAX_FLUX_CUDA_FFI_GEMM_CALL_H_
#define JAX_FLUX_CUDA_FFI_GEMM_CALL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/ffi/stages.h"
#include "cuda/kernels/gemm.h"

namespace jax_flux::ffi {

struct GemmCall {
  CallSite site;
  const kernels::GemmInstance* instance;
  bool transpose_w;
  std::int64_t raster_group, sweep_segments, chunk_rows, chunk_depth, push_peers, push_ctas;
  std::int64_t depth_outer;
  kernels::Transport transport;
  std::uint64_t biases;
  kernels::Activation activation;

  bool alone() const { return site.world == 1; }
  bool copies() const { return !alone() && transport == kernels::Transport::kCopy; }
  kernels::GemmProblem Problem(kernels::GemmOp op, std::int64_t batch, std::int64_t rows,
                               std::int64_t columns, std::int64_t depth) const;
  kernels::GemmPlan Plan(const kernels::GemmProblem& problem) const;
  // Fixes the chunks of every launch to come as `first`, the one that pushes, cuts the shard: its
  // flags are what the others wait for.
  void KeepChunks(const kernels::GemmProblem& first);
};

runtime::Expected<GemmCall> DecodeGemmCall(protocol::Op op, const xla_ffi::Dictionary& attributes);

// A matrix w[k, n], or [n, k] when transposed, of the kernel's dtype.
struct Weight {
  std::int64_t columns;
  std::int64_t depth;
};
runtime::Expected<Weight> DecodeWeight(const GemmCall& call, const xla_ffi::AnyBuffer& w);

// InvalidArgument in words unless `buffer` has the kernel's dtype, these dimensions and extents
// below 2^31.
runtime::Status CheckBuffer(const GemmCall& call, const char* name,
                            const xla_ffi::AnyBuffer& buffer,
                            const std::vector<std::int64_t>& dimensions, const char* rule);

// Data of the bias of each of `num_results` results of `columns[i]` columns, null where it has
// none, out of the operands from `first` on; InvalidArgument unless these are all and fit.
runtime::Expected<std::vector<const void*>> DecodeBiases(const GemmCall& call,
                                                         const xla_ffi::RemainingArgs& operands,
                                                         std::size_t first,
                                                         const std::vector<std::int64_t>& columns);

// The stages of all GEMMs that follow from the attributes alone.
xla_ffi::Error InstantiateGemm(protocol::Op op, const xla_ffi::Dictionary& attributes);
xla_ffi::Error PrepareGemm(protocol::Op op, std::int32_t device, CommunicatorContext& communicators,
                           const xla_ffi::Dictionary& attributes);

// Checks that the instance can run `problem`, then agrees and binds; `problem` of rank 0.
runtime::Status InitializeGemm(const GemmCall& call, int device,
                               const kernels::GemmProblem& problem,
                               CommunicatorContext& communicators, cudaStream_t stream);

// One launch. The first and the last of a call frame its epoch.
struct GemmLaunch {
  const void* x;
  const void* w;
  void* y;
  const void* bias;  // null for none
  bool first;
  bool last;
  kernels::GemmWeight more[kernels::kMoreWeights] = {};
  void* trace = nullptr;  // of a traced instance: kernels::TraceBytes, zeroed
};
// Whether TMA can reach every operand. A call of several launches asks for all of them before the
// first: what fails later leaves the peers waiting.
runtime::Status CheckPointers(const GemmCall& call, const GemmLaunch& launch);
runtime::Status EnqueueGemm(const GemmCall& call, const runtime::Binding* binding,
                            kernels::GemmProblem problem, const GemmLaunch& launch,
                            cudaStream_t stream);

}  // namespace jax_flux::ffi

#endif  // JAX_FLUX_CUDA_FFI_GEMM_CALL_H_
