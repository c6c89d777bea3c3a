// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The gate in front of the copies of one call: protocol::OpenCopyGate as a kernel of one thread, in
// the main stream. It holds no SM that the GEMM wants, as it ends before the GEMM starts.
// Route: copy.cc -> here -> protocol/epoch.h.
#include <cuda_runtime.h>

#include "cuda/kernels/copy_gate.h"
#include "cuda/kernels/entries.h"
#include "cuda/kernels/sync.cuh"

namespace jax_flux::kernels {
namespace {

__global__ void __launch_bounds__(1) CopyGateKernel(const __grid_constant__ CopyGateArgs args) {
  // Release of our entry and acquire of the peers', system scope; pairs with the gates of the
  // peers.
  protocol::OpenCopyGate<DeviceMemory>(args.call, protocol::CallEpoch<DeviceMemory>(args.call));
}

}  // namespace

Kernel CopyGateKernelEntry() {
  Kernel kernel = {};
  kernel.name = "copy_gate";
  kernel.op = "copy_gate";
  kernel.dtype = "any";
  kernel.layout = "bytes";
  kernel.cluster[0] = kernel.cluster[1] = 1;
  kernel.transports = "copy";
  kernel.function = reinterpret_cast<const void*>(&CopyGateKernel);
  kernel.threads = 1;
  return kernel;
}

}  // namespace jax_flux::kernels
