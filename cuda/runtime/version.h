// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Version of the native library; jax_flux/_version.py carries the same string.
#ifndef JAX_FLUX_CUDA_RUNTIME_VERSION_H_
#define JAX_FLUX_CUDA_RUNTIME_VERSION_H_

#include <cstdint>

namespace jax_flux::runtime {

inline constexpr char kLibraryVersion[] = "0.1.0";

// FNV-1a of the version, as the ranks compare it.
constexpr std::uint64_t LibraryHash() {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char* at = kLibraryVersion; *at != '\0'; ++at) {
    hash = (hash ^ static_cast<std::uint8_t>(*at)) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace jax_flux::runtime

#endif  // JAX_FLUX_CUDA_RUNTIME_VERSION_H_
