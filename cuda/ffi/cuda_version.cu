// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/ffi/cuda_version.h"

#include <cuda_runtime_api.h>

namespace jax_flux {

int CudaRuntimeVersion() {
  int version = 0;
  return cudaRuntimeGetVersion(&version) == cudaSuccess ? version : 0;
}

}  // namespace jax_flux
