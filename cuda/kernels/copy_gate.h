// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Argument of the gate kernel. Route: copy.cc fills it, copy_gate.cu reads it.
#ifndef JAX_FLUX_CUDA_KERNELS_COPY_GATE_H_
#define JAX_FLUX_CUDA_KERNELS_COPY_GATE_H_

#include "cuda/protocol/epoch.h"

namespace jax_flux::kernels {

struct CopyGateArgs {
  protocol::Call call;
};

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_COPY_GATE_H_
