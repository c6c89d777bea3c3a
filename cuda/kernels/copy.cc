// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cuda/kernels/copy.h"

#include <limits>

#include "cuda/kernels/copy_gate.h"
#include "cuda/kernels/entries.h"
#include "cuda/protocol/pieces.h"

namespace jax_flux::kernels {
namespace {

constexpr std::uint64_t kElementBytes = 2;

std::uint64_t RowBytes(const GemmProblem& p) {
  return static_cast<std::uint64_t>(p.depth) * kElementBytes;
}
std::uint64_t Rows(const GemmProblem& p) {
  return static_cast<std::uint64_t>(p.batch) * static_cast<std::uint64_t>(p.rows);
}
// Slot r of the copy area is that of source r.
std::uint64_t SlotBytes(const GemmProblem& p) { return Rows(p) * RowBytes(p); }

}  // namespace

std::int32_t PieceRows(const GemmProblem& p) {
  return protocol::PieceRows(Rows(p), RowBytes(p), p.world);
}

protocol::ChunkGrid CopyChunks(const GemmProblem& p, const GemmPlan& plan) {
  return protocol::PieceGrid(static_cast<std::int32_t>(Rows(p)), p.depth, plan.chunk_rows);
}

std::string CanCopy(const GemmProblem& p, const GemmPlan& plan) {
  if (p.op != GemmOp::kAgMatmul) {
    return "copy engines carry the gather of ag_matmul only; transport must be \"tma\"";
  }
  if (plan.chunk_rows < 1) return "a piece of a copied shard has no row";
  if (Rows(p) > std::numeric_limits<std::int32_t>::max() / 2) {
    return "b * m is " + std::to_string(Rows(p)) + ": rows of a copied shard are 32-bit";
  }
  return std::string();
}

const Kernel& CopyGate() {
  static const Kernel kernel = CopyGateKernelEntry();
  return kernel;
}

cudaError_t LaunchCopyGate(const protocol::Call& call, cudaStream_t stream) {
  const CopyGateArgs args = {call};
  return Launch(CopyGate(), 1, &args, stream);
}

cudaError_t CopyShards(const protocol::Call& call, const GemmProblem& p, const GemmPlan& plan,
                       const void* x, const cudaStream_t* streams, int stream_count) {
  const auto* shard = static_cast<const std::uint8_t*>(x);
  const protocol::ChunkGrid grid = CopyChunks(p, plan);
  const std::uint64_t slot =
      call.layout.CopyDataOffset() + SlotBytes(p) * static_cast<std::uint64_t>(call.rank);
  for (std::int32_t push = 0; push < protocol::TotalPushes(grid, call.world); ++push) {
    const std::int32_t peer = protocol::PushPeerAt(call.rank, call.world, push / grid.Count());
    const protocol::Piece piece = protocol::PieceAt(grid, RowBytes(p), push % grid.Count());
    const cudaStream_t side = streams[push % stream_count];
    cudaError_t error = cudaMemcpyAsync(call.base[peer] + slot + piece.offset, shard + piece.offset,
                                        piece.bytes, cudaMemcpyDeviceToDevice, side);
    if (error != cudaSuccess) return error;
    // From the word that the gate alone writes: the epoch word moves when the GEMM ends.
    error = cudaMemcpyAsync(call.base[peer] + call.layout.CopyFlagOffset(call.rank, piece.flag),
                            call.Control(protocol::ControlWord::kCopyEpoch), protocol::kFlagBytes,
                            cudaMemcpyDeviceToDevice, side);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace jax_flux::kernels
