// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// cuda/protocol/pieces.h: pieces cover a shard once, in order, with a flag each, and are large.
#include "cuda/protocol/pieces.h"

#include <cstdio>

#include "tests/cc/check.h"

namespace jax_flux::test {
namespace {

using namespace protocol;

void CheckCover(std::int32_t rows, std::int32_t depth, std::int32_t piece_rows) {
  const std::uint64_t row_bytes = static_cast<std::uint64_t>(depth) * 2;
  const ChunkGrid grid = PieceGrid(rows, depth, piece_rows);
  std::uint64_t end = 0;
  for (std::int32_t index = 0; index < grid.Count(); ++index) {
    const Piece piece = PieceAt(grid, row_bytes, index);
    CHECK_EQ(piece.offset, end, "a gap in " << rows << " rows by " << piece_rows);
    CHECK(piece.bytes > 0, "an empty piece of " << rows << " rows by " << piece_rows);
    CHECK_EQ(piece.flag, index, "flags in the order of the pieces");
    end += piece.bytes;
  }
  CHECK_EQ(end, static_cast<std::uint64_t>(rows) * row_bytes, "the whole shard");
}

void CheckSizes(std::int32_t rows, std::int32_t depth, std::int32_t world) {
  const std::uint64_t row_bytes = static_cast<std::uint64_t>(depth) * 2;
  const std::int32_t piece_rows = PieceRows(static_cast<std::uint64_t>(rows), row_bytes, world);
  const ChunkGrid grid = PieceGrid(rows, depth, piece_rows);
  CheckCover(rows, depth, piece_rows);
  CHECK(static_cast<std::uint64_t>(grid.Count()) <= kMostPieces, grid.Count());
  CHECK(static_cast<std::uint64_t>(grid.Count() * (world - 1)) <= kMostPiecesOfAllPeers, world);
  const bool whole = piece_rows == rows;
  CHECK(whole || piece_rows % static_cast<std::int32_t>(kPieceRowUnit) == 0, piece_rows);
  const std::uint64_t bytes = static_cast<std::uint64_t>(piece_rows) * row_bytes;
  CHECK(whole || bytes >= kLeastPieceBytes, bytes << " bytes a piece");
}

}  // namespace
}  // namespace jax_flux::test

int main() {
  using namespace jax_flux::test;
  int cases = 0;
  for (int rows : {1, 7, 127, 128, 129, 520, 1000, 2048, 3000, 4096, 8191, 1 << 20}) {
    for (int depth : {8, 136, 4096, 12288, 65536}) {
      for (int world : {2, 3, 4, 8}) CheckSizes(rows, depth, world);
      for (int piece_rows : {1, 3, 128, 1 << 30}) {
        if (rows / piece_rows <= 1 << 16) CheckCover(rows, depth, piece_rows);
        ++cases;
      }
    }
  }
  std::printf("pieces_test: %d cases\n", cases);
  return 0;
}
