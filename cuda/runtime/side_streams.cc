// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cuda/runtime/side_streams.h"

#include <algorithm>

namespace jax_flux::runtime {
namespace {

constexpr std::uint64_t kWarmUpBytes = 4 << 20;  // as large as a piece

}  // namespace

Expected<std::unique_ptr<SideStreams>> SideStreams::Make(int world) {
  std::unique_ptr<SideStreams> made(new SideStreams(world - 1));
  for (Set* set : {&made->direct_, &made->captured_}) {
    JAX_FLUX_RETURN_IF_ERROR(made->MakeSet(set));
  }
  return made;
}

Status SideStreams::MakeSet(Set* set) {
  JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&set->forked, cudaEventDisableTiming));
  for (int i = 0; i < count_; ++i) {
    JAX_FLUX_RETURN_IF_CUDA_ERROR(
        cudaStreamCreateWithFlags(&set->stream[i], cudaStreamNonBlocking));
    JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&set->done[i], cudaEventDisableTiming));
  }
  return Status();
}

Status SideStreams::WarmUp(const protocol::GenerationLayout& layout,
                           const std::array<std::uint8_t*, protocol::kMaxWorld>& base, int rank) {
  const auto slots = static_cast<std::uint64_t>(count_ + 1);
  const std::uint64_t slot = std::min(layout.shape.copy_bytes / slots, kWarmUpBytes);
  for (const Set* set : {&direct_, &captured_}) {
    for (int i = 0; i < count_; ++i) {
      const int peer = (rank + 1 + i) % (count_ + 1);
      const std::uint64_t data =
          layout.CopyDataOffset() + layout.shape.copy_bytes / slots * static_cast<unsigned>(rank);
      JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(base[peer] + data, base[rank] + data, slot,
                                                    cudaMemcpyDeviceToDevice, set->stream[i]));
      JAX_FLUX_RETURN_IF_CUDA_ERROR(
          cudaMemcpyAsync(base[peer] + layout.CopyFlagOffset(rank, 0),
                          base[rank] + layout.ControlOffset(protocol::ControlWord::kCopyEpoch),
                          protocol::kFlagBytes, cudaMemcpyDeviceToDevice, set->stream[i]));
      JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(set->stream[i]));
    }
  }
  return Status();
}

Expected<SideStreams::Set*> SideStreams::SetFor(cudaStream_t main) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaStreamIsCapturing(main, &capture));
  return capture == cudaStreamCaptureStatusNone ? &direct_ : &captured_;
}

Expected<const cudaStream_t*> SideStreams::Fork(cudaStream_t main) {
  auto set = SetFor(main);
  if (!set.ok()) return set.status();
  JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaEventRecord(set.value()->forked, main));
  for (int i = 0; i < count_; ++i) {
    JAX_FLUX_RETURN_IF_CUDA_ERROR(
        cudaStreamWaitEvent(set.value()->stream[i], set.value()->forked, 0));
  }
  return static_cast<const cudaStream_t*>(set.value()->stream.data());
}

Status SideStreams::Join(cudaStream_t main) {
  auto set = SetFor(main);
  if (!set.ok()) return set.status();
  for (int i = 0; i < count_; ++i) {
    JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaEventRecord(set.value()->done[i], set.value()->stream[i]));
    JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaStreamWaitEvent(main, set.value()->done[i], 0));
  }
  return Status();
}

}  // namespace jax_flux::runtime
