// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What a wait that missed its deadline tells the host. Lives in host-mapped memory, so it survives
// the trap that follows.
#ifndef JAX_FLUX_CUDA_PROTOCOL_RECORD_H_
#define JAX_FLUX_CUDA_PROTOCOL_RECORD_H_

#include "cuda/protocol/base.h"

namespace jax_flux::protocol {

enum class Op : std::int32_t { kAllGatherCopy = 0, kAgMatmul = 1, kMatmulRs = 2, kMatmulAr = 3 };

enum class WaitKind : std::int32_t {
  kEntry = 0,    // a peer's entry into the call
  kAgChunk = 1,  // a chunk of a peer's shard
  kRsTile = 2,   // a peer's partial of one of our tiles
};

enum class FailureKind : std::int32_t {
  kNone = 0,
  kLate = 1,           // warning: still waiting after Deadline::warn_ns
  kTimeout = 2,        // fatal: gave up after Deadline::fail_ns
  kSiteMismatch = 3,   // fatal: the peer's call of this epoch is another call site
  kConcurrentUse = 4,  // fatal: two calls of one channel run at once on this device
};

struct Failure {
  FailureKind kind;
  WaitKind wait;
  Op op;
  std::int32_t rank;
  std::int32_t peer;
  std::int32_t index;       // chunk or tile flag index; -1 for an entry
  std::uint64_t site;       // our call-site id
  std::uint64_t peer_site;  // the peer's or the other call's id where known, else 0
  std::uint64_t expected;   // epoch waited for
  std::uint64_t seen;       // epoch found
  std::uint64_t waited_ns;
};

// One per device: the host reads `failure` after `ready` turned 1.
struct FailureRecord {
  Failure warning;
  Failure fatal;
  std::uint32_t warning_ready;
  std::uint32_t fatal_ready;
};

struct Deadline {
  std::uint64_t warn_ns;
  std::uint64_t fail_ns;
};

}  // namespace jax_flux::protocol

#endif  // JAX_FLUX_CUDA_PROTOCOL_RECORD_H_
