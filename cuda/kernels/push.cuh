// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Moves bytes with TMA through shared memory, driven by one thread: local memory to a peer's slot,
// a slot to the output. Route: all_gather_copy.cu, and the idle producer warp of the GEMM.
#ifndef JAX_FLUX_CUDA_KERNELS_PUSH_CUH_
#define JAX_FLUX_CUDA_KERNELS_PUSH_CUH_

#include <cstdint>

#include "cuda/kernels/sync.cuh"

namespace jax_flux::kernels {

// TMA's unit: addresses and sizes of bulk copies are multiples of it.
inline constexpr std::uint32_t kBulkBytes = 16;

// A double buffer in shared memory. State lives in the driving thread's registers.
template <std::uint32_t kPieceBytes>
class BulkMover {
 public:
  static constexpr int kStages = 2;
  static_assert(kPieceBytes % 128 == 0, "pieces keep the buffers' alignment");

  struct Shared {
    alignas(128) std::uint8_t piece[kStages][kPieceBytes];
    std::uint64_t landed[kStages];
  };

  __device__ explicit BulkMover(Shared& shared) : shared_(shared) {}

  // Once, by the driving thread, like every member below.
  __device__ void Init() {
    for (int stage = 0; stage < kStages; ++stage) bulk::BarrierInit(&shared_.landed[stage], 1);
  }

  // Starts moving `bytes` (a multiple of kBulkBytes) from `source` to `target`, both kBulkBytes
  // aligned. All loads have landed on return; call Drain before the data is announced.
  // Invariant: the load of piece i + 1 is in flight while piece i is stored.
  __device__ void Move(std::uint8_t* target, const std::uint8_t* source, std::uint64_t bytes) {
    const std::uint64_t pieces = (bytes + kPieceBytes - 1) / kPieceBytes;
    if (pieces == 0) return;
    Load(source, PieceBytes(bytes, 0));
    for (std::uint64_t piece = 0; piece < pieces; ++piece) {
      if (piece + 1 < pieces) {
        Load(source + (piece + 1) * kPieceBytes, PieceBytes(bytes, piece + 1));
      }
      Store(target + piece * kPieceBytes, PieceBytes(bytes, piece));
    }
  }

  // Every byte moved so far has reached its target and is visible to this thread: a release that
  // follows (PublishFlag) publishes it.
  __device__ void Drain() { bulk::WaitStores<0>(); }

 private:
  __device__ static std::uint32_t PieceBytes(std::uint64_t bytes, std::uint64_t piece) {
    const std::uint64_t rest = bytes - piece * kPieceBytes;
    return rest < kPieceBytes ? static_cast<std::uint32_t>(rest) : kPieceBytes;
  }

  __device__ void Load(const std::uint8_t* source, std::uint32_t bytes) {
    const std::uint32_t stage = loads_ % kStages;
    // The store that last used this stage is the newest one: wait until it has read it.
    if (loads_ >= kStages) bulk::WaitStoreReads<0>();
    // Pairs with BarrierWait in Store, CTA scope; TMA (async proxy) completes it.
    bulk::BarrierExpect(&shared_.landed[stage], bytes);
    bulk::Load(shared_.piece[stage], source, bytes, &shared_.landed[stage]);
    ++loads_;
  }

  __device__ void Store(std::uint8_t* target, std::uint32_t bytes) {
    const std::uint32_t stage = stores_ % kStages;
    // Pairs with Load's bytes. TMA wrote the piece and TMA reads it: one proxy, no fence.
    bulk::BarrierWait(&shared_.landed[stage], stores_ / kStages & 1);
    bulk::Store(target, shared_.piece[stage], bytes);
    bulk::CommitStores();
    ++stores_;
  }

  Shared& shared_;
  std::uint32_t loads_ = 0;
  std::uint32_t stores_ = 0;
};

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_PUSH_CUH_
