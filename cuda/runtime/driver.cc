// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cuda/runtime/driver.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

namespace jax_flux::runtime {
namespace {

PFN_cuTensorMapEncodeTiled_v12000 FindEncode() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry,
                                                             12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
}

}  // namespace

Status EncodeTensorMap(const TensorMapSpec& spec, CUtensorMap* map) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = FindEncode();
  if (encode == nullptr) {
    return Status(
        Code::kFailedPrecondition,
        "jax_flux: the NVIDIA driver has no cuTensorMapEncodeTiled; it needs CUDA 13 (580 "
        "or newer).");
  }
  const std::uint32_t element_strides[5] = {1, 1, 1, 1, 1};
  const CUresult result =
      encode(map, spec.type, static_cast<std::uint32_t>(spec.rank), spec.base, spec.size,
             spec.stride, spec.box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, spec.swizzle,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return Status();
  return Status(
      Code::kInternal,
      Format("jax_flux: cuTensorMapEncodeTiled refused rank %d, base %p, inner size %llu, "
             "stride %llu, box %u x %u (error %d).",
             spec.rank, spec.base, static_cast<unsigned long long>(spec.size[0]),
             static_cast<unsigned long long>(spec.rank > 1 ? spec.stride[0] : 0), spec.box[0],
             spec.rank > 1 ? spec.box[1] : 1u, static_cast<int>(result)));
}

}  // namespace jax_flux::runtime
