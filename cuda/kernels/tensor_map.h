// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Encodes TMA tensor maps of bf16 and f16 arrays. The driver's encoder is looked up at run time:
// nothing here links libcuda.
#ifndef JAX_FLUX_CUDA_KERNELS_TENSOR_MAP_H_
#define JAX_FLUX_CUDA_KERNELS_TENSOR_MAP_H_

#include <cuda.h>

#include <cstdint>
#include <string>

namespace jax_flux::kernels {

struct TensorMapSpec {
  static constexpr int kMaxRank = 5;
  const void* base = nullptr;  // 16-byte aligned
  int rank = 0;
  std::uint64_t extent[kMaxRank] = {};        // innermost first; that dimension is contiguous
  std::uint64_t stride_bytes[kMaxRank] = {};  // [0] unused; multiples of 16
  std::uint32_t box[kMaxRank] = {};
  bool f16 = false;      // else bf16
  bool swizzled = true;  // 128-byte rows in the 128-byte swizzle, else rows as they are
};

// Empty on success, else what the driver refused.
std::string EncodeTensorMap(const TensorMapSpec& spec, CUtensorMap* map);

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_TENSOR_MAP_H_
