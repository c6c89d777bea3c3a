// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What every protocol header shares: the host+device marker, integer helpers, the largest world.
#ifndef JAX_FLUX_CUDA_PROTOCOL_BASE_H_
#define JAX_FLUX_CUDA_PROTOCOL_BASE_H_

#include <cstdint>

#if defined(__CUDACC__)
#define JAX_FLUX_HD __host__ __device__ __forceinline__
#else
#define JAX_FLUX_HD inline
#endif

namespace jax_flux::protocol {

// Bumped whenever layout, flags or order change: ranks compare it before their first call.
inline constexpr std::int32_t kProtocolVersion = 3;

// One NVLink domain of a Hopper node. Larger groups take the reference.
inline constexpr std::int32_t kMaxWorld = 8;

JAX_FLUX_HD constexpr std::int32_t CeilDiv(std::int32_t a, std::int32_t b) {
  return (a + b - 1) / b;
}
JAX_FLUX_HD constexpr std::uint64_t AlignUp(std::uint64_t a, std::uint64_t alignment) {
  return (a + alignment - 1) / alignment * alignment;
}

}  // namespace jax_flux::protocol

#endif  // JAX_FLUX_CUDA_PROTOCOL_BASE_H_
