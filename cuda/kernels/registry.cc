// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cuda/kernels/registry.h"

#include <algorithm>
#include <atomic>

#include "cuda/kernels/entries.h"
#include "cuda/kernels/gemm.h"

namespace jax_flux::kernels {
namespace {

constexpr int kMaxDevices = 64;

}  // namespace

const std::vector<Kernel>& Kernels() {
  static const auto* kernels = [] {
    auto* rows = new std::vector<Kernel>{AllGatherCopyKernelEntry(), CopyGateKernelEntry()};
    for (const GemmInstance& instance : GemmInstances()) rows->push_back(instance.kernel);
    return rows;
  }();
  return *kernels;
}

const Kernel* Find(std::string_view name) {
  for (const Kernel& kernel : Kernels()) {
    if (name == kernel.name) return &kernel;
  }
  return nullptr;
}

cudaError_t Touch(const Kernel& kernel) {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel.function);
  if (error != cudaSuccess || kernel.dynamic_shared_bytes == 0) return error;
  return cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              kernel.dynamic_shared_bytes);
}

int ClusterSize(const Kernel& kernel) {
  return std::max(1, kernel.cluster[0]) * std::max(1, kernel.cluster[1]) *
         std::max(1, kernel.split);
}

cudaError_t Launch(const Kernel& kernel, int ctas, const void* args, cudaStream_t stream) {
  const auto cluster = static_cast<unsigned>(ClusterSize(kernel));
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(ctas), 1, 1);
  config.blockDim = dim3(static_cast<unsigned>(kernel.threads), 1, 1);
  config.dynamicSmemBytes = static_cast<std::size_t>(kernel.dynamic_shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster;
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = cluster > 1 ? 1 : 0;
  void* arguments[] = {const_cast<void*>(args)};
  return cudaLaunchKernelExC(&config, kernel.function, arguments);
}

cudaError_t SmCount(int* count) {
  static std::atomic<int> counts[kMaxDevices];
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  if (device < kMaxDevices && (*count = counts[device].load()) > 0) return cudaSuccess;
  error = cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess && device < kMaxDevices) counts[device].store(*count);
  return error;
}

}  // namespace jax_flux::kernels
