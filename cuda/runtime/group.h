// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Groups and plans of this process. A group is one mesh axis as one device sees it: communicator,
// rank, generations. A plan binds a generation at its first initialize and keeps it.
//
// Invariants. No lock of the registry is held while a collective blocks, so the threads of several
// local devices never wait for each other here; a group's own mutex belongs to one device.
// Groups, generations and bindings are never destroyed: captured graphs and peers hold addresses.
// Another communicator for the same ranks (XLA made a new clique, e.g. a new backend) is another
// group: its plans are agreed anew and its memory is its own; the old memory stays.
#ifndef JAX_FLUX_CUDA_RUNTIME_GROUP_H_
#define JAX_FLUX_CUDA_RUNTIME_GROUP_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "cuda/protocol/epoch.h"
#include "cuda/protocol/record.h"
#include "cuda/runtime/agreement.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/nccl_api.h"
#include "cuda/runtime/side_streams.h"
#include "cuda/runtime/status.h"
#include "cuda/runtime/workspace.h"

namespace jax_flux::runtime {

// Where a plan runs. Equal for every call site with this plan.
struct PlanKey {
  int device;
  std::uint64_t groups;  // digest of all groups of the axis
  std::int64_t channel;
  std::uint64_t plan_hash;

  bool operator==(const PlanKey& other) const {
    return device == other.device && groups == other.groups && channel == other.channel &&
           plan_hash == other.plan_hash;
  }
};

struct PlanKeyHash {
  std::size_t operator()(const PlanKey& key) const;
};

struct PlanRequest {
  PlanKey key;
  protocol::Op op;
  int world;
  std::uint64_t tuning_digest;
  protocol::GenerationShape need;
  std::uint64_t chunk;  // ChoiceDigest; 0 where the attributes say it all
};

// What execute needs, all of it constant for the life of the process.
struct Binding {
  const Generation* generation;
  int rank;
  int world;
  protocol::FailureRecord* record;  // device address
  SideStreams* side_streams;        // null unless the group has a plan with copies
  bool shares_gpu;                  // a peer runs on this rank's GPU: for tests, slow

  // The kernel argument of one launch of this plan.
  protocol::Call MakeCall(protocol::Op op, std::uint64_t site, bool first_launch = true,
                          bool last_launch = true) const;
};

class Group {
 public:
  Group(int device, int world, NcclComm comm) : device_(device), world_(world), comm_(comm) {}

  NcclComm comm() const { return comm_; }
  // Agrees on the plan with all ranks and binds it to a generation. Collective at a plan's first
  // call; the ranks agree on which call that is because they run one program, and a rank that
  // does not come is found by the deadline of the exchange (here) or of the kernel (there).
  Expected<const Binding*> Start(const PlanRequest& request, cudaStream_t stream);

 private:
  Status InitOnce(const PlanRequest& request);
  Expected<const Generation*> StartAlone(const PlanRequest& request);
  Expected<const Generation*> StartTogether(const PlanRequest& request, cudaStream_t stream);
  Status MakeSideStreams();
  Status Agree(const PlanRequest& request, AgreementRecord* record, const Status& mine,
               cudaStream_t stream);
  Expected<Generation> RegisterWithDeadline(const protocol::GenerationShape& shape,
                                            std::uint8_t* memory);

  const int device_;
  const int world_;
  const NcclComm comm_;  // null when the group is one rank
  std::mutex mutex_;
  bool ready_ = false;
  int rank_ = 0;
  const NcclApi* nccl_ = nullptr;
  Device* resources_ = nullptr;
  // Once the first exchange has told: rank 0's token, and how many ranks this process drives.
  std::uint64_t token_ = 0;
  int local_ranks_ = 1;
  bool shares_gpu_ = false;
  std::vector<std::unique_ptr<Generation>> generations_;
  std::unique_ptr<SideStreams> side_streams_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Binding>> plans_;  // by plan hash
};

// An error unless a generation of shape `have`, which the plan is bound to, serves this call. A
// plan's hash covers all sizes, so that it always does; kernels trust it.
Status CheckServes(const PlanRequest& request, const protocol::GenerationShape& have);

// Initialize stage: finds or starts the plan. `comm` is null for a group of one rank.
Expected<const Binding*> StartPlan(const PlanRequest& request, NcclComm comm, cudaStream_t stream);

// Prepare stage: what a device needs before any plan starts on it.
Status PrepareDevice(int device);

// Execute stage: the binding of a started plan, null before.
const Binding* FindPlan(const PlanKey& key);

}  // namespace jax_flux::runtime

#endif  // JAX_FLUX_CUDA_RUNTIME_GROUP_H_
