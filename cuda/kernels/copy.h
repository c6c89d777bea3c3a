// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Gather of ag_matmul by copy engines: its pieces, and the gate in front of them. The handler
// enqueues, per call (ffi/copy_transport.cc): gate; then the copies on side streams and the GEMM
// beside them; then the join.
// Route: ffi/copy_transport.cc -> here -> copy_gate.cu.
#ifndef JAX_FLUX_CUDA_KERNELS_COPY_H_
#define JAX_FLUX_CUDA_KERNELS_COPY_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "cuda/kernels/gemm.h"
#include "cuda/protocol/epoch.h"
#include "cuda/protocol/schedule.h"

namespace jax_flux::kernels {

// Rows of a piece when nobody has tuned them.
std::int32_t PieceRows(const GemmProblem& problem);

// The shard cut into pieces: one batch of batch * rows rows, whole k.
protocol::ChunkGrid CopyChunks(const GemmProblem& problem, const GemmPlan& plan);

// Empty when copy engines can carry the problem's gather, else the rule it breaks, in words.
std::string CanCopy(const GemmProblem& problem, const GemmPlan& plan);

// The gate as the registry lists it: one CTA of one thread. Touch it in prepare.
const Kernel& CopyGate();
// Enqueues the gate of a call, its first launch. Never on a side stream: beside a GEMM that holds
// every SM and waits for the copies behind it, it would not start.
cudaError_t LaunchCopyGate(const protocol::Call& call, cudaStream_t stream);

// Enqueues the copies of x, the own shard, to every peer, in the order in which they need it: r+1
// all pieces first, farthest-needed last, as copies to several peers share our link. Pieces go to
// the streams in turn, so that one stream's start is hidden by the other's transfer. Order: a
// piece's flag follows it in its stream, which runs one copy after the other, and one is complete
// at system scope before the next begins. So the flag is written at the peer after its data; pairs
// with ChunkGate's acquire there.
cudaError_t CopyShards(const protocol::Call& call, const GemmProblem& problem, const GemmPlan& plan,
                       const void* x, const cudaStream_t* streams, int stream_count);

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_COPY_H_
