// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The nanobind module: versions only, until the handlers land.
#include <nanobind/nanobind.h>

#include "cuda/ffi/cuda_version.h"
#include "xla/ffi/api/c_api.h"

NB_MODULE(_native, m) {
  m.def("versions", [] {
    nanobind::dict versions;
    versions["library"] = "0.1.0";
    versions["ffi_api"] = nanobind::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
    versions["cuda"] = jax_flux::CudaRuntimeVersion();
    return versions;
  });
}
