// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0

#include <cuda_runtime.h>

#include "cuda/kernels/registry.h"

namespace jax_flux::kernels {
namespace {

__global__ void AbortKernel() { __trap(); }

}  // namespace

cudaError_t TouchAbort() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, AbortKernel);
}

void Abort() {
  cudaStream_t stream = nullptr;
  // Non-blocking: the stuck collective sits on another stream and leaves SMs free.
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return;
  AbortKernel<<<1, 1, 0, stream>>>();
}

}  // namespace jax_flux::kernels
