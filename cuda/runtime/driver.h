// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Driver entry points, found at run time: the library links no libcuda and imports without a GPU.
#ifndef JAX_FLUX_CUDA_RUNTIME_DRIVER_H_
#define JAX_FLUX_CUDA_RUNTIME_DRIVER_H_

#include <cuda.h>

#include <cstdint>

#include "cuda/runtime/status.h"

namespace jax_flux::runtime {

// A tiled tensor map, innermost dimension first. Strides in bytes of dimensions 1 .. rank - 1.
struct TensorMapSpec {
  CUtensorMapDataType type;
  int rank;
  void* base;
  std::uint64_t size[5];
  std::uint64_t stride[4];
  std::uint32_t box[5];
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
};

// cuTensorMapEncodeTiled: pure host work, so it may run in execute and under capture.
Status EncodeTensorMap(const TensorMapSpec& spec, CUtensorMap* map);

}  // namespace jax_flux::runtime

#endif  // JAX_FLUX_CUDA_RUNTIME_DRIVER_H_
