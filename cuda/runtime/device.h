// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What this process keeps per device: made in prepare, before any rank can be waiting on a device.
// Allocating while a local peer's kernel spins for us could wait for that kernel.
#ifndef JAX_FLUX_CUDA_RUNTIME_DEVICE_H_
#define JAX_FLUX_CUDA_RUNTIME_DEVICE_H_

#include <cuda_runtime_api.h>

#include "cuda/protocol/record.h"
#include "cuda/runtime/agreement.h"
#include "cuda/runtime/status.h"

namespace jax_flux::runtime {

// Makes CUDA calls mean `device` and restores what the thread had: XLA keeps its own idea of it.
class ScopedDevice {
 public:
  explicit ScopedDevice(int device);
  ~ScopedDevice();
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

struct Device {
  protocol::FailureRecord* record;  // as kernels address it
  cudaStream_t stream;              // for zeroing, beside XLA's streams
  Exchange exchange;
};

// The device's resources; the first call makes them. They are never destroyed.
Expected<Device*> FindDevice(int device);

}  // namespace jax_flux::runtime

#endif  // JAX_FLUX_CUDA_RUNTIME_DEVICE_H_
