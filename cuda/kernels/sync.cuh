// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The only home of ordering PTX. Each helper names its partner, scope and proxy. Two layers:
//   DeviceMemory   memory policy of protocol/epoch.h (generic proxy)
//   bulk::         mbarriers and bulk copies by TMA (async proxy)
// Generic proxy: ordinary loads and stores. Async proxy: what TMA reads and writes. An access of
// one proxy is ordered after an access of the other only by the fences below or by the completion
// mechanism of the bulk copy itself.
#ifndef JAX_FLUX_CUDA_KERNELS_SYNC_CUH_
#define JAX_FLUX_CUDA_KERNELS_SYNC_CUH_

#include <cstdint>

#include "cuda/protocol/epoch.h"

namespace jax_flux::kernels {

// Makes this thread's earlier LoadRelaxed of flags acquire loads; pairs with StoreReleaseSys of a
// peer, system scope. Not .acq_rel, which also waits until this thread's stores have reached system
// memory: 1 to 3 us under load.
__device__ inline void FenceAcquireSys() { asm volatile("fence.acquire.sys;" ::: "memory"); }

// Makes this thread's later StoreRelaxed of flags release stores; pairs with their acquire on a
// peer, system scope. Releases what StoreReleaseSys would.
__device__ inline void FenceReleaseSys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

struct DeviceMemory {
  using Word = std::uint8_t;

  // Pairs with StoreReleaseSys of a peer device; system scope. What the peer wrote before its
  // release is visible to this thread's generic accesses after it, and through a CTA barrier to the
  // CTA's. Async-proxy reads need bulk::FenceGenericToAsync as well.
  __device__ static std::uint64_t LoadAcquireSys(const Word* p) {
    std::uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(p) : "memory");
    return value;
  }
  // Coherent at system scope, orders nothing.
  __device__ static std::uint64_t LoadRelaxed(const Word* p) {
    std::uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(p) : "memory");
    return value;
  }
  // Pairs with LoadAcquireSys of the owner; system scope. Releases this thread's writes, the writes
  // of threads that reached a CTA barrier before it, and bulk stores it has waited for
  // (bulk::WaitStores<0>).
  __device__ static void StoreReleaseSys(Word* p, std::uint64_t value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");
  }
  // Partner: a call of this device that runs at the same time, see CompareExchange; GPU scope.
  __device__ static void StoreReleaseGpu(Word* p, std::uint64_t value) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");
  }
  // Orders nothing: a release store that follows it publishes it, or the end of the launch.
  __device__ static void StoreRelaxed(Word* p, std::uint64_t value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");
  }
  // Partners: the same counter in the other CTAs of the launch; GPU scope. Acquire-release, so the
  // last arriver at kDoneCtas sees what every CTA did before it arrived.
  __device__ static std::uint32_t FetchAddAcqRel(Word* p, std::uint32_t add) {
    std::uint32_t old;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(p), "r"(add)
                 : "memory");
    return old;
  }
  // Partners: the other claimers of the same ticket counter; GPU scope, orders nothing.
  __device__ static std::uint32_t FetchAddRelaxed(Word* p, std::uint32_t add) {
    std::uint32_t old;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(p), "r"(add)
                 : "memory");
    return old;
  }
  // Read by the next launch only; the kernel boundary orders it.
  __device__ static void StoreRelaxed32(Word* p, std::uint32_t value) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
  }
  // Elects one thread of the device (first to report); GPU scope, orders nothing.
  __device__ static std::uint32_t Exchange32(Word* p, std::uint32_t value) {
    std::uint32_t old;
    asm volatile("atom.relaxed.gpu.global.exch.b32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(p), "r"(value)
                 : "memory");
    return old;
  }
  // Partner: the launch of another call on this device that found or set the busy word; GPU scope.
  __device__ static std::uint64_t CompareExchange(Word* p, std::uint64_t expected,
                                                  std::uint64_t desired) {
    std::uint64_t old;
    asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(p), "l"(expected), "l"(desired)
                 : "memory");
    return old;
  }
  __device__ static std::uint64_t NowNs() {
    std::uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
  }
  __device__ static void Pause() { __nanosleep(40); }

  // Host-mapped record: plain stores, then `ready`. Partner of the release: the host thread's
  // acquire (runtime/watchdog.cc); system scope.
  __device__ static void Publish(protocol::Failure* to, std::uint32_t* ready,
                                 const protocol::Failure& failure) {
    *to = failure;
    __threadfence_system();
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(ready), "r"(1u) : "memory");
    __threadfence_system();
  }
  // Whether somebody has published. Nothing is read after it, so it orders nothing; system scope.
  __device__ static bool Ready(const std::uint32_t* ready) {
    std::uint32_t value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(ready) : "memory");
    return value != 0;
  }

  __device__ static __forceinline__ void Warn(const protocol::Call& call,
                                              const protocol::Failure& failure) {
    // A report the host has not fetched yet says enough.
    if (Ready(&call.record->warning_ready)) return;
    Publish(&call.record->warning, &call.record->warning_ready, failure);
  }

  // Never returns: the trap ends the context, and the record outlives it in host memory.
  __device__ static __forceinline__ void Fail(const protocol::Call& call,
                                              const protocol::Failure& failure) {
    constexpr std::uint64_t kPatienceNs = 1000000000;
    if (Exchange32(call.Control(protocol::ControlWord::kFailed), 1) == 0) {
      Publish(&call.record->fatal, &call.record->fatal_ready, failure);
    } else {
      // Another thread writes the record; a trap of ours must not cut it off.
      const std::uint64_t start = NowNs();
      while (!Ready(&call.record->fatal_ready) && NowNs() - start < kPatienceNs) Pause();
    }
    __trap();
  }
};

