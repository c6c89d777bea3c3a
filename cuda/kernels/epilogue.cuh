// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Bias and activation on a consumer's accumulators, in f32, before sink.cuh rounds them once.
#ifndef JAX_FLUX_CUDA_KERNELS_EPILOGUE_CUH_
#define JAX_FLUX_CUDA_KERNELS_EPILOGUE_CUH_

#include <cute/tensor.hpp>

#include "cuda/kernels/element.cuh"
#include "cuda/kernels/epilogue.h"
#include "cuda/kernels/params.h"
#include "cuda/kernels/sink.cuh"
#include "cuda/kernels/tile.cuh"
#include "cuda/kernels/trace.cuh"

namespace jax_flux::kernels {

// Propagates what is no number, as jax.nn.relu does and fmaxf does not.
__device__ __forceinline__ float Relu(float x) {
  float result;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(result) : "f"(x));
  return result;
}

// silu(x) = x s(x) and gelu(x) = x (1 + tanh u) / 2 = x s(2 u), u = sqrt(2 / pi) (x + 0.044715
// x^3), with the logistic s: both are x / (1 + 2^(x (linear + cubic x^2))). Two special-function
// instructions; its relative error, below 1e-5, is far under the rounding that follows.
struct Logistic {
  float linear;
  float cubic;

  static constexpr float kMinusLog2E = -1.4426950408889634f;
  static constexpr float kGelu = 1.5957691216057308f;  // 2 sqrt(2 / pi)

  __device__ __forceinline__ explicit Logistic(Activation activation)
      : linear(activation == Activation::kGelu ? kMinusLog2E * kGelu : kMinusLog2E),
        cubic(activation == Activation::kGelu ? kMinusLog2E * kGelu * 0.044715f : 0.0f) {}

  __device__ __forceinline__ float operator()(float x) const {
    // Bounded, because inf * 0 would make silu of a huge number no number.
    const float square = fminf(x * x, 1e30f);
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * fmaf(cubic, square, linear)));
    return __fdividef(x, 1.0f + power);
  }
};

// acc of one stream, ((2, 2, N / 8), row blocks, 1), whose first column is `column` of `columns`, a
// multiple of 8. Branches are uniform.
template <class Tile, class Accumulator>
__device__ __forceinline__ void AddBias(Accumulator& acc, const void* bias, std::int32_t column,
                                        std::int32_t columns) {
  using Of = Pair<typename Tile::Element>;
  const auto* pairs = static_cast<const std::uint32_t*>(bias) + column / 2 + threadIdx.x % 4;
#pragma unroll
  for (int group = 0; group < Tile::kTileN / 8; ++group) {
    const std::uint32_t pair = column + group * 8 < columns ? __ldg(pairs + group * 4) : 0;
#pragma unroll
    for (int block = 0; block < Tile::kRowBlocks; ++block) {
#pragma unroll
      for (int row_half = 0; row_half < 2; ++row_half) {
        acc(cute::make_coord(0, row_half, group), block, 0) += Of::Low(pair);
        acc(cute::make_coord(1, row_half, group), block, 0) += Of::High(pair);
      }
    }
  }
}

template <class Accumulator>
__device__ __forceinline__ void Activate(Accumulator& acc, Activation activation) {
  if (activation == Activation::kRelu) {
#pragma unroll
    for (int i = 0; i < cute::size(acc); ++i) acc(i) = Relu(acc(i));
  } else if (activation != Activation::kNone) {
    const Logistic logistic(activation);
#pragma unroll
    for (int i = 0; i < cute::size(acc); ++i) acc(i) = logistic(acc(i));
  }
}

// From this rank's products to what is rounded: partials, bias, activation. All of a peer's tile is
// its owner's business.
template <class Tile, class Schedule, class Sink, class Accumulator, class Trace>
__device__ __forceinline__ void FinishTile(const GemmParams& params, Accumulator& acc,
                                           SlotWriter<Tile>& writer, std::int32_t ticket,
                                           const TicketRing<Tile>& tickets, Trace& trace) {
  const Epilogue& epilogue = params.epilogue;
  if constexpr (Sink::kReduces) {
    const protocol::TileCoord at = protocol::TileAt(params.grid, Schedule::kOrder, ticket);
    if (at.segment != params.call.rank) return;
    const TraceTime begin = trace.Now();
    writer.Add(acc, params, tickets);
    trace.Add(Span::kAdd, begin, ticket);
  }
  if (epilogue.any_bias) {
    protocol::TileCoord at = protocol::TileAt(params.grid, Schedule::kOrder, ticket);
    const void* bias = epilogue.bias;
    std::int32_t columns = params.columns;
    if constexpr (!Sink::kReduces) {
      if (const int weight = TakeWeight(params, at); weight > 0) {
        bias = params.more[weight - 1].bias;
        columns = params.more[weight - 1].columns;
      }
    }
    const auto cta_rank = static_cast<std::int32_t>(Tile::kCluster == 1 ? 0 : ClusterRank());
    if (bias != nullptr) AddBias<Tile>(acc, bias, CtaColumn<Tile>(at, cta_rank), columns);
  }
  // matmul_rs has no activation.
  if constexpr (!Sink::kReduces) Activate(acc, epilogue.activation);
}

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_EPILOGUE_CUH_
