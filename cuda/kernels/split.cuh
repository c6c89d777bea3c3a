// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Two CTAs of a cluster share the k blocks of a tile: the one that does not finish a 64-row block
// hands its f32 sums of it to the other through shared memory of the cluster. CTA c finishes block
// c with its consumer c; there the slots of stream 1 - c are free, and the sums travel through
// them, 16 values per thread and slot. Floating-point addition commutes, so the sum is the same
// whoever finishes.
#ifndef JAX_FLUX_CUDA_KERNELS_SPLIT_CUH_
#define JAX_FLUX_CUDA_KERNELS_SPLIT_CUH_

#include "cuda/kernels/mbarrier.cuh"
#include "cuda/kernels/tile.cuh"

namespace jax_flux::kernels {

// One consumer warpgroup; all its threads call every member together.
template <class Tile>
struct SumExchange {
  static constexpr int kValues = kBoxBytes / 4 / kWarpgroup;  // of a thread in one slot

  SharedMemory<Tile>& smem;
  int stream;
  std::uint32_t peer;  // cluster rank of the CTA with the other k blocks
  RingCursor<Tile::kSlots> cursor;

  __device__ SumExchange(SharedMemory<Tile>& shared, int stream_idx, std::int32_t cta_rank)
      : smem(shared),
        stream(stream_idx),
        peer(static_cast<std::uint32_t>((cta_rank + Tile::kShare) % Tile::kCluster)) {}

  __device__ __forceinline__ std::uint32_t Offset(int part) const {
    return (part * kWarpgroup + threadIdx.x % kWarpgroup) * 16;
  }

  // Gives the sums to the peer's consumer of the same number.
  template <class Accumulator>
  __device__ __forceinline__ void Send(const Accumulator& acc) {
#pragma unroll
    for (int first = 0; first < cute::size(acc); first += kValues) {
      // Acquire, cluster scope; pairs with the peer's ReleaseAt in Receive: it has read what the
      // slot held.
      smem.slot_empty[stream][cursor.Slot()].WaitCluster(cursor.EmptyParity(), "slot of the peer");
      const std::uint32_t slot =
          PeerAddress(SmemAddress(smem.slot[stream ^ 1][cursor.Slot()]), peer);
      const std::uint32_t full =
          PeerAddress(SmemAddress(&smem.slot_full[stream ^ 1][cursor.Slot()].word), peer);
#pragma unroll
      for (int part = 0; part < kValues / 4; ++part) {
        const int i = first + part * 4;
        // Weak stores whose bytes complete on the peer's barrier: its wait sees them.
        asm volatile(
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
            "[%5];" ::"r"(slot + Offset(part)),
            "f"(acc(i)), "f"(acc(i + 1)), "f"(acc(i + 2)), "f"(acc(i + 3)), "r"(full)
            : "memory");
      }
      cursor.Advance();
    }
  }

  // Adds the peer's sums. The ring's slots and full barriers are those of stream 1 - c here, its
  // empty barrier is the peer's of stream c: neither CTA uses them for anything else.
  template <class Accumulator>
  __device__ __forceinline__ void Receive(Accumulator& acc) {
#pragma unroll
    for (int first = 0; first < cute::size(acc); first += kValues) {
      MBarrier& full = smem.slot_full[stream ^ 1][cursor.Slot()];
      if (threadIdx.x % kWarpgroup == 0) full.ArriveExpect(kBoxBytes);
      // Acquire, cluster scope: the stores are another CTA's, and complete on this barrier.
      full.WaitCluster(cursor.FullParity(), "sums of the peer");
      const std::uint32_t slot = SmemAddress(smem.slot[stream ^ 1][cursor.Slot()]);
#pragma unroll
      for (int part = 0; part < kValues / 4; ++part) {
        const int i = first + part * 4;
        float value[4];
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(value[0]), "=f"(value[1]), "=f"(value[2]), "=f"(value[3])
                     : "r"(slot + Offset(part))
                     : "memory");
#pragma unroll
        for (int v = 0; v < 4; ++v) acc(i + v) += value[v];
      }
      // The warpgroup has read the slot: every lane of it, because the barrier counts a warp with
      // the first lanes that come, and lanes leave a wait apart. Then release, cluster scope; pairs
      // with the wait in the peer's Send.
      __syncwarp();
      NamedBarrierSync(static_cast<std::uint32_t>(NamedBarrier::kStream0) + stream, kWarpgroup);
      if (threadIdx.x % kWarpgroup == 0) smem.slot_empty[stream][cursor.Slot()].ReleaseAt(peer);
      cursor.Advance();
    }
  }
};

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_SPLIT_CUH_
