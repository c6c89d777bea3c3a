// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Memory map of one workspace generation: where the control block, entry words, flags and data lie.
// Sizes and addresses both come from GenerationLayout, so they cannot disagree.
//
//   control | entries [W][2] | AG flags [W][ag_flags] | RS flags [W][rs_flags]
//           | copy flags [W][copy_flags] | AG data [2][ag_half] | RS data [2][rs_half]
//           | copy data [copy_bytes]
//
// Copy flags and data are those of gathers that copy engines carry: a captured graph freezes the
// addresses of its copies, so nothing there follows the epoch's parity (docs/protocol.md).
//
// Invariant: nothing here depends on a call's sizes. A half or a flag row that moved with the call
// would let a large call overwrite the other half of a small one, or give a flag word two writers.
#ifndef JAX_FLUX_CUDA_PROTOCOL_LAYOUT_H_
#define JAX_FLUX_CUDA_PROTOCOL_LAYOUT_H_

#include "cuda/protocol/base.h"

namespace jax_flux::protocol {

inline constexpr std::uint64_t kLineBytes = 128;   // one L2 line: words polled apart lie apart
inline constexpr std::uint64_t kAreaBytes = 1024;  // alignment of data areas (TMA wants >= 16)
inline constexpr std::uint64_t kFlagBytes = 8;     // a flag is a u64 epoch

// Words of the control block. Only the owning device touches them.
enum class ControlWord : std::int32_t {
  kEpoch = 0,   // u64: epoch of the last finished call
  kBusy,        // u64: call-site id of the running call, 0 when idle
  kTileTicket,  // u32: next tile (cluster) to claim
  kPushTicket,  // u32: next push to claim
  kCopyTicket,  // u32: next copy-out to claim; in a GEMM, which pushes, the next pusher's seat
  kDoneCtas,    // u32: CTAs of the running launch that have finished
  kWarned,      // u32: 1 once this call has reported a late peer
  kFailed,      // u32: 1 once a thread of this call has written the fatal record
  kCopyEpoch,   // u64: epoch of the last call that passed a copy gate; source of the flag copies
  kCount,
};

// What a generation can hold; equal on all ranks, fixed for its life.
struct GenerationShape {
  std::int32_t world;
  std::int32_t ag_flags;         // flags per source rank in the AG area
  std::int32_t rs_flags;         // flags per source rank in the RS area
  std::uint64_t ag_half_bytes;   // bytes of one AG half: W slots, one per source
  std::uint64_t rs_half_bytes;   // bytes of one RS half
  std::int32_t copy_flags = 0;   // flags per source rank in the copy area, which has no halves
  std::uint64_t copy_bytes = 0;  // W slots, one per source
};

// Flags of one kind: a row of words per source rank.
struct FlagArea {
  std::uint64_t begin;
  std::uint64_t row_bytes;

  // Flag `index` written by `source`: the same word in every epoch, so one writer for life.
  JAX_FLUX_HD std::uint64_t At(std::int32_t source, std::int32_t index) const {
    return begin + row_bytes * static_cast<std::uint64_t>(source) +
           kFlagBytes * static_cast<std::uint64_t>(index);
  }
};

struct GenerationLayout {
  GenerationShape shape;

