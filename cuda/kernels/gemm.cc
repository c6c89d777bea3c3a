// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cuda/kernels/gemm.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "cuda/kernels/copy.h"
#include "cuda/kernels/gemm_grid.h"
#include "cuda/kernels/params.h"
#include "cuda/kernels/tensor_map.h"

namespace jax_flux::kernels {
namespace {

constexpr std::uint64_t kElementBytes = 2;
constexpr std::uint32_t kTileK = 64;  // tile.cuh
constexpr std::uint32_t kBox = 64;    // rows and columns of a slot, tile.cuh

std::uint64_t U64(std::int32_t value) { return static_cast<std::uint64_t>(value); }
std::uint32_t U32(int value) { return static_cast<std::uint32_t>(value); }

// Rows of the boxes of x and, in the 64-row blocks of the output, of y and of partials.
int XBoxRows(const GemmInstance& instance, const protocol::TileGrid& grid) {
  return instance.kernel.packed ? grid.tile_rows : instance.x_load_rows;
}
// Segments of a box of x: all that a CTA's packed tile holds (gemm_packed.cuh, box_bytes).
std::uint32_t XBoxSegments(const GemmInstance& instance, const protocol::TileGrid& grid) {
  if (!instance.kernel.packed) return 1;
  return U32(std::min(instance.kernel.tile[0] / grid.tile_rows, grid.world));
}
int OutBoxRows(const protocol::TileGrid& grid) {
  return grid.pack > 0 ? std::min(grid.tile_rows, static_cast<std::int32_t>(kBox)) : kBox;
}

// RS flags of one (batch, tile row, tile column) of a segment.
int FlagsPerTile(const GemmInstance& instance, const protocol::TileGrid& grid) {
  const bool one_block = grid.pack > 0 && grid.tile_rows <= static_cast<std::int32_t>(kBox);
  return one_block ? 1 : instance.flags_per_tile;
}

protocol::ChunkGrid Chunks(const GemmInstance& instance, const GemmProblem& problem,
                           const GemmPlan& plan) {
  if (plan.transport == Transport::kCopy) return CopyChunks(problem, plan);
  protocol::ChunkGrid chunks = {problem.batch,   problem.rows,     problem.depth,
                                plan.chunk_rows, plan.chunk_depth, plan.depth_outer};
  chunks.to_self = instance.kernel.packed;
  chunks.peers = std::min(plan.push_peers, std::max(1, chunks.Receivers(problem.world)));
  return chunks;
}

// Array of `planes` x rows x width with two outer dimensions whose strides are given in planes.
TensorMapSpec Segmented(const void* base, std::int32_t width, std::int32_t rows,
                        std::int32_t segments, std::int32_t batch, std::uint32_t box_width,
                        int box_rows) {
  const std::uint64_t row = U64(width) * kElementBytes;
  TensorMapSpec spec;
  spec.base = base;
  spec.rank = 4;
  const std::uint64_t extent[] = {U64(width), U64(rows), U64(segments), U64(batch)};
  const std::uint64_t stride[] = {0, row, row * U64(rows), row * U64(rows) * U64(segments)};
  const std::uint32_t box[] = {box_width, U32(box_rows), 1, 1};
  std::copy_n(extent, 4, spec.extent);
  std::copy_n(stride, 4, spec.stride_bytes);
  std::copy_n(box, 4, spec.box);
  return spec;
}

// The halves of a data area: [parity][source][batch][row][width].
TensorMapSpec Area(const void* base, std::int32_t width, std::int32_t rows, std::int32_t batch,
                   std::int32_t world, std::uint64_t half_bytes, std::uint32_t box_width,
                   int box_rows, std::uint64_t halves = 2) {
  const std::uint64_t row = U64(width) * kElementBytes;
  const std::uint64_t plane = row * U64(rows);
  TensorMapSpec spec;
  spec.base = base;
  spec.rank = 5;
  const std::uint64_t extent[] = {U64(width), U64(rows), U64(batch), U64(world), halves};
  const std::uint64_t stride[] = {0, row, plane, plane * U64(batch), half_bytes};
  const std::uint32_t box[] = {box_width, U32(box_rows), 1, 1, 1};
  std::copy_n(extent, 5, spec.extent);
  std::copy_n(stride, 5, spec.stride_bytes);
  std::copy_n(box, 5, spec.box);
  return spec;
}

TensorMapSpec Weight(const GemmInstance& instance, const GemmProblem& problem, const void* w,
                     std::int32_t columns) {
  TensorMapSpec spec;
  spec.base = w;
  spec.rank = 2;
  const std::int32_t inner = problem.transpose_w ? problem.depth : columns;
  const std::int32_t outer = problem.transpose_w ? columns : problem.depth;
  spec.extent[0] = U64(inner);
  spec.extent[1] = U64(outer);
  spec.stride_bytes[1] = U64(inner) * kElementBytes;
  spec.box[0] = kTileK;
  spec.box[1] = U32(instance.w_load_rows);
  return spec;
}

// Collects the first error of a series of encodings.
class Encodings {
 public:
  explicit Encodings(GemmDtype dtype) : f16_(dtype == GemmDtype::kF16) {}
  void Add(TensorMapSpec spec, CUtensorMap* map) {
    spec.f16 = f16_;
    if (error_.empty()) error_ = EncodeTensorMap(spec, map);
  }
  const std::string& error() const { return error_; }

