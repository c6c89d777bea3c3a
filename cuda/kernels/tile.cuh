// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What one instance is made of: tile and cluster shape, MMA, and the shared-memory map.
//
//   a[stages] | b[stages] | slot[2 streams][slots] | push[2] | barriers, tickets
//
// A *stream* is one consumer warpgroup with its mover warp: it owns its slots, so the two streams
// never wait for each other. A slot is one box of 64 x 64 outputs in the 128-byte swizzle of TMA.
#ifndef JAX_FLUX_CUDA_KERNELS_TILE_CUH_
#define JAX_FLUX_CUDA_KERNELS_TILE_CUH_

#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>

#include "cuda/kernels/mbarrier.cuh"

namespace jax_flux::kernels {

inline constexpr int kTileK = 64;  // one 128-byte swizzle row of a 16-bit type
inline constexpr int kBoxRows = 64;
inline constexpr int kBoxColumns = 64;
inline constexpr int kBoxBytes = kBoxRows * kBoxColumns * 2;
inline constexpr int kPushColumns = 256;  // k extent of a push box: the widest TMA box
inline constexpr int kTickets = 4;        // depth of the ticket ring
inline constexpr int kStreams = 2;
inline constexpr int kWarpgroup = 128;
inline constexpr int kConsumerWarps = kWarpgroup / 32;
inline constexpr int kThreads = 3 * kWarpgroup;

// Warps of warpgroup 0. Warpgroups 1 and 2 are the consumers.
enum class Warp : int { kProducer = 0, kPusher = 1, kMover0 = 2, kMover1 = 3 };

// Hardware barrier ids; 0 is __syncthreads.
enum class NamedBarrier : std::uint32_t { kStream0 = 1, kStream1 = 2 };

// Element: bf16 or f16, of operands, partials and results; sums are f32.
// kPingPong: each consumer warpgroup computes whole tiles in turn, so that one's epilogue runs
// under the other's MMA. Else both share a tile in halves of 64-row blocks.
//
// kPacked: a tile holds short segments below each other, at power-of-two distances that the host
// chooses (pack.cuh), so that one walk over w serves them all.
// kSplit = 2: two CTAs of the cluster multiply alternate k blocks of one tile. Each finishes the
// 64-row block of its number, after the other has handed over its f32 sums of it (split.cuh).
template <class Element_, int kM, int kN, bool kPingPong_, int kClusterM_, int kClusterN_,
          bool kTransposeW_, int kStages_, int kSlots_, int kPushRows_, bool kPacked_ = false,
          int kSplit_ = 1>
struct TileConfig {
  using Element = Element_;
  static_assert(sizeof(Element) == 2, "boxes, swizzles and stages count 16-bit elements");
  static constexpr int kTileM = kM;
  static constexpr int kTileN = kN;
  static constexpr bool kPingPong = kPingPong_;
  static constexpr int kClusterM = kClusterM_;  // CTAs that share columns: B is multicast
  static constexpr int kClusterN = kClusterN_;  // CTAs that share rows: A is multicast
  static constexpr bool kPacked = kPacked_;
  static constexpr int kSplit = kSplit_;
  static constexpr int kShare = kClusterM * kClusterN;  // CTAs that multicast to each other
  static constexpr int kCluster = kShare * kSplit;
  static constexpr bool kTransposeW = kTransposeW_;
  static constexpr int kStages = kStages_;
  static constexpr int kSlots = kSlots_;  // per stream
  static constexpr int kPushRows = kPushRows_;
  static_assert(kShare <= 2 && kSplit <= 2, "larger clusters are not built");
  static_assert(kSplit == 1 || (kPacked && !kPingPong && kM == 128), "one row block per CTA");
  static_assert(!kPacked || kClusterN == 1, "a packed x is not multicast");

  static constexpr int kABytes = kTileM * kTileK * 2;
  static constexpr int kBBytes = kTileN * kTileK * 2;
  static constexpr int kPushBytes = kPushRows * kPushColumns * 2;

  // What one CTA loads of each operand; the cluster's other CTA multicasts the rest.
  static constexpr int kALoadRows = kTileM / kClusterN;
  static constexpr int kBLoadRows = (kTransposeW ? kTileN : kTileK) / kClusterM;
  static_assert(kALoadRows <= 256 && kBLoadRows <= 256, "TMA box limit");
  static_assert(kALoadRows % 8 == 0 && kBLoadRows % 8 == 0, "swizzle atoms have 8 rows");

  // 64-row blocks and 64-column boxes of one stream.
  static constexpr int kMmaWarpgroups = kPingPong ? 1 : 2;
  // Arrivals that free a slot: a warp of the consumer each, when it has read its rows of a partial,
  // or the mover for all of them. Packed tiles hand slots over by one thread.
  static constexpr int kSlotReaders = kPacked ? 1 : kConsumerWarps;
  // Boxes of the stages that a stream takes as further slots once nothing is loaded any more: with
  // ping-pong one stream has the last tile, else both have a half of it.
  // A power of two of them, so that a cursor is a count.
  static constexpr int kTailSlots = 16 / kMmaWarpgroups;
  static_assert(kTailSlots * kMmaWarpgroups * kBoxBytes <= kStages * (kABytes + kBBytes), "");
  static constexpr int kRowBlocks = kTileM / 64 / kMmaWarpgroups;
  static constexpr int kColumnBoxes = kTileN / kBoxColumns;
  static constexpr int kBoxes = kRowBlocks * kColumnBoxes;
  static_assert(kTileM % (64 * kMmaWarpgroups) == 0 && kTileN % kBoxColumns == 0, "");
  static_assert(kPacked || kBoxes >= kSlots, "a tile fills every slot at least once");
  static_assert(!kPacked || kPingPong || kRowBlocks == 1, "the rows of a stream are contiguous");