  JAX_FLUX_HD std::uint64_t ControlOffset(ControlWord word) const {
    return static_cast<std::uint64_t>(word) * kLineBytes;
  }
  // u32 in the push ticket's line: chunks of this call that are at `peer`. Who counts the last one
  // zeroes it.
  JAX_FLUX_HD std::uint64_t PushedOffset(std::int32_t peer) const {
    return ControlOffset(ControlWord::kPushTicket) + kLineBytes / 2 +
           4 * static_cast<std::uint64_t>(peer);
  }
  JAX_FLUX_HD std::uint64_t EntriesOffset() const {
    return AlignUp(static_cast<std::uint64_t>(ControlWord::kCount) * kLineBytes, kAreaBytes);
  }
  // Entry of `source` for epochs of this parity: {u64 epoch, u64 call-site id}, written by
  // `source`.
  JAX_FLUX_HD std::uint64_t EntryOffset(std::int32_t source, std::uint64_t epoch) const {
    return EntriesOffset() + (static_cast<std::uint64_t>(source) * 2 + (epoch & 1)) * kLineBytes;
  }
  JAX_FLUX_HD std::uint64_t AgFlagsOffset() const {
    return AlignUp(EntriesOffset() + static_cast<std::uint64_t>(shape.world) * 2 * kLineBytes,
                   kAreaBytes);
  }
  JAX_FLUX_HD FlagArea AgFlags() const { return {AgFlagsOffset(), FlagRowBytes(shape.ag_flags)}; }
  JAX_FLUX_HD std::uint64_t AgFlagOffset(std::int32_t source, std::int32_t index) const {
    return AgFlags().At(source, index);
  }
  JAX_FLUX_HD std::uint64_t RsFlagsOffset() const {
    return AlignUp(
        AgFlagsOffset() + FlagRowBytes(shape.ag_flags) * static_cast<std::uint64_t>(shape.world),
        kAreaBytes);
  }
  JAX_FLUX_HD std::uint64_t RsFlagOffset(std::int32_t source, std::int32_t index) const {
    return FlagArea{RsFlagsOffset(), FlagRowBytes(shape.rs_flags)}.At(source, index);
  }
  JAX_FLUX_HD std::uint64_t CopyFlagsOffset() const {
    return AlignUp(
        RsFlagsOffset() + FlagRowBytes(shape.rs_flags) * static_cast<std::uint64_t>(shape.world),
        kAreaBytes);
  }
  JAX_FLUX_HD FlagArea CopyFlags() const {
    return {CopyFlagsOffset(), FlagRowBytes(shape.copy_flags)};
  }
  JAX_FLUX_HD std::uint64_t CopyFlagOffset(std::int32_t source, std::int32_t index) const {
    return CopyFlags().At(source, index);
  }
  JAX_FLUX_HD std::uint64_t AgDataOffset() const {
    return AlignUp(CopyFlagsOffset() +
                       FlagRowBytes(shape.copy_flags) * static_cast<std::uint64_t>(shape.world),
                   kAreaBytes);
  }
  // Halves alternate by epoch parity. Inside its half a call lays out slots as it likes.
  JAX_FLUX_HD std::uint64_t AgHalfOffset(std::uint64_t epoch) const {
    return AgDataOffset() + (epoch & 1) * AlignUp(shape.ag_half_bytes, kAreaBytes);
  }
  JAX_FLUX_HD std::uint64_t RsDataOffset() const {
    return AgDataOffset() + 2 * AlignUp(shape.ag_half_bytes, kAreaBytes);
  }
  JAX_FLUX_HD std::uint64_t RsHalfOffset(std::uint64_t epoch) const {
    return RsDataOffset() + (epoch & 1) * AlignUp(shape.rs_half_bytes, kAreaBytes);
  }
  // Slots of every epoch alike.
  JAX_FLUX_HD std::uint64_t CopyDataOffset() const {
    return RsDataOffset() + 2 * AlignUp(shape.rs_half_bytes, kAreaBytes);
  }
  JAX_FLUX_HD std::uint64_t TotalBytes() const {
    return CopyDataOffset() + AlignUp(shape.copy_bytes, kAreaBytes);
  }

 private:
  JAX_FLUX_HD static std::uint64_t FlagRowBytes(std::int32_t flags) {
    return AlignUp(static_cast<std::uint64_t>(flags) * kFlagBytes, kLineBytes);
  }
};

// Whether a generation of shape `have` can serve a call that needs `need` (same world).
JAX_FLUX_HD bool Fits(const GenerationShape& need, const GenerationShape& have) {
  return need.world == have.world && need.ag_flags <= have.ag_flags &&
         need.rs_flags <= have.rs_flags && need.ag_half_bytes <= have.ag_half_bytes &&
         need.rs_half_bytes <= have.rs_half_bytes && need.copy_flags <= have.copy_flags &&
         need.copy_bytes <= have.copy_bytes;
}

}  // namespace jax_flux::protocol

#endif  // JAX_FLUX_CUDA_PROTOCOL_LAYOUT_H_