 private:
  bool f16_;
  std::string error_;
};

// Slots of the copy area: any multiple of 16 would do for the stride of the only half.
void EncodeCopied(const GemmInstance& instance, const GemmProblem& p, const protocol::Call& call,
                  GemmParams* params, Encodings* encode) {
  encode->Add(Area(call.base[p.rank] + call.layout.CopyDataOffset(), p.depth, p.rows, p.batch,
                   p.world, protocol::kAreaBytes, kTileK, instance.x_load_rows, /*halves=*/1),
              &params->x_slots);
  params->arrivals = call.layout.CopyFlags();
  params->parity_mask = 0;
  params->flat_chunks = true;
}

void EncodeGathered(const GemmInstance& instance, const GemmProblem& p, const void* x,
                    const protocol::Call& call, GemmParams* params, Encodings* encode) {
  params->arrivals = call.layout.AgFlags();
  params->parity_mask = 1;
  const std::uint64_t half = call.layout.AgHalfOffset(1) - call.layout.AgHalfOffset(0);
  const auto slots = [&](int rank, std::uint32_t box_width, int box_rows) {
    return Area(call.base[rank] + call.layout.AgHalfOffset(0), p.depth, p.rows, p.batch, p.world,
                half, box_width, box_rows);
  };
  TensorMapSpec loaded = slots(p.rank, kTileK, XBoxRows(instance, params->grid));
  loaded.box[3] = XBoxSegments(instance, params->grid);
  encode->Add(loaded, &params->x_slots);
  TensorMapSpec source =
      Segmented(x, p.depth, p.rows, p.batch, 1, kPushColumns, instance.push_rows);
  source.rank = 3;  // (k, row, batch)
  source.swizzled = false;
  encode->Add(source, &params->push_source);
  for (std::int32_t peer = 0; peer < p.world; ++peer) {
    if (peer == p.rank && !params->chunks.to_self) continue;
    TensorMapSpec target = slots(peer, kPushColumns, instance.push_rows);
    target.swizzled = false;
    encode->Add(target, &params->area[peer]);
  }
}

std::string FillParams(const GemmInstance& instance, const GemmProblem& p, const GemmPlan& plan,
                       const GemmOperands& operands, const protocol::Call* call,
                       GemmParams* params) {
  const auto& [x, w, y, epilogue, more] = operands;
  Encodings encode(instance.dtype);
  const std::int32_t x_segments = p.op == GemmOp::kMatmulRs ? p.world : 1;
  const std::int32_t y_segments = p.op == GemmOp::kAgMatmul ? p.world : 1;
  params->grid = Grid(instance, p, plan);
  params->chunks = Chunks(instance, p, plan);
  params->k_blocks = protocol::CeilDiv(p.depth, static_cast<std::int32_t>(kTileK));
  if (call != nullptr) params->call = *call;
  const int x_rows = XBoxRows(instance, params->grid);
  const int out_rows = OutBoxRows(params->grid);
  TensorMapSpec left = Segmented(x, p.depth, p.rows, x_segments, p.batch, kTileK, x_rows);
  if (p.op == GemmOp::kMatmulRs) left.box[2] = XBoxSegments(instance, params->grid);
  encode.Add(left, &params->x);
  encode.Add(Weight(instance, p, w, p.columns), &params->w);
  encode.Add(Segmented(y, p.columns, p.rows, y_segments, p.batch, kBox, out_rows), &params->y);
  params->epilogue = epilogue;
  params->epilogue.any_bias = epilogue.bias != nullptr;
  params->columns = p.columns;
  std::int32_t tiles = protocol::CeilDiv(p.columns, TileColumns(instance));
  for (int i = 0; i < kMoreWeights; ++i) {
    MoreWeight& to = params->more[i];
    to.columns = p.more_columns[i];
    to.first_tile = to.columns > 0 ? tiles : std::numeric_limits<std::int32_t>::max();
    if (to.columns == 0) continue;
    tiles += protocol::CeilDiv(to.columns, TileColumns(instance));
    encode.Add(Weight(instance, p, more[i].w, to.columns), &to.w);
    encode.Add(Segmented(more[i].y, to.columns, p.rows, y_segments, p.batch, kBox, kBox), &to.y);
    to.bias = more[i].bias;
    params->epilogue.any_bias |= to.bias != nullptr;
  }
  if (plan.transport == Transport::kCopy) {
    EncodeCopied(instance, p, *call, params, &encode);
  } else if (p.op == GemmOp::kAgMatmul) {
    EncodeGathered(instance, p, x, *call, params, &encode);
  }
  if (p.op == GemmOp::kMatmulRs) {
    for (std::int32_t rank = 0; rank < p.world; ++rank) {
      encode.Add(
          Area(call->base[rank] + call->layout.RsHalfOffset(0), p.columns, p.rows, p.batch, p.world,
               call->layout.RsHalfOffset(1) - call->layout.RsHalfOffset(0), kBox, out_rows),
          &params->area[rank]);
    }
  }
  return encode.error();
}

std::string Sentence(const std::string& what, std::int64_t value, const std::string& rule) {
  return what + " is " + std::to_string(value) + ": " + rule;
}

}  // namespace

const GemmInstance* FindGemm(std::string_view name) {
  for (const GemmInstance& instance : GemmInstances()) {
    if (name == instance.kernel.name) return &instance;
  }
  return nullptr;
}

std::string CanRun(const GemmInstance& instance, const GemmProblem& p, const GemmPlan& plan) {
  if (p.op != instance.op || p.transpose_w != instance.transpose_w) {
    return std::string("instance ") + instance.kernel.name + " computes another op or layout";
  }
  if (p.depth % 8 != 0) {
    return Sentence("k", p.depth, "TMA rows are multiples of 16 bytes, so k must be one of 8");
  }
  for (const std::int32_t columns :
       {p.columns, p.more_columns[0], p.more_columns[1], p.more_columns[2]}) {
    if (columns % 8 == 0) continue;
    return Sentence("n", columns, "TMA rows are multiples of 16 bytes, so n must be one of 8");
  }
  if (instance.kernel.packed && p.more_columns[0] != 0) {
    return "a launch of packed tiles has one weight";
  }
  if (p.op == GemmOp::kMatmulRs && p.more_columns[0] != 0) {
    return "the sums of several weights are several calls";
  }
  if (p.batch < 1 || p.rows < 1 || p.columns < 1 || p.depth < 1) {
    return "an extent is zero: there is nothing to multiply";
  }
  const bool alone = p.op == GemmOp::kPlain;
  if (alone ? p.world != 1 : p.world < 2 || p.world > protocol::kMaxWorld) {
    return Sentence("the group's size", p.world,
                    alone ? "the plain kernel is for one rank"
                          : "fused kernels are for 2 to " + std::to_string(protocol::kMaxWorld));
  }
  // Coordinates are int32 and reach past the last row and column by less than a tile.
  constexpr std::int32_t kMargin = 1 << 20;
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max() - kMargin;
  for (const auto& [name, extent] :
       {std::pair("m", std::int64_t{p.rows}), {"n", AllColumns(instance, p)}, {"k", p.depth}}) {
    if (extent > kMost) return Sentence(name, extent, "coordinates are 32-bit");
  }
  if (plan.raster_group < 1) return Sentence("raster_group", plan.raster_group, "at least 1");
  if (plan.sweep_segments < 1) return Sentence("sweep_segments", plan.sweep_segments, "at least 1");
  if (instance.kernel.packed && p.rows > instance.kernel.tile[0]) {
    return Sentence("m", p.rows,
                    "a packed tile holds whole segments of at most " +
                        std::to_string(instance.kernel.tile[0]) + " rows per rank");
  }
  const protocol::TileGrid grid = Grid(instance, p, plan);
  const std::int64_t tiles = std::int64_t{p.world} * p.batch * grid.RowTiles() *
                             grid.ColumnTiles() * instance.flags_per_tile;
  if (tiles > std::numeric_limits<std::int32_t>::max() / 2) {
    return Sentence("the number of tiles", tiles, "tickets are 32-bit");
  }
  if (plan.transport == Transport::kCopy && instance.kernel.packed) {
    return "packed tiles gather in the kernel: so few rows are no work for a copy engine";
  }
  if (plan.transport == Transport::kCopy) return CanCopy(p, plan);
  if (p.op == GemmOp::kAgMatmul &&
      (plan.chunk_rows < 1 || plan.chunk_depth < 1 || plan.chunk_rows % instance.push_rows != 0 ||
       plan.chunk_depth % static_cast<int>(kPushColumns) != 0)) {
    return "a chunk is not a whole number of push boxes";
  }
  if (plan.push_peers < 1) return Sentence("push_peers", plan.push_peers, "at least 1");
  if (plan.push_ctas < 1) return Sentence("push_ctas", plan.push_ctas, "at least 1");
  if (p.op == GemmOp::kAgMatmul) {
    const protocol::ChunkGrid chunks = Chunks(instance, p, plan);
    const std::int64_t pushes = std::int64_t{chunks.Receivers(p.world)} * p.batch *
                                chunks.RowChunks() * chunks.DepthChunks();
    if (plan.chunk_rows > kMargin || plan.chunk_depth > kMargin ||
        pushes > std::numeric_limits<std::int32_t>::max() / 2) {
      return Sentence("the number of chunks to push", pushes, "tickets are 32-bit");
    }
  }
  return std::string();
}

protocol::GenerationShape GemmNeeds(const GemmInstance& instance, const GemmProblem& p,
                                    const GemmPlan& plan) {
  protocol::GenerationShape needs = {};
  needs.world = p.world;
  const std::uint64_t shards = U64(p.world) * U64(p.batch) * U64(p.rows) * kElementBytes;
  if (plan.transport == Transport::kCopy) {
    // Without the flag that says "whole": copy engines do not write it, and nobody looks for it.
    needs.copy_flags = Chunks(instance, p, plan).Count();
    needs.copy_bytes = protocol::AlignUp(shards * U64(p.depth), protocol::kAreaBytes);
  } else if (p.op == GemmOp::kAgMatmul) {
    needs.ag_flags = Chunks(instance, p, plan).Flags();
    needs.ag_half_bytes = protocol::AlignUp(shards * U64(p.depth), protocol::kAreaBytes);
  } else if (p.op == GemmOp::kMatmulRs) {
    const protocol::TileGrid grid = Grid(instance, p, plan);
    needs.rs_flags = grid.SegmentTiles() * FlagsPerTile(instance, grid);
    needs.rs_half_bytes = protocol::AlignUp(shards * U64(p.columns), protocol::kAreaBytes);
  }
  return needs;
}

std::string LaunchGemm(const GemmInstance& instance, const GemmProblem& problem,
                       const GemmPlan& plan, const GemmOperands& operands,
                       const protocol::Call* call, cudaStream_t stream,
                       const Instruments& instruments) {
  std::string error = CanRun(instance, problem, plan);
  if (!error.empty()) return error;
  if (problem.op == GemmOp::kMatmulRs && operands.epilogue.activation != Activation::kNone) {
    return "matmul_rs has no activation";
  }
  if (plan.transport == Transport::kCopy && call->first_launch) {
    return "the first launch of a call whose shards are copied is its gate";
  }
  GemmParams params = {};
  error = FillParams(instance, problem, plan, operands, call, &params);
  if (!error.empty()) return error;
  params.push_ctas = plan.push_ctas;
  if (problem.op == GemmOp::kAgMatmul) params.depth_chunks = params.chunks.DepthChunks();
  params.instruments = instruments;
  int sms = 0;
  cudaError_t status = SmCount(&sms);
  if (status == cudaSuccess) {
    const int cluster = ClusterSize(instance.kernel);
    const int clusters = std::max(1, (sms - plan.sm_margin) / cluster);
    const int ctas = std::min(clusters, params.grid.TotalTiles()) * cluster;
    status = Launch(instance.kernel, ctas, &params, stream);
  }
  if (status == cudaSuccess) return std::string();
  return std::string("launching ") + instance.kernel.name + ": " + cudaGetErrorString(status);
}

}  // namespace jax_flux::kernels
