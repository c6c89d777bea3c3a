// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// On-chip order: mbarriers in shared memory of one cluster and named barriers. Order between
// devices, and completion of bulk stores, live in sync.cuh.
#ifndef JAX_FLUX_CUDA_KERNELS_MBARRIER_CUH_
#define JAX_FLUX_CUDA_KERNELS_MBARRIER_CUH_

#include <cstdint>
#include <cstdio>

namespace jax_flux::kernels {

__device__ __forceinline__ std::uint32_t SmemAddress(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ std::uint32_t ClusterRank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// The same shared-memory offset in CTA `rank` of this cluster.
__device__ __forceinline__ std::uint32_t PeerAddress(std::uint32_t address, std::uint32_t rank) {
  std::uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}

// A barrier's n-th completion flips its parity; waiting for parity p returns once the phase with
// that parity is over. So a waiter must know that the phase before the awaited one is over: it has
// waited for that, or AwaitTurn (gemm_sm90.cuh) says so.
struct MBarrier {
  std::uint64_t word;

  // One thread, before FenceBarrierInit, which publishes it.
  __device__ __forceinline__ void Init(std::uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SmemAddress(&word)),
                 "r"(arrivals));
  }

  // Release at CTA scope of this thread's generic accesses; pairs with Wait on this barrier. What
  // TMA is to read or overwrite after that needs FenceSharedToAsync before.
  __device__ __forceinline__ void Arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SmemAddress(&word)) : "memory");
  }
  // For `arrivals` at once.
  __device__ __forceinline__ void Arrive(std::uint32_t arrivals) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(SmemAddress(&word)),
                 "r"(arrivals)
                 : "memory");
  }

  // Arrives and announces `bytes` of TMA writes (async proxy) that complete on this barrier; CTA
  // scope; pairs with Wait, which then sees the bytes.
  __device__ __forceinline__ void ArriveExpect(std::uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SmemAddress(&word)),
                 "r"(bytes)
                 : "memory");
  }

  // Arrives at this barrier of CTA `rank`, where it pairs with Wait: frees what that CTA's thread
  // will overwrite, hands over no data. Measured: with .release.cluster ptxas puts a GPU-wide fence
  // in front, which in the main loop costs more than the MMA it releases.
  __device__ __forceinline__ void ArriveAt(std::uint32_t rank) {
    asm volatile(
        "mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(PeerAddress(SmemAddress(&word), rank))
        : "memory");
  }

  // The same as a release, cluster scope: for reads of this thread, and of those it has met at a
  // barrier, before CTA `rank` overwrites what they read with plain or st.async stores; pairs with
  // WaitCluster there. Dear, see above: never in the main loop.
  __device__ __forceinline__ void ReleaseAt(std::uint32_t rank) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                     PeerAddress(SmemAddress(&word), rank))
                 : "memory");
  }

  // Sends a word to CTA `rank` and completes one phase of this barrier there with it: whoever waits
  // for the phase sees the word (async proxy, like a TMA load). Needs no fence.
  __device__ __forceinline__ void SendAt(std::uint32_t rank, std::uint32_t* target,
                                         std::uint32_t value) {
    const std::uint32_t barrier = PeerAddress(SmemAddress(&word), rank);
    asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], 4;" ::"r"(barrier)
                 : "memory");
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(
                     PeerAddress(SmemAddress(target), rank)),
                 "r"(value), "r"(barrier)
                 : "memory");
  }

  __device__ __forceinline__ bool TryWait(std::uint32_t parity) {
    std::uint32_t done;
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(SmemAddress(&word)), "r"(parity)
        : "memory");
    return done != 0;
  }

  // Acquire at cluster scope: for what another CTA of the cluster released with ReleaseAt, or wrote
  // by st.async with its completion on this barrier.
  __device__ __forceinline__ void WaitCluster(std::uint32_t parity, const char* what) {
#if defined(JAX_FLUX_DEBUG_WAITS)
    Wait(parity, what);
#endif
    std::uint32_t done = 0;
    while (done == 0) {
      asm volatile(
          "{\n\t.reg .pred p;\n\t"
          "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\t"
          "selp.u32 %0, 1, 0, p;\n\t}"
          : "=r"(done)
          : "r"(SmemAddress(&word)), "r"(parity)
          : "memory");
    }
    (void)what;
  }

  // Acquire at CTA scope: for arrivals of this CTA's threads, for completions of TMA and SendAt,
  // and for remote arrivals, which carry no data.
  __device__ __forceinline__ void Wait(std::uint32_t parity, const char* what) {
#if defined(JAX_FLUX_DEBUG_WAITS)
    for (const long long start = clock64(); !TryWait(parity);) {
      if (clock64() - start > kDebugPatience) Stuck(parity, what);
    }
#else
    while (!TryWait(parity)) {
    }
#endif
  }

#if defined(JAX_FLUX_DEBUG_WAITS)
  // -DJAX_FLUX_DEBUG_WAITS: an on-chip wait of seconds names itself and traps. Slow: calls
  // serialise wgmma.
  static constexpr long long kDebugPatience = 3000000000;
  __device__ __noinline__ void Stuck(std::uint32_t parity, const char* what) {
    printf("stuck: block %d thread %d waits for %s, parity %u\n", static_cast<int>(blockIdx.x),
           static_cast<int>(threadIdx.x), what, parity);
    asm volatile("trap;");
  }
#endif
};

// Makes barrier initialisation visible to the cluster's TMA and remote arrivals, once the barrier
// of the CTA or cluster that follows has been passed. Release, cluster scope.
__device__ __forceinline__ void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// All threads of all CTAs of the cluster meet; each sees what the others wrote before. Release and
// acquire, cluster scope, generic proxy.
__device__ __forceinline__ void ClusterSync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n\t"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// `threads` threads of this CTA meet; each sees what the others wrote before. CTA scope, generic
// proxy.
__device__ __forceinline__ void NamedBarrierSync(std::uint32_t id, std::uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Orders this thread's generic accesses to shared memory before later accesses by TMA, which go
// through the async proxy, once an mbarrier or CTA barrier has handed them on.
__device__ __forceinline__ void FenceSharedToAsync() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Position in a ring of kDepth slots, each guarded by a full and an empty barrier. Both sides walk
// the same sequence; an empty wait passes at once in the first round.
// One register: consumers hold 192 accumulators and have few to spare.
template <int kDepth>
struct RingCursor {
  static constexpr bool kCounts = (kDepth & (kDepth - 1)) == 0;
  std::uint32_t state = 0;  // uses so far (kCounts), else slot * 2 + parity

  __device__ __forceinline__ std::uint32_t Slot() const {
    return kCounts ? state % kDepth : state / 2;
  }
  __device__ __forceinline__ std::uint32_t FullParity() const {
    return kCounts ? state / kDepth % 2 : state % 2;
  }
  __device__ __forceinline__ std::uint32_t EmptyParity() const { return FullParity() ^ 1; }

  __device__ __forceinline__ void Advance() {
    if constexpr (kCounts) {
      ++state;
    } else {
      state = state + 2 < 2 * kDepth ? state + 2 : state % 2 ^ 1;
    }
  }
  // Skips `count` uses that another consumer takes.
  __device__ __forceinline__ void Skip(std::uint32_t count) {
    if constexpr (kCounts) {
      state += count;
    } else {
      const std::uint32_t total = Slot() + count;
      state = total % kDepth * 2 + ((FullParity() ^ total / kDepth) & 1);
    }
  }
};

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_MBARRIER_CUH_
