// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Tensor-map copies by rank of the map. Loads complete on an mbarrier of the same offset in every
// receiving CTA; stores join the issuing thread's bulk group.
#ifndef JAX_FLUX_CUDA_KERNELS_TMA_CUH_
#define JAX_FLUX_CUDA_KERNELS_TMA_CUH_

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/kernels/mbarrier.cuh"

namespace jax_flux::kernels {

inline constexpr std::uint64_t kEvictNormal = 0x1000000000000000ull;

// kReceivers > 1: every CTA of the cluster gets the box at the same shared-memory offset.
template <int kReceivers, class... Coordinate>
__device__ __forceinline__ void TmaLoad(const CUtensorMap& map, MBarrier& barrier, void* smem,
                                        Coordinate... at) {
  if constexpr (kReceivers == 1) {
    cute::SM90_TMA_LOAD::copy(&map, &barrier.word, kEvictNormal, smem, at...);
  } else {
    constexpr std::uint16_t kAll = (1u << kReceivers) - 1;
    cute::SM90_TMA_LOAD_MULTICAST::copy(&map, &barrier.word, kAll, kEvictNormal, smem, at...);
  }
}

// The same for the kReceivers CTAs from `first` on.
template <int kReceivers, class... Coordinate>
__device__ __forceinline__ void TmaLoadFrom(std::int32_t first, const CUtensorMap& map,
                                            MBarrier& barrier, void* smem, Coordinate... at) {
  if constexpr (kReceivers == 1) {
    TmaLoad<1>(map, barrier, smem, at...);
  } else {
    const auto receivers = static_cast<std::uint16_t>(((1u << kReceivers) - 1) << first);
    cute::SM90_TMA_LOAD_MULTICAST::copy(&map, &barrier.word, receivers, kEvictNormal, smem, at...);
  }
}

template <class... Coordinate>
__device__ __forceinline__ void TmaStore(const CUtensorMap& map, const void* smem,
                                         Coordinate... at) {
  cute::SM90_TMA_STORE::copy(&map, smem, at...);
}

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_TMA_CUH_
