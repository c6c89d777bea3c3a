// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What happens to a finished sum before its one rounding, chosen at run time: no instance is
// compiled for it, and a call without one pays a branch per tile. Device side: epilogue.cuh.
#ifndef JAX_FLUX_CUDA_KERNELS_EPILOGUE_H_
#define JAX_FLUX_CUDA_KERNELS_EPILOGUE_H_

#include <cstdint>

namespace jax_flux::kernels {

// Of jax.nn by these names; gelu in its tanh form.
enum class Activation : std::int32_t { kNone = 0, kRelu = 1, kGelu = 2, kSilu = 3 };

// y = activation(sum + bias), in f32.
struct Epilogue {
  const void* bias;  // [n] of the operands' type, 4-byte aligned; null for none
  Activation activation;
  bool any_bias = false;  // of any weight of the launch; LaunchGemm sets it
};

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_EPILOGUE_H_
