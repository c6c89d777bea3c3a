// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Name -> kernel: Touch() for prepare, Launch() for execute. What is compiled is listed here and in
// the table of GEMM instances; Python asks instances().
#ifndef JAX_FLUX_CUDA_KERNELS_REGISTRY_H_
#define JAX_FLUX_CUDA_KERNELS_REGISTRY_H_

#include <cuda_runtime_api.h>

#include <string_view>
#include <vector>

namespace jax_flux::kernels {

struct Kernel {
  const char* name;
  const char* op;
  const char* dtype;       // of the operands; "any" where only bytes count
  const char* layout;      // "nn", "nt", ...; "bytes" without a GEMM
  int tile[3];             // rows, columns, depth of a cluster tile; zeros without a GEMM
  int cluster[2];          // CTAs along rows and columns; zeros mean one CTA
  int split;               // CTAs along the depth of a tile, beside `cluster`; 0 means one
  bool packed;             // a tile holds several short segments
  const char* transports;  // who may move the data: "tma", or "tma copy"
  const void* function;    // __global__ function with one __grid_constant__ argument
  int threads;
  int dynamic_shared_bytes;
};

// Every kernel of the library.
const std::vector<Kernel>& Kernels();

// Null when no kernel has this name.
const Kernel* Find(std::string_view name);

// Loads the kernel on the current device and sets its shared memory. In prepare: a first launch
// would load its module under the context lock, behind a kernel that waits for us.
cudaError_t Touch(const Kernel& kernel);

// CTAs of a cluster.
int ClusterSize(const Kernel& kernel);

// Enqueues `ctas` CTAs (a multiple of the cluster) with `args`, a struct of the kernel's own type.
// Allocates nothing, synchronises nothing: may run under capture.
cudaError_t Launch(const Kernel& kernel, int ctas, const void* args, cudaStream_t stream);

// SMs of the current device; a cached query.
cudaError_t SmCount(int* count);

// Loads the kernel of Abort on the current device.
cudaError_t TouchAbort();

// Ends the current device's context from a stream of its own: a collective that waits for a rank
// that will not come then returns an error instead of blocking the process for ever.
void Abort();

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_REGISTRY_H_
