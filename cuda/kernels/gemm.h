// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Host side of the fused GEMM: what the handlers call. No CUTLASS and no driver type in it.
// Route: ffi handler -> Launch -> tensor maps and GemmParams -> gemm_sm90.cuh.
//
//   plain      x[b, m, k] . w -> y[b, m, n]
//   ag_matmul  x[b, m, k] of every rank, gathered, . w -> y[b, W, m, n]
//   matmul_rs  x[b, W, m, k] . w, summed over ranks in f32 -> own y[b, m, n]
//
// Bias and activation (epilogue.h) come before the one rounding of y.
// w is [k, n], or [n, k] when transposed. All bf16 or all f16, row-major, contiguous; sums in f32.
#ifndef JAX_FLUX_CUDA_KERNELS_GEMM_H_
#define JAX_FLUX_CUDA_KERNELS_GEMM_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/kernels/epilogue.h"
#include "cuda/kernels/registry.h"
#include "cuda/protocol/epoch.h"
#include "cuda/protocol/layout.h"

namespace jax_flux::kernels {

enum class GemmOp : int { kPlain = 0, kAgMatmul = 1, kMatmulRs = 2 };
enum class GemmDtype : int { kBf16 = 0, kF16 = 1 };

// One row of instances.bzl, compiled.
struct GemmInstance {
  Kernel kernel;  // tile: rows, columns, depth of one CTA's tile
  GemmOp op;
  GemmDtype dtype;
  bool transpose_w;
  int flags_per_tile;  // rs flags of one cluster tile
  int x_load_rows;     // rows of the boxes that the kernel's maps must have
  int w_load_rows;
  int push_rows;
};

inline constexpr int kMoreWeights = 3;  // beside the first; plain and ag_matmul

// Shapes of one call as one rank sees it. world = 1 and rank = 0 for plain.
struct GemmProblem {
  GemmOp op;
  bool transpose_w;
  std::int32_t world;
  std::int32_t rank;
  std::int32_t batch;
  std::int32_t rows;  // m per rank
  std::int32_t columns;
  std::int32_t depth;
  // Of further weights that multiply the same x in the same launch; 0 past the last.
  std::int32_t more_columns[kMoreWeights] = {};
};

// Who brings the peers' shards of ag_matmul.
enum class Transport : int {
  kTma = 0,   // idle warps of the kernel push ours
  kCopy = 1,  // copy engines push ours, behind a gate (copy.h); the kernel only waits
};

// Choices that change speed and flags, never results. Equal on all ranks.
struct GemmPlan {
  std::int32_t raster_group = 16;   // tile rows that share a walk over the columns
  std::int32_t sweep_segments = 1;  // peers' segments in one sweep (protocol::TileGrid)
  // ag: unit of a push and its flag. Copied: rows of a piece, counted through the batches; whole k.
  std::int32_t chunk_rows = 128;
  std::int32_t chunk_depth = 1024;
  bool depth_outer = false;          // ag: all rows of a k range first
  std::int32_t sm_margin = 0;        // SMs left free
  std::int32_t push_peers = 1;       // ag: peers served in turn (protocol::ChunkGrid)
  std::int32_t push_ctas = 1 << 20;  // ag: CTAs that push at a time
  Transport transport = Transport::kTma;
};

// Device pointers, 16-byte aligned; biases 4.
struct GemmWeight {
  const void* w;
  void* y;
  const void* bias;  // null for none
};
struct GemmOperands {
  const void* x;
  const void* w;
  void* y;
  Epilogue epilogue;
  GemmWeight more[kMoreWeights] = {};  // as many as the problem's more_columns
};

// Device memory of instances that are built to be looked at; null for the product's.
struct Instruments {
  void* link = nullptr;   // of an emulated link: benchmarks/native/paced_link.cuh
  void* trace = nullptr;  // TraceBytes of it, zeroed: trace.cuh
};

inline constexpr int kTraceRoles = 6;     // producer, pusher, two movers, two consumers
inline constexpr int kTraceSpans = 1024;  // that a role has room for
inline constexpr std::uint64_t kTraceLineBytes = 16;

// Bytes that a traced launch of `ctas` CTAs may write.
constexpr std::uint64_t TraceBytes(int ctas) {
  return static_cast<std::uint64_t>(ctas) * kTraceRoles * (kTraceSpans + 1) * kTraceLineBytes;
}

// Every instance, in the order of the table.
const std::vector<GemmInstance>& GemmInstances();
// Null when no instance has this name.
const GemmInstance* FindGemm(std::string_view name);

// Empty when the instance can run the problem, else the rule it breaks, in words.
std::string CanRun(const GemmInstance& instance, const GemmProblem& problem, const GemmPlan& plan);

// A reasonable plan for shapes that nobody tuned.
GemmPlan DefaultPlan(const GemmInstance& instance, const GemmProblem& problem,
                     Transport transport = Transport::kTma);

// What a generation must hold for this call.
protocol::GenerationShape GemmNeeds(const GemmInstance& instance, const GemmProblem& problem,
                                    const GemmPlan& plan);

// Enqueues one launch. `call` is null for plain; else its generation satisfies GemmNeeds, and its
// op, rank and world are the problem's; with Transport::kCopy the gate is its first launch.
// Allocates and synchronises nothing: may run under capture. `instruments` is for instances built
// to measure. Empty on success, else what failed.
std::string LaunchGemm(const GemmInstance& instance, const GemmProblem& problem,
                       const GemmPlan& plan, const GemmOperands& operands,
                       const protocol::Call* call, cudaStream_t stream,
                       const Instruments& instruments = {});

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_GEMM_H_
