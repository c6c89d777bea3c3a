// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace jax_flux {

// Release of the CUDA runtime that is linked in, as 1000 * major + 10 * minor. Needs no driver.
int CudaRuntimeVersion();

}  // namespace jax_flux