namespace bulk {

__device__ inline std::uint32_t SharedAddress(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// Partner: a bulk copy of this thread that follows. Orders generic accesses of this thread, and
// those it has acquired, before its later async-proxy accesses; all state spaces.
__device__ inline void FenceGenericToAsync() { asm volatile("fence.proxy.async;" ::: "memory"); }

// Once per mbarrier, by one thread; the fence makes the initial state visible to the async proxy,
// which completes transactions on it.
__device__ inline void BarrierInit(std::uint64_t* barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  FenceGenericToAsync();
}

// Arrives and announces `bytes` that a bulk load will complete on this mbarrier; CTA scope.
__device__ inline void BarrierExpect(std::uint64_t* barrier, std::uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
}

// Waits for phase `parity`: all announced bytes have landed and are visible to this thread.
// Partner: Load's complete_tx (async proxy), CTA scope. No deadline: the load is of this CTA and
// waits for nobody.
__device__ inline void BarrierWait(std::uint64_t* barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}

// Async proxy, global -> shared; completes on `barrier`. 16-byte aligned, multiple of 16 bytes.
__device__ inline void Load(void* shared, const std::uint8_t* global, std::uint32_t bytes,
                            std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(SharedAddress(shared)),
      "l"(global), "r"(bytes), "r"(SharedAddress(barrier))
      : "memory");
}

// Async proxy, shared -> global (a peer's or our own); completes with its bulk group.
__device__ inline void Store(std::uint8_t* global, const void* shared, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(SharedAddress(shared)), "r"(bytes)
               : "memory");
}
__device__ inline void CommitStores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// All but the newest kPending groups of this thread have been written: visible to this thread, so a
// following release publishes them. The only wait that may precede a flag.
template <int kPending>
__device__ inline void WaitStores() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

// All but the newest kPending groups have read their shared memory: it may be overwritten. Says
// nothing about the destination.
template <int kPending>
__device__ inline void WaitStoreReads() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

}  // namespace bulk
}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_SYNC_CUH_
