// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The tiles of a launch, on the host: what its plan (gemm_plan.cc) and its arguments (gemm.cc)
// share.
#ifndef JAX_FLUX_CUDA_KERNELS_GEMM_GRID_H_
#define JAX_FLUX_CUDA_KERNELS_GEMM_GRID_H_

#include <algorithm>

#include "cuda/kernels/gemm.h"

namespace jax_flux::kernels {

constexpr std::uint32_t kPushColumns = 256;  // tile.cuh

inline int TileColumns(const GemmInstance& instance) {
  return instance.kernel.tile[1] * instance.kernel.cluster[1];
}

// Columns of all weights, each in whole tiles where there are several.
inline std::int64_t AllColumns(const GemmInstance& instance, const GemmProblem& p) {
  if (p.more_columns[0] == 0) return p.columns;
  const std::int64_t unit = TileColumns(instance);
  std::int64_t tiles = protocol::CeilDiv(p.columns, static_cast<std::int32_t>(unit));
  for (const std::int32_t columns : p.more_columns) {
    tiles += protocol::CeilDiv(columns, static_cast<std::int32_t>(unit));
  }
  return tiles * unit;
}

// Rows from one segment to the next in a packed tile: a power of two, so that a segment begins on a
// swizzle atom of 8 rows and fills or divides a 64-row block.
inline std::int32_t PackHeight(std::int32_t rows) {
  std::int32_t height = 8;
  while (height < rows) height *= 2;
  return height;
}

inline protocol::TileGrid Grid(const GemmInstance& instance, const GemmProblem& problem,
                               const GemmPlan& plan) {
  const std::int32_t tile_rows = instance.kernel.tile[0] * instance.kernel.cluster[0];
  const auto columns = static_cast<std::int32_t>(AllColumns(instance, problem));
  if (instance.kernel.packed) {
    const std::int32_t height = PackHeight(problem.rows);
    protocol::TileGrid grid = {problem.world, problem.rank, problem.batch,         problem.rows,
                               columns,       height,       TileColumns(instance), 1};
    grid.pack = tile_rows / height;
    return grid;
  }
  // More than all segments or rows is all of them; as given it might overflow in TileAt.
  const std::int32_t sweep = std::min(plan.sweep_segments, problem.world);
  const std::int32_t group =
      std::min(plan.raster_group, sweep * protocol::CeilDiv(problem.rows, tile_rows));
  return {problem.world, problem.rank,          problem.batch, problem.rows, columns,
          tile_rows,     TileColumns(instance), group,         sweep};
}

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_GEMM_GRID_H_
