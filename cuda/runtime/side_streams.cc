// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cuda/runtime/side_streams.h"

#include <algorithm>

namespace jax_flux::runtime {
namespace {

constexpr std::uint64_t kWarmUpBytes = 4 << 20;  // as large as a piece

}  // namespace

Expected<std::unique_ptr<SideStreams>> SideStreams::Make() {
  std::unique_ptr<SideStreams> made(new SideStreams);
  for (Set* set : {&made->direct_, &made->captured_}) {
    JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&set->forked, cudaEventDisableTiming));
    for (cudaStream_t& stream : set->stream) {
      JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    }
    for (cudaEvent_t& done : set->done) {
      JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    }
  }
  return made;
}

Status SideStreams::WarmUp(const protocol::GenerationLayout& layout,
                           const std::array<std::uint8_t*, protocol::kMaxWorld>& base, int rank) {
  const auto world = layout.shape.world;
  const std::uint64_t slot = layout.shape.copy_bytes / static_cast<std::uint64_t>(world);
  const std::uint64_t data = layout.CopyDataOffset() + slot * static_cast<std::uint64_t>(rank);
  for (const Set* set : {&direct_, &captured_}) {
    for (cudaStream_t stream : set->stream) {
      for (int peer = 0; peer < world; ++peer) {
        if (peer == rank) continue;
        JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(base[peer] + data, base[rank] + data,
                                                      std::min(slot, kWarmUpBytes),
                                                      cudaMemcpyDeviceToDevice, stream));
        JAX_FLUX_RETURN_IF_CUDA_ERROR(
            cudaMemcpyAsync(base[peer] + layout.CopyFlagOffset(rank, 0),
                            base[rank] + layout.ControlOffset(protocol::ControlWord::kCopyEpoch),
                            protocol::kFlagBytes, cudaMemcpyDeviceToDevice, stream));
      }
      JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream));
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
  for (int i = 0; i < kCount; ++i) {
    JAX_FLUX_RETURN_IF_CUDA_ERROR(
        cudaStreamWaitEvent(set.value()->stream[i], set.value()->forked, 0));
  }
  return static_cast<const cudaStream_t*>(set.value()->stream.data());
}

Status SideStreams::Join(cudaStream_t main) {
  auto set = SetFor(main);
  if (!set.ok()) return set.status();
  for (int i = 0; i < kCount; ++i) {
    JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaEventRecord(set.value()->done[i], set.value()->stream[i]));
    JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaStreamWaitEvent(main, set.value()->done[i], 0));
  }
  return Status();
}

}  // namespace jax_flux::runtime
