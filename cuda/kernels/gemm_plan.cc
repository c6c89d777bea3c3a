// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The library's own numbers of a plan: raster, sweeps, chunks and pushers.

#include <algorithm>

#include "cuda/kernels/copy.h"
#include "cuda/kernels/gemm.h"
#include "cuda/kernels/gemm_grid.h"

namespace jax_flux::kernels {
namespace {

constexpr std::int32_t kSweepRows = 2048;  // rows that share a walk over w
// The same where the first wave takes peers' rows: so many arrive within half a tile's time.
constexpr std::int32_t kEarlyRows = 1024;
constexpr std::int32_t kWaveCtas = 132;  // SMs of H100 and H200: only speed hangs on it
// Outputs that these SMs finish while a link brings one row, at any k: a row of 2 k bytes comes at
// 350 GB/s, a product of 2 k takes its share of 720 TFLOP/s.
constexpr double kOutputsPerRow = 720e12 / 350e9;

// Packed tiles need every segment's first k range at once: chunks so long that all pushes, the own
// ones too, go out in one round, each by a CTA of its own.
void PlanPacked(const GemmProblem& p, GemmPlan* plan) {
  constexpr std::int32_t kPushes = 96;
  const std::int32_t row_chunks = p.batch * protocol::CeilDiv(p.rows, plan->chunk_rows);
  const std::int32_t depth_chunks = std::max(1, kPushes / std::max(1, row_chunks * p.world));
  const std::int32_t columns = static_cast<std::int32_t>(kPushColumns);
  plan->chunk_depth = std::max(2, protocol::CeilDiv(p.depth, depth_chunks * columns)) * columns;
  plan->depth_outer = true;
  plan->push_peers = p.world;
  plan->push_ctas = kPushes * 2;
}

}  // namespace

GemmPlan DefaultPlan(const GemmInstance& instance, const GemmProblem& p, Transport transport) {
  GemmPlan plan;
  const std::int32_t cluster_rows = instance.kernel.tile[0] * instance.kernel.cluster[0];
  const std::int32_t cluster = instance.kernel.cluster[0] * instance.kernel.cluster[1];
  // About 2048 rows of x stay in L2 while w streams past them.
  plan.raster_group = std::max(1, kSweepRows / cluster_rows);
  plan.transport = transport;
  const protocol::TileGrid grid = Grid(instance, p, plan);
  const std::int64_t own_tiles = std::int64_t{p.batch} * grid.RowTiles() * grid.ColumnTiles();
  const bool early = p.op == GemmOp::kAgMatmul && own_tiles * 8 < kWaveCtas / cluster * 7;
  // Segments of few rows share a sweep: each sweep reads all of w again. Nothing is divided by no
  // rows: CanRun, which refuses them in words, comes after.
  const std::int32_t segment_rows =
      std::max(1, protocol::CeilDiv(p.rows, cluster_rows)) * cluster_rows;
  const std::int32_t shared = (early ? kEarlyRows : kSweepRows) / segment_rows;
  plan.sweep_segments = std::max(1, std::min(p.world - 1, shared));
  if (transport == Transport::kCopy) {
    plan.chunk_rows = PieceRows(p);
    return plan;
  }
  const std::int64_t segment_rows_all = std::int64_t{p.batch} * p.rows;
  const double own_outputs =  // CanRun, which refuses what overflows, comes after
      static_cast<double>(segment_rows_all) * static_cast<double>(AllColumns(instance, p));
  const auto arrives_after = [&](std::int64_t segments, double outputs) {
    return static_cast<double>(segments * segment_rows_all) * kOutputsPerRow > outputs;
  };
  // Chunks in flight share the link: few pushers at a time, so that chunks arrive one by one, and
  // enough of them for the link (about 5 GB/s each, flags included). All of them where the link has
  // to be busy for most of the call.
  plan.push_ctas = arrives_after(p.world - 1, 0.8 * own_outputs * p.world) ? kWaveCtas : 64;
  plan.chunk_rows = 128;
  // 64 KiB where the first tiles wait for them, 256 else: those are there in time in any case.
  const std::int32_t columns = static_cast<std::int32_t>(kPushColumns);
  const std::int32_t rows = std::max(1, std::min(p.rows, plan.chunk_rows));
  const std::int32_t wanted = std::max(1, (early ? 1 : 4) * plan.chunk_rows / rows);
  plan.chunk_depth = std::min(wanted, protocol::CeilDiv(p.depth, columns)) * columns;
  // The first wave, and a sweep that begins before all of it is here, walk through k of every peer
  // that they touch.
  const bool walks = early || arrives_after(plan.sweep_segments, own_outputs);
  plan.push_peers = walks ? plan.sweep_segments : 1;
  plan.depth_outer = early || p.batch * protocol::CeilDiv(p.rows, plan.chunk_rows) <= 8;
  if (instance.kernel.packed) PlanPacked(p, &plan);
  return plan;
}

}  // namespace jax_flux::kernels
