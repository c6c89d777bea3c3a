// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// A shard that copy engines carry, cut into pieces: contiguous bytes, whole rows through all
// batches, one flag each. A ChunkGrid of one batch and whole k, so that the gate reads it like any.
#ifndef JAX_FLUX_CUDA_PROTOCOL_PIECES_H_
#define JAX_FLUX_CUDA_PROTOCOL_PIECES_H_

#include "cuda/protocol/base.h"
#include "cuda/protocol/schedule.h"

namespace jax_flux::protocol {

// Measured, two H200, both directions at once: single copies of 1 MiB ran at 169 GB/s, 4 MiB 284,
// 16 MiB 356, 64 MiB 382. In a row on one stream they hide each other's start.
inline constexpr std::uint64_t kLeastPieceBytes = 4 << 20;
// Each piece costs two copies per peer, its data and its flag: fewer pieces for more peers, whose
// shards are needed one after the other anyway.
inline constexpr std::uint64_t kMostPieces = 8;
inline constexpr std::uint64_t kMostPiecesOfAllPeers = 16;
inline constexpr std::uint64_t kPieceRowUnit = 128;  // no tile of one batch waits for two pieces

// Rows of a piece when nobody has tuned them, of a shard of `rows` rows through all batches.
inline std::int32_t PieceRows(std::uint64_t rows, std::uint64_t row_bytes, std::int32_t world) {
  std::uint64_t most = kMostPiecesOfAllPeers / static_cast<std::uint64_t>(world - 1);
  most = most < kMostPieces ? most : kMostPieces;
  std::uint64_t pieces = rows * row_bytes / kLeastPieceBytes;
  pieces = pieces < 1 ? 1 : pieces > most ? most : pieces;
  const std::uint64_t piece = AlignUp((rows + pieces - 1) / pieces, kPieceRowUnit);
  return static_cast<std::int32_t>(piece < rows ? piece : rows);
}

inline ChunkGrid PieceGrid(std::int32_t rows, std::int32_t depth, std::int32_t piece_rows) {
  return {1, rows, depth, piece_rows < rows ? piece_rows : rows, depth, false};
}

// Bytes of the shard, and of its slot at every peer.
struct Piece {
  std::uint64_t offset;
  std::uint64_t bytes;
  std::int32_t flag;
};
// Piece `index` of grid.Count(), in the order of copying.
inline Piece PieceAt(const ChunkGrid& grid, std::uint64_t row_bytes, std::int32_t index) {
  const ChunkCoord at = ChunkAt(grid, index);
  const std::int32_t first = at.row_chunk * grid.chunk_rows;
  const std::int32_t rest = grid.rows - first;
  const std::int32_t rows = rest < grid.chunk_rows ? rest : grid.chunk_rows;
  return {static_cast<std::uint64_t>(first) * row_bytes,
          static_cast<std::uint64_t>(rows) * row_bytes,
          grid.FlagIndex(at.batch, at.row_chunk, at.depth_chunk)};
}

}  // namespace jax_flux::protocol

#endif  // JAX_FLUX_CUDA_PROTOCOL_PIECES_H_
