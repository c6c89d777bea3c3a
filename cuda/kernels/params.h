// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The one kernel argument. Constant over replays of a captured graph: everything that changes from
// call to call (epoch, parity) is read from the workspace.
#ifndef JAX_FLUX_CUDA_KERNELS_PARAMS_H_
#define JAX_FLUX_CUDA_KERNELS_PARAMS_H_

#include <cuda.h>

#include "cuda/kernels/gemm.h"
#include "cuda/protocol/epoch.h"
#include "cuda/protocol/layout.h"
#include "cuda/protocol/schedule.h"

namespace jax_flux::kernels {

// A further weight of the launch: its tile columns follow those of the weights before it.
struct MoreWeight {
  CUtensorMap w;  // as in GemmParams
  CUtensorMap y;
  const void* bias;
  std::int32_t columns;
  std::int32_t first_tile;  // its first tile column; past the last of all where there is no weight
};

// Tensor maps by role; coordinates innermost first. Unused ones stay zero.
struct GemmParams {
  CUtensorMap x;  // (k, row, segment, batch): the left operand where XLA put it
  // ag: (k, row, batch, segment, parity): shards of the peers; no second parity when copied
  CUtensorMap x_slots;
  CUtensorMap w;            // (n, k), or (k, n) when w is transposed
  CUtensorMap y;            // (n, row, segment, batch)
  CUtensorMap push_source;  // ag: (k, row, batch) of x in push boxes
  // ag: slots of each rank in push boxes. rs: partial area of each rank, own one for reading;
  // (n or k, row, batch, source segment, parity).
  CUtensorMap area[protocol::kMaxWorld];
  MoreWeight more[kMoreWeights];  // plain, ag
  std::int32_t columns;           // of the first weight
  protocol::TileGrid grid;      // its columns are those of whole tiles where there are more weights
  protocol::ChunkGrid chunks;   // ag: what one flag announces
  protocol::FlagArea arrivals;  // ag: those flags in our workspace
  std::uint32_t parity_mask;    // ag: 1, or 0 where the slots are the same in every epoch
  bool flat_chunks;             // ag: chunks run through the batches, row = batch * m + row
  std::int32_t depth_chunks;    // ag: chunks.DepthChunks(), a division less per look at flags
  std::int32_t k_blocks;        // of 64
  std::int32_t push_ctas;       // ag: CTAs that push at a time
  Epilogue epilogue;            // of y; a partial on its way to a peer has none
  protocol::Call call;          // unused by the plain kernel
  Instruments instruments;      // null in the product
};

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_PARAMS_H_
