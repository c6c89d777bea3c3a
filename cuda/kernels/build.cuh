// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What an instance is built for besides its op: the product, or to be looked at.
#ifndef JAX_FLUX_CUDA_KERNELS_BUILD_CUH_
#define JAX_FLUX_CUDA_KERNELS_BUILD_CUH_

#include "cuda/kernels/link.cuh"
#include "cuda/kernels/trace.cuh"

namespace jax_flux::kernels {

struct Product {
  using Link = DirectLink;
  using Trace = NoTrace;
};

// For `python -m jax_flux trace`: the same kernel with timestamps.
struct Traced {
  using Link = DirectLink;
  using Trace = KernelTrace;
};

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_BUILD_CUH_
