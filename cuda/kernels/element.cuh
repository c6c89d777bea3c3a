// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Two neighbouring 16-bit elements in one register, and their f32 values.
#ifndef JAX_FLUX_CUDA_KERNELS_ELEMENT_CUH_
#define JAX_FLUX_CUDA_KERNELS_ELEMENT_CUH_

#include <cstdint>

#include "cutlass/bfloat16.h"
#include "cutlass/half.h"

namespace jax_flux::kernels {

// Two neighbours of a row <-> f32. Rounds to nearest even; past f16's largest number it is inf, as
// for XLA.
template <class Element>
struct Pair;
template <>
struct Pair<cutlass::bfloat16_t> {
  __device__ __forceinline__ static std::uint32_t Pack(float low, float high) {
    std::uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
  }
  __device__ __forceinline__ static float Low(std::uint32_t pair) {
    return __uint_as_float(pair << 16);
  }
  __device__ __forceinline__ static float High(std::uint32_t pair) {
    return __uint_as_float(pair & 0xffff0000u);
  }
};
template <>
struct Pair<cutlass::half_t> {
  __device__ __forceinline__ static std::uint32_t Pack(float low, float high) {
    std::uint32_t packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
  }
  __device__ __forceinline__ static float Low(std::uint32_t pair) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<std::uint16_t>(pair)));
    return value;
  }
  __device__ __forceinline__ static float High(std::uint32_t pair) { return Low(pair >> 16); }
};

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_ELEMENT_CUH_