  // RS flags of one cluster tile: one per CTA and storing stream. Of each segment of a packed one:
  // one per 64-row block of it that different streams store.
  static constexpr int kFlagsPerTile = (kPacked ? 1 : kCluster) * kMmaWarpgroups;

  // Place of a CTA in its cluster.
  __device__ static constexpr std::int32_t RowOf(std::int32_t rank) { return rank % kClusterM; }
  __device__ static constexpr std::int32_t ColumnOf(std::int32_t rank) {
    return rank / kClusterM % kClusterN;
  }
  __device__ static constexpr std::int32_t SplitOf(std::int32_t rank) { return rank / kShare; }

  // First row inside the CTA tile of block `block` of stream `stream`.
  __device__ static constexpr int BlockRow(int stream, int block) {
    return kPingPong ? block * 64 : (block * 2 + stream) * 64;
  }

  static constexpr auto kMajorB = kTransposeW ? cute::GMMA::Major::K : cute::GMMA::Major::MN;
  using TileShape = cute::Shape<cute::Int<kTileM>, cute::Int<kTileN>, cute::Int<kTileK>>;
  using Mma = decltype(cute::make_tiled_mma(
      cute::GMMA::ss_op_selector<Element, Element, float,
                                 cute::Shape<cute::_64, cute::Int<kTileN>, cute::_64>,
                                 cute::GMMA::Major::K, kMajorB>(),
      cute::Layout<cute::Shape<cute::Int<kMmaWarpgroups>, cute::_1, cute::_1>>{}));
  // [kTileM, kTileK, stages], rows of 128 bytes.
  using LayoutA = decltype(cute::tile_to_shape(
      cute::GMMA::Layout_K_SW128_Atom<Element>{},
      cute::Shape<cute::Int<kTileM>, cute::Int<kTileK>, cute::Int<kStages>>{}));
  // [kTileN, kTileK, stages]: rows of 128 bytes of k, or boxes of 64 columns with k as rows.
  using LayoutB = decltype(cute::tile_to_shape(
      std::conditional_t<kTransposeW, cute::GMMA::Layout_K_SW128_Atom<Element>,
                         cute::GMMA::Layout_MN_SW128_Atom<Element>>{},
      cute::Shape<cute::Int<kTileN>, cute::Int<kTileK>, cute::Int<kStages>>{},
      std::conditional_t<kTransposeW, cute::Step<cute::_1, cute::_2, cute::_3>,
                         cute::Step<cute::_2, cute::_1, cute::_3>>{}));
};

template <class Tile>
struct SharedMemory {
  alignas(1024) std::uint8_t a[Tile::kStages][Tile::kABytes];
  alignas(1024) std::uint8_t b[Tile::kStages][Tile::kBBytes];
  alignas(1024) std::uint8_t slot[kStreams][Tile::kSlots][kBoxBytes];
  alignas(128) std::uint8_t push[2][Tile::kPushBytes > 0 ? Tile::kPushBytes : 1];
  MBarrier full[Tile::kStages];                 // producers' TMA -> consumers
  MBarrier empty[Tile::kStages];                // consumers -> producers of the cluster
  MBarrier slot_full[kStreams][Tile::kSlots];   // filler -> drainer of a slot
  MBarrier slot_empty[kStreams][Tile::kSlots];  // drainer -> filler
  MBarrier ticket_full[kTickets];               // leader -> every role of its cluster
  MBarrier ticket_empty[kTickets];              // every role -> leader; the leader's is used
  MBarrier push_full[2];                        // pusher's TMA -> pusher
  MBarrier turn[kStreams];                      // ping-pong: the other consumer -> this one
  MBarrier read[kStreams];  // consumers -> mover: the last tile's stages are read
  MBarrier tail_full[Tile::kMmaWarpgroups][Tile::kTailSlots];   // as slot_full
  MBarrier tail_empty[Tile::kMmaWarpgroups][Tile::kTailSlots];  // as slot_empty
  std::uint32_t ticket[kTickets];

  // Further slots of a stream once the last tile's stages are read: a and b as boxes.
  static constexpr int TailOf(int stream) { return Tile::kPingPong ? 0 : stream; }
  __device__ __forceinline__ auto TailSlots(int stream) {
    auto* boxes = reinterpret_cast<std::uint8_t(*)[kBoxBytes]>(a);
    return boxes + TailOf(stream) * Tile::kTailSlots;
  }
};

inline constexpr int kMaxSharedBytes = 227 * 1024;

}  // namespace jax_flux::kernels

#endif  // JAX_FLUX_CUDA_KERNELS_TILE_CUH_
