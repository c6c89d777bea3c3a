// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Seam 3 for packed tiles, the consumers' side: boxes of a stream hold rows of several segments.
// The movers' side: mover_packed.cuh.
#ifndef JAX_FLUX_CUDA_KERNELS_SINK_PACKED_CUH_
#define JAX_FLUX_CUDA_KERNELS_SINK_PACKED_CUH_

#include "cuda/kernels/epilogue.cuh"
#include "cuda/kernels/pack.cuh"
#include "cuda/kernels/sink.cuh"

namespace jax_flux::kernels {

// The same number, which the compiler takes for another: what follows from it is computed again
// instead of kept in registers that 192 accumulators do not leave.
__device__ __forceinline__ std::int32_t Forget(std::int32_t number) {
  asm volatile("" : "+r"(number));
  return number;
}

// Consumer side of one stream.
template <class Tile>
struct PackedWriter : SlotWriter<Tile> {
  using Base = SlotWriter<Tile>;
  using Base::cursor;
  using Base::smem;
  using Base::stream;

  __device__ PackedWriter(SharedMemory<Tile>& shared, int stream_idx) : Base(shared, stream_idx) {}

  // Writes the 64-row blocks that `wanted(span)` names.
  template <class Accumulator, class Wanted>
  __device__ __forceinline__ void WriteBlocks(const Accumulator& acc, const Pack& pack,
                                              Wanted wanted) {
#pragma unroll
    for (int block = 0; block < Tile::kRowBlocks; ++block) {
      if (!wanted(SpanOfBlock<Tile>(pack, stream, block))) continue;
#pragma unroll
      for (int column = 0; column < Tile::kColumnBoxes; ++column) {
        this->WriteBox(acc, block, column);
      }
    }
  }

  // Adds the partials of the own segment to its rows, in the order in which the mover fetches
  // them: a slot holds as many peers' boxes below each other as fit.
  template <class Accumulator>
  __device__ __forceinline__ void AddOwn(Accumulator& acc, const Pack& pack, std::int32_t own,
                                         std::int32_t partials) {
    using Of = Pair<typename Tile::Element>;
    const std::int32_t height = pack.BoxHeight();
    const std::int32_t capacity = kBoxRows / height;
    const std::uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int block = 0; block < Tile::kRowBlocks; ++block) {
      if (!SpanOfBlock<Tile>(pack, stream, block).Has(own)) continue;
      const std::int32_t start = own * pack.height - Tile::BlockRow(stream, block);
      // This thread's first row of the block, counted from the own segment's first one there.
      const std::int32_t row =
          static_cast<std::int32_t>(threadIdx.x / 32 % 4 * 16 + lane / 4) - (start > 0 ? start : 0);
#pragma unroll
      for (int column = 0; column < Tile::kColumnBoxes; ++column) {
        for (std::int32_t left = partials; left > 0; left -= capacity) {
          // Pairs with the TMA loads of FetchPartials; their bytes complete on this barrier.
          smem.slot_full[stream][cursor.Slot()].Wait(cursor.FullParity(), "partial");
          const std::uint32_t slot = SmemAddress(smem.slot[stream][cursor.Slot()]);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            if (row + half * 8 < 0 || row + half * 8 >= height) continue;
            std::uint32_t line = slot + (row + half * 8) * 128 + lane % 4 * 4;
#pragma unroll 1
            for (std::int32_t box = 0; box < min(left, capacity); ++box, line += height * 128) {
#pragma unroll
              for (int group = 0; group < 8; ++group) {
                std::uint32_t word;
                // Rows lie in the 128-byte swizzle: 16-byte column q of row r at q ^ (r mod 8).
                asm volatile("ld.shared.b32 %0, [%1];"
                             : "=r"(word)
                             : "r"(line + ((group ^ lane / 4) << 4))
                             : "memory");
                const int j = column * 8 + group;
                acc(cute::make_coord(0, half, j), block, 0) += Of::Low(word);
                acc(cute::make_coord(1, half, j), block, 0) += Of::High(word);
              }
            }
          }
          FenceSharedToAsync();  // our reads before the TMA write that fills the slot next
          __syncwarp();          // lanes without own rows are ahead, and the barrier counts warps
          this->SyncStream();
          // Pairs with the mover's wait in FetchPartials or StoreBoxes, CTA scope.
          if (threadIdx.x % kWarpgroup == 0) smem.slot_empty[stream][cursor.Slot()].Arrive();
          cursor.Advance();
        }
      }
    }
  }

  // What follows the last MMA of a tile. Bias and activation belong to the owner of a row: foreign
  // parts of matmul_rs have left before, own ones get the bias after their partials.
  template <class Sink, class Accumulator, class TileOf>
  __device__ __forceinline__ void Finish(Accumulator& acc, const GemmParams& params,
                                         std::int32_t ticket, std::int32_t cta_rank,
                                         TileOf tile_of) {
    if constexpr (Sink::kReduces) {
      const Pack pack = PackOf<Tile>(params, tile_of(ticket), cta_rank);
      const std::int32_t own = pack.Own(params);
      WriteBlocks(acc, pack, [&](const PackSpan& span) { return span.HasOther(own); });
      if (!SpanOfStream<Tile>(pack, stream).Has(own)) return;
      AddOwn(acc, pack, own, params.call.world - 1);
    }
    const protocol::TileCoord at = tile_of(Forget(ticket));
    if (params.epilogue.bias != nullptr) {
      AddBias<Tile>(acc, params.epilogue.bias, CtaColumn<Tile>(at, cta_rank), params.grid.columns);
    }
    if constexpr (!Sink::kReduces) Activate(acc, params.epilogue.activation);
    const Pack pack = PackOf<Tile>(params, tile_of(Forget(ticket)), cta_rank);
    const std::int32_t own = pack.Own(params);
    WriteBlocks(acc, pack, [&](const PackSpan& span) {
      return Sink::kReduces ? span.Has(own) : !span.Empty();
    });
  }
};

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_SINK_PACKED_CUH_
