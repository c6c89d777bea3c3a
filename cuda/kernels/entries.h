// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The hand-written kernels that registry.cc lists beside the generated GEMM instances.
#ifndef JAX_FLUX_CUDA_KERNELS_ENTRIES_H_
#define JAX_FLUX_CUDA_KERNELS_ENTRIES_H_

#include "cuda/kernels/registry.h"

namespace jax_flux::kernels {

Kernel AllGatherCopyKernelEntry();  // all_gather_copy.cu
Kernel CopyGateKernelEntry();       // copy_gate.cu

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_ENTRIES_H_
