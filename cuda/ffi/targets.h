// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The FFI targets of the library, one per op.
#ifndef JAX_FLUX_CUDA_FFI_TARGETS_H_
#define JAX_FLUX_CUDA_FFI_TARGETS_H_

#include "cuda/ffi/stages.h"

namespace jax_flux::ffi {

Target AllGatherCopyTarget();  // all_gather_copy.cc
Target AgMatmulTarget();       // ag_matmul.cc
Target MatmulRsTarget();       // matmul_rs.cc
Target AgMatmulTraceTarget();  // trace.cc
Target MatmulRsTraceTarget();  // trace.cc

}  // namespace jax_flux::ffi

#endif  // JAX_FLUX_CUDA_FFI_TARGETS_H_
