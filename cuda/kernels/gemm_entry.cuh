// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Turns a row of instances.bzl into a kernel and its description. Included by generated units only.
#ifndef JAX_FLUX_CUDA_KERNELS_GEMM_ENTRY_CUH_
#define JAX_FLUX_CUDA_KERNELS_GEMM_ENTRY_CUH_

#include <type_traits>

#include "cuda/kernels/gemm.h"
#include "cuda/kernels/gemm_sm90.cuh"

namespace jax_flux::kernels {

// The four seams of each op.
template <class Tile, GemmOp kOp>
struct Policies;

template <class Tile>
struct Policies<Tile, GemmOp::kPlain> {
  using Schedule = StaticSchedule<Tile::kCluster>;
  using Gate = OpenGate<Tile>;
  using Sink = StoreSink;
  using Pusher = NoPush;
};
template <class Tile>
struct Policies<Tile, GemmOp::kAgMatmul> {
  using Schedule = ClaimedSchedule<protocol::SegmentOrder::kOwnFirst>;
  using Gate = std::conditional_t<Tile::kPacked, PackGate, ChunkGate<Tile>>;
  using Sink = StoreSink;
  using Pusher = ShardPush;
};
template <class Tile>
struct Policies<Tile, GemmOp::kMatmulRs> {
  using Schedule = ClaimedSchedule<protocol::SegmentOrder::kOwnLast>;
  using Gate = std::conditional_t<Tile::kPacked, OpenPackGate, OpenGate<Tile>>;
  using Sink = ReduceScatterSink;
  using Pusher = EntryPush;
};

// The planner never picks an instance of an op with this suffix.
template <class Build>
constexpr bool kIsTraced = std::is_same_v<Build, Traced>;

template <class Tile, GemmOp kOp, class Build>
GemmInstance DescribeGemm(const char* name) {
  using Seams = Policies<Tile, kOp>;
  const auto function =
      GemmSm90<Tile, typename Seams::Schedule, typename Seams::Gate, typename Seams::Sink,
               typename Seams::Pusher, kOp != GemmOp::kPlain, Build>;
  GemmInstance instance = {};
  instance.kernel.name = name;
  if constexpr (kOp == GemmOp::kPlain) {
    instance.kernel.op = "plain";
  } else if constexpr (kOp == GemmOp::kAgMatmul) {
    instance.kernel.op = kIsTraced<Build> ? "ag_matmul_trace" : "ag_matmul";
  } else {
    instance.kernel.op = kIsTraced<Build> ? "matmul_rs_trace" : "matmul_rs";
  }
  constexpr bool kBf16 = std::is_same<typename Tile::Element, cutlass::bfloat16_t>::value;
  instance.kernel.dtype = kBf16 ? "bf16" : "f16";
  instance.kernel.layout = Tile::kTransposeW ? "nt" : "nn";
  instance.kernel.tile[0] = Tile::kTileM;
  instance.kernel.tile[1] = Tile::kTileN;
  instance.kernel.tile[2] = kTileK;
  instance.kernel.cluster[0] = Tile::kClusterM;
  instance.kernel.cluster[1] = Tile::kClusterN;
  instance.kernel.split = Tile::kSplit;
  instance.kernel.packed = Tile::kPacked;
  instance.kernel.transports = kOp == GemmOp::kAgMatmul && !Tile::kPacked ? "tma copy" : "tma";
  instance.kernel.function = reinterpret_cast<const void*>(function);
  instance.kernel.threads = kThreads;
  instance.kernel.dynamic_shared_bytes = static_cast<int>(sizeof(SharedMemory<Tile>));
  instance.op = kOp;
  instance.dtype = kBf16 ? GemmDtype::kBf16 : GemmDtype::kF16;
  instance.transpose_w = Tile::kTransposeW;
  instance.flags_per_tile = Tile::kFlagsPerTile;
  instance.x_load_rows = Tile::kALoadRows;
  instance.w_load_rows = Tile::kBLoadRows;
  instance.push_rows = Tile::kPushRows;
  return instance;
}

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_GEMM_ENTRY_CUH_
