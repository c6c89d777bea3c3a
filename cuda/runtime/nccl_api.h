// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The NCCL that JAX has loaded, as a table of functions. Never linked: a second NCCL in the process
// would not know XLA's communicators. The prototypes are our own; types are opaque.
#ifndef JAX_FLUX_CUDA_RUNTIME_NCCL_API_H_
#define JAX_FLUX_CUDA_RUNTIME_NCCL_API_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "cuda/protocol/base.h"
#include "cuda/runtime/status.h"

namespace jax_flux::runtime {

struct NcclCommOpaque;
struct NcclWindowOpaque;
using NcclComm = NcclCommOpaque*;
using NcclWindow = NcclWindowOpaque*;  // points to device memory

inline constexpr int kNcclSuccess = 0;
inline constexpr int kNcclInProgress = 7;
inline constexpr int kNcclUint8 = 1;
inline constexpr int kNcclWindowSymmetric = 1;
inline constexpr int kNcclOldest = 22800;  // first with symmetric windows
inline constexpr int kNcclNewest = 23007;  // newest tried

struct NcclTeam {
  int ranks;
  int rank;
  int stride;
};

struct NcclApi {
  int version;
  int (*GetVersion)(int*);
  const char* (*GetErrorString)(int);
  const char* (*GetLastError)(NcclComm);
  int (*CommUserRank)(NcclComm, int*);
  int (*CommCount)(NcclComm, int*);
  int (*CommCuDevice)(NcclComm, int*);
  int (*CommGetAsyncError)(NcclComm, int*);
  int (*MemAlloc)(void**, std::size_t);
  int (*MemFree)(void*);
  int (*CommWindowRegister)(NcclComm, void*, std::size_t, NcclWindow*, int flags);
  int (*CommWindowDeregister)(NcclComm, NcclWindow);
  int (*AllGather)(const void*, void*, std::size_t count, int type, NcclComm, cudaStream_t);
  NcclTeam (*TeamLsa)(NcclComm);
  // From 2.29 on; null before.
  int (*GetLsaDevicePointer)(NcclWindow, std::size_t offset, int lsa_rank, void**);

  // Waits for a call on a non-blocking communicator, then words its failure.
  Status Check(int result, NcclComm comm, const char* call) const;
};

// The table, or why there is none: NCCL not loaded, or outside the tried range.
Expected<const NcclApi*> LoadNccl();

// The version of the loaded NCCL (2.30.7 is 23007), 0 when none is loaded. Any version.
int LoadedNcclVersion();

// Sentence for a version outside the tried range, empty inside it.
std::string JudgeNcclVersion(int version);

// Addresses of every rank's window memory as this device sees them, [world].
Expected<std::array<std::uint8_t*, protocol::kMaxWorld>> PeerPointers(const NcclApi& nccl,
                                                                      NcclComm comm,
                                                                      NcclWindow window, int rank,
                                                                      int world,
                                                                      cudaStream_t stream);

}  // namespace jax_flux::runtime

#endif  // JAX_FLUX_CUDA_RUNTIME_NCCL_API_H_
