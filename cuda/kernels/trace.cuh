// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Timestamps of one launch per CTA and role, in instances that are built for it. Every role thread
// has a place of its own, so nothing is shared; jax_flux/tools/timeline.py reads it.
//
//   trace[cta][role] = head, span[kTraceSpans]       16 bytes each
#ifndef JAX_FLUX_CUDA_KERNELS_TRACE_CUH_
#define JAX_FLUX_CUDA_KERNELS_TRACE_CUH_

#include "cuda/kernels/params.h"
#include "cuda/kernels/sync.cuh"

namespace jax_flux::kernels {

enum class TraceRole : int { kProducer, kPusher, kMover0, kMover1, kConsumer0, kConsumer1 };
static_assert(static_cast<int>(TraceRole::kConsumer1) + 1 == kTraceRoles, "gemm.h has the count");

// Numbered as KINDS of timeline.py, which says what each is.
enum class Span : std::uint32_t {
  kGate = 1,
  kLoad,
  kTurn,
  kMma,
  kStarve,
  kAdd,
  kWrite,
  kStore,
  kFlag,
  kPartial,
  kFetch,
  kPush,
};

// Shorter waits are left out: they are the reading of flags and barriers that are up.
inline constexpr std::uint32_t kTraceGateNs = 100;
inline constexpr std::uint32_t kTraceStarveNs = 250;

// Times are the low half of %globaltimer, to keep registers: a launch is far shorter than 4 s.
using TraceTime = std::uint32_t;

// The product: no clock is read, nothing is stored.
struct NoTrace {
  __device__ __forceinline__ NoTrace(const GemmParams&, TraceRole, bool) {}
  __device__ __forceinline__ TraceTime Now() const { return 0; }
  // A span from `begin` to now; `index` is a ticket. Shorter ones than `least_ns` are left out.
  __device__ __forceinline__ void Add(Span, TraceTime, std::int32_t, std::uint32_t = 0) {}
  __device__ __forceinline__ void Finish() {}
};

// One role's recorder. `records` is true for one thread of the role.
class KernelTrace {
 public:
  __device__ __forceinline__ KernelTrace(const GemmParams& params, TraceRole role, bool records)
      : head_(records ? static_cast<Line*>(params.instruments.trace) +
                            (blockIdx.x * kTraceRoles + static_cast<int>(role)) * (kTraceSpans + 1)
                      : nullptr) {
    if (head_ == nullptr) return;
    const std::uint64_t begin = DeviceMemory::NowNs();
    std::uint32_t sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    *head_ = {static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(begin >> 32), 0, sm};
  }
  __device__ __forceinline__ TraceTime Now() const {
    TraceTime now;
    asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(now));
    return now;
  }

  __device__ __forceinline__ void Add(Span span, TraceTime begin, std::int32_t index,
                                      std::uint32_t least_ns = 0) {
    const TraceTime ns = Now() - begin;
    if (head_ == nullptr || ns < least_ns) return;
    ++count_;
    if (count_ <= kTraceSpans) {
      head_[count_] = {begin, ns, static_cast<std::uint32_t>(index),
                       static_cast<std::uint32_t>(span)};
    }
  }
  // The role's last word. The end of the kernel hands it all to the host.
  __device__ __forceinline__ void Finish() {
    if (head_ != nullptr) head_->word[2] = count_;
  }

 private:
  struct Line {
    // Head: begin, its high half, number of spans (those without room too), SM.
    // Span: begin, nanoseconds, index, kind.
    std::uint32_t word[4];
  };
  static_assert(sizeof(Line) == kTraceLineBytes, "gemm.h has the size");

  Line* head_;
  std::uint32_t count_ = 0;
};

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_TRACE_CUH_
