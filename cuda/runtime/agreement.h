// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Do all ranks mean the same? One fixed-size record per rank, all-gathered before anything is
// shared, compared on every rank alike. The comparison is plain C++.
#ifndef JAX_FLUX_CUDA_RUNTIME_AGREEMENT_H_
#define JAX_FLUX_CUDA_RUNTIME_AGREEMENT_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/protocol/layout.h"
#include "cuda/runtime/nccl_api.h"
#include "cuda/runtime/status.h"

namespace jax_flux::runtime {

// What must be equal on all ranks; `status` tells the others why we stop.
struct AgreementRecord {
  std::uint64_t step;   // which of a plan's agreements this is: 1 plan, 2 memory, 3 windows
  std::uint64_t build;  // LibraryHash
  std::uint64_t protocol;
  std::uint64_t nccl;
  std::uint64_t op;
  std::uint64_t plan_hash;
  std::uint64_t tuning_digest;
  std::uint64_t workspace_bytes;  // of the generation the plan binds
  std::uint64_t generation;       // its ordinal in the group
  std::uint64_t choices;          // ChoiceDigest
  std::uint64_t status;           // runtime::Code of this rank's last step
  char detail[128];               // its message, cut
  std::uint64_t process;          // not compared: ranks of one process have the same
  std::uint64_t group;            // not compared: a number of this group on this rank alone
  std::uint64_t gpu;              // not compared: ranks on one GPU have the same
};

// Of what the ranks must share of a plan although its attributes may leave it to the library: what
// it needs of a workspace, and the chunk that one AG flag announces (rows << 32 | depth). Builds of
// one version may choose differently; then a flag would open a wait for other data.
std::uint64_t ChoiceDigest(const protocol::GenerationShape& need, std::uint64_t chunk);

// A number that no other process of the job is likely to have.
std::uint64_t ProcessToken();

// The current device by its place on the PCI bus: equal for two ranks of a host on one GPU.
Expected<std::uint64_t> GpuToken();

// Empty when all agree; else a sentence that names ranks and both values. The same on every rank.
std::string Disagreement(const std::vector<AgreementRecord>& records, const char* op);

// Buffers of one device for the exchange; one thread at a time.
class Exchange {
 public:
  Status Init();
  // All-gathers `mine` on XLA's communicator and stream. The device's own earlier work, which may
  // be hours of training, has JAX_FLUX_QUEUE_S; the call into NCCL and the exchange have the
  // deadline of a wait for a peer.
  Status Run(const NcclApi& nccl, NcclComm comm, int device, int rank, int world,
             cudaStream_t stream, const char* op, const AgreementRecord& mine,
             std::vector<AgreementRecord>* all);

 private:
  std::mutex mutex_;
  AgreementRecord* device_ = nullptr;  // [kMaxWorld]
  AgreementRecord* host_ = nullptr;    // [kMaxWorld], pinned
  cudaEvent_t before_ = nullptr;
  cudaEvent_t after_ = nullptr;
};

}  // namespace jax_flux::runtime

#endif  // JAX_FLUX_CUDA_RUNTIME_AGREEMENT_H_
