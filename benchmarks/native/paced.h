// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Instances that send over an emulated link (paced_link.cuh); the table is paced.bzl.
#ifndef JAX_FLUX_BENCHMARKS_NATIVE_PACED_H_
#define JAX_FLUX_BENCHMARKS_NATIVE_PACED_H_

#include <vector>

#include "cuda/kernels/gemm.h"

namespace jax_flux::preset {

const std::vector<kernels::GemmInstance>& PacedInstances();

}  // namespace jax_flux::preset

#endif  // JAX_FLUX_BENCHMARKS_NATIVE_PACED_H_
