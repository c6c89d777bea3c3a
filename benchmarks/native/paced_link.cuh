// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// An emulated link for one rank alone on one GPU (docs/kernels.md, "Paced link"). Never in the
// product: only the instances of this folder's BUILD are made with it.
//
// Departures: boxes of all threads of the rank queue for one link of a given rate, in the order in
// which they are stored. A box holds its buffer until it has left, so senders feel the link as they
// would a real one, and boxes of many senders take turns.
// Arrivals: ranks are alike, so what this one sends to r+d now is what r-d sends to it now. With
// each flag at the peer it therefore raises its own flag of that source and place. The data of the
// peers is in place beforehand.
// Not emulated: skew between ranks, several links with queues of their own, the fabric's order.
#ifndef JAX_FLUX_BENCHMARKS_NATIVE_PACED_LINK_CUH_
#define JAX_FLUX_BENCHMARKS_NATIVE_PACED_LINK_CUH_

#include "cuda/kernels/build.cuh"

namespace jax_flux::preset {

// In device memory, made by preset_rank.py, field by field. Times are in eighths of a nanosecond of
// %globaltimer: as many as fit 64 bits.
struct PacedLinkState {
  std::uint64_t free_at;  // when the last box in the queue will have left
  std::uint64_t padding[15];
  double ticks_per_byte;
  std::uint64_t flag_ticks;  // from the departure of the last box to its flag's arrival
};

class PacedLink {
 public:
  __device__ __forceinline__ explicit PacedLink(const kernels::GemmParams& params)
      : state_(static_cast<PacedLinkState*>(params.instruments.link)) {}

  __device__ __forceinline__ void Depart(std::int32_t bytes) {
    const auto ticks = static_cast<unsigned long long>(bytes * state_->ticks_per_byte + 0.5);
    auto* free_at = reinterpret_cast<unsigned long long*>(&state_->free_at);
    // An idle link has been free since now. Only then the box takes its place; other boxes in
    // between only make the queue longer.
    atomicMax(free_at, Now());
    leaves_[boxes_ % kRing] = atomicAdd(free_at, ticks) + ticks;
    ++boxes_;
  }

  __device__ __forceinline__ void AwaitDeparted(int in_flight) {
    if (boxes_ > in_flight) AwaitTime(leaves_[(boxes_ - 1 - in_flight) % kRing]);
  }

  template <class Offset>
  __device__ __forceinline__ void Publish(const protocol::Call& call, std::uint64_t epoch,
                                          std::int32_t peer, Offset offset) {
    if (boxes_ > 0) AwaitTime(leaves_[(boxes_ - 1) % kRing] + state_->flag_ticks);
    const std::int32_t source = (2 * call.rank + call.world - peer) % call.world;
    // Release, system scope; the first one pairs with AwaitFlag and the gate's sweep of this rank.
    protocol::PublishFlag<kernels::DeviceMemory>(call, epoch, call.rank, offset(source));
    protocol::PublishFlag<kernels::DeviceMemory>(call, epoch, peer, offset(call.rank));
  }
  template <class Peer, class Offset>
  __device__ __forceinline__ void PublishAll(const protocol::Call& call, std::uint64_t epoch,
                                             std::int32_t count, Peer peer, Offset offset) {
    for (std::int32_t i = 0; i < count; ++i) Publish(call, epoch, peer(i), offset);
  }

 private:
  static constexpr int kRing = 8;  // at least as many boxes as a sender has in flight

  __device__ static __forceinline__ unsigned long long Now() {
    return kernels::DeviceMemory::NowNs() * 8;
  }
  __device__ static __forceinline__ void AwaitTime(unsigned long long time) {
    while (Now() < time) __nanosleep(20);  // leaves the issue slots to the consumers
  }

  PacedLinkState* state_;
  unsigned long long leaves_[kRing];
  int boxes_ = 0;
};

struct Paced {
  using Link = PacedLink;
  using Trace = kernels::NoTrace;
};
struct PacedTraced {
  using Link = PacedLink;
  using Trace = kernels::KernelTrace;
};

}  // namespace jax_flux::preset

#endif  // JAX_FLUX_BENCHMARKS_NATIVE_PACED_LINK_CUH_
