// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// How boxes leave for a peer and how their flag follows: the one place where an emulated link can
// stand in for the hardware (benchmarks/native/paced_link.cuh). Used by the pusher (push_tma.cuh)
// and by the movers of matmul_rs (mover.cuh); one object per sending thread.
#ifndef JAX_FLUX_CUDA_KERNELS_LINK_CUH_
#define JAX_FLUX_CUDA_KERNELS_LINK_CUH_

#include "cuda/kernels/params.h"
#include "cuda/kernels/sync.cuh"

namespace jax_flux::kernels {

// The product: the hardware paces, nothing is counted.
struct DirectLink {
  __device__ __forceinline__ explicit DirectLink(const GemmParams&) {}
  // The store of a box to a peer was issued; `bytes` of it lie inside the tensor.
  __device__ __forceinline__ void Depart(std::int32_t) {}
  // All but the newest `in_flight` boxes have left, so that their buffers may be refilled, once
  // bulk::WaitStoreReads says the same.
  __device__ __forceinline__ void AwaitDeparted(int) {}
  // Release, system scope, of what bulk::WaitStores<0> has seen written; pairs with AwaitFlag or
  // the gate's sweep on `peer`. offset(source) is the flag's place in the row of that source.
  template <class Offset>
  __device__ __forceinline__ void Publish(const protocol::Call& call, std::uint64_t epoch,
                                          std::int32_t peer, Offset offset) {
    protocol::PublishFlag<DeviceMemory>(call, epoch, peer, offset(call.rank));
  }
  // The same flag at `count` peers: one fence for all, since each release takes a round trip. With
  // the stores a release, system scope, of what bulk::WaitStores<0> has seen written; pairs with
  // AwaitPartials on those peers.
  template <class Peer, class Offset>
  __device__ __forceinline__ void PublishAll(const protocol::Call& call, std::uint64_t epoch,
                                             std::int32_t count, Peer peer, Offset offset) {
    FenceReleaseSys();
    for (std::int32_t i = 0; i < count; ++i) {
      DeviceMemory::StoreRelaxed(call.base[peer(i)] + offset(call.rank), epoch);
    }
  }
};

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_LINK_CUH_
