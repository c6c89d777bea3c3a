// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cuda/kernels/tensor_map.h"

#include <cuda_runtime_api.h>

#include <sstream>

namespace jax_flux::kernels {
namespace {

using Encoder = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                             const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                             const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                             CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

constexpr unsigned int kEncoderVersion = 12000;  // CUDA release that introduced it

Encoder FindEncoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(
      "cuTensorMapEncodeTiled", &function, kEncoderVersion, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<Encoder>(function);
}

std::string Describe(const TensorMapSpec& spec, CUresult result) {
  std::ostringstream text;
  text << "cuTensorMapEncodeTiled refused a map (CUresult " << static_cast<int>(result)
       << "): extent x stride x box =";
  for (int d = 0; d < spec.rank; ++d) {
    text << " " << spec.extent[d] << "x" << spec.stride_bytes[d] << "x" << spec.box[d];
  }
  text << ", base " << spec.base;
  return text.str();
}

}  // namespace

std::string EncodeTensorMap(const TensorMapSpec& spec, CUtensorMap* map) {
  static const Encoder encode = FindEncoder();
  if (encode == nullptr) {
    return "the CUDA driver has no cuTensorMapEncodeTiled: it is older than CUDA 12.0";
  }
  constexpr cuuint32_t kUnit[TensorMapSpec::kMaxRank] = {1, 1, 1, 1, 1};
  cuuint64_t extent[TensorMapSpec::kMaxRank], stride[TensorMapSpec::kMaxRank];
  cuuint32_t box[TensorMapSpec::kMaxRank];
  for (int d = 0; d < spec.rank; ++d) {
    extent[d] = spec.extent[d];
    box[d] = spec.box[d];
    if (d > 0) stride[d - 1] = spec.stride_bytes[d];
  }
  const CUresult result =
      encode(map, spec.f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
             static_cast<cuuint32_t>(spec.rank), const_cast<void*>(spec.base), extent, stride, box,
             kUnit, CU_TENSOR_MAP_INTERLEAVE_NONE,
             spec.swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? std::string() : Describe(spec, result);
}

}  // namespace jax_flux::kernels
