// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cuda/runtime/group.h"

#include <cstdio>
#include <cstring>
#include <map>
#include <shared_mutex>
#include <tuple>

#include "cuda/runtime/deadline.h"
#include "cuda/runtime/options.h"
#include "cuda/runtime/rendezvous.h"
#include "cuda/runtime/version.h"
#include "cuda/runtime/watchdog.h"

namespace jax_flux::runtime {
namespace {

struct Registry {
  using GroupKey = std::tuple<int, std::uint64_t, std::int64_t>;  // device, groups, channel
  std::shared_mutex mutex;  // of the two maps only; never held across a collective
  std::map<GroupKey, std::vector<std::unique_ptr<Group>>> groups;  // newest communicator last
  struct Entry {
    NcclComm comm;
    const Binding* binding;
  };
  std::unordered_map<PlanKey, Entry, PlanKeyHash> plans;
};

Registry& TheRegistry() {
  static auto* registry = new Registry;
  return *registry;
}

Group* FindOrMakeGroup(const PlanRequest& request, NcclComm comm) {
  Registry& registry = TheRegistry();
  std::unique_lock<std::shared_mutex> lock(registry.mutex);
  auto& groups = registry.groups[{request.key.device, request.key.groups, request.key.channel}];
  for (auto& group : groups) {
    if (group->comm() == comm) return group.get();
  }
  groups.push_back(std::make_unique<Group>(request.key.device, request.world, comm));
  return groups.back().get();
}

std::string InWords(const protocol::GenerationShape& shape) {
  const auto u64 = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
  return Format("%d, %d and %d flags (AG, RS, copies), %llu, %llu and %llu bytes", shape.ag_flags,
                shape.rs_flags, shape.copy_flags, u64(shape.ag_half_bytes),
                u64(shape.rs_half_bytes), u64(shape.copy_bytes));
}

}  // namespace

std::size_t PlanKeyHash::operator()(const PlanKey& key) const {
  std::uint64_t hash = key.plan_hash;
  for (const std::uint64_t part : {key.groups, static_cast<std::uint64_t>(key.channel),
                                   static_cast<std::uint64_t>(key.device)}) {
    hash = (hash ^ part) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return hash;
}

Status CheckServes(const PlanRequest& request, const protocol::GenerationShape& have) {
  if (Fits(request.need, have)) return Status();
  return Status(
      Code::kInternal,
      Format("%s: plan %#llx is bound to a workspace of %s; this call needs %s. Two plans share a "
             "hash: rebuild with `make native` or reinstall the wheel, or pass "
             "implementation=\"xla\".",
             OpName(request.op), static_cast<unsigned long long>(request.key.plan_hash),
             InWords(have).c_str(), InWords(request.need).c_str()));
}

protocol::Call Binding::MakeCall(protocol::Op op, std::uint64_t site, bool first_launch,
                                 bool last_launch) const {
  protocol::Call call = {};
  for (int peer = 0; peer < world; ++peer) call.base[peer] = generation->base[peer];
  call.layout = generation->layout;
  call.rank = rank;
  call.world = world;
  call.op = op;
  call.first_launch = first_launch;
  call.last_launch = last_launch;
  call.site = site;
  call.deadline = Options::Get().Deadline();
  call.record = record;
  return call;
}

Status Group::InitOnce(const PlanRequest& request) {
  if (ready_) return Status();
  auto resources = FindDevice(device_);
  if (!resources.ok()) return resources.status();
  resources_ = resources.value();
  if (world_ > 1) {
    auto nccl = LoadNccl();
    if (!nccl.ok()) return nccl.status();
    nccl_ = nccl.value();
    int count = 0;
    JAX_FLUX_RETURN_IF_ERROR(
        nccl_->Check(nccl_->CommUserRank(comm_, &rank_), comm_, "ncclCommUserRank"));
    JAX_FLUX_RETURN_IF_ERROR(nccl_->Check(nccl_->CommCount(comm_, &count), comm_, "ncclCommCount"));
    if (count != world_) {
      return Status(Code::kInternal,
                    Format("%s: XLA's communicator has %d ranks, the mesh axis %d.",
                           OpName(request.op), count, world_));
    }
  }
  ready_ = true;
  return Status();
}

Expected<const Binding*> Group::Start(const PlanRequest& request, cudaStream_t stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = plans_.find(request.key.plan_hash);
  if (found != plans_.end()) {
    JAX_FLUX_RETURN_IF_ERROR(CheckServes(request, found->second->generation->layout.shape));
    return static_cast<const Binding*>(found->second.get());
  }
  ScopedDevice scoped(device_);
  JAX_FLUX_RETURN_IF_ERROR(InitOnce(request));
  auto generation = world_ == 1 ? StartAlone(request) : StartTogether(request, stream);
  if (!generation.ok()) return generation.status();
  auto binding = std::make_unique<Binding>(Binding{
      generation.value(), rank_, world_, resources_->record, side_streams_.get(), shares_gpu_});
  const Binding* result = binding.get();
  plans_.emplace(request.key.plan_hash, std::move(binding));
  return result;
}

Expected<const Generation*> Group::StartAlone(const PlanRequest& request) {
  const Generation* latest = generations_.empty() ? nullptr : generations_.back().get();
  if (latest != nullptr && Fits(request.need, latest->layout.shape)) return latest;
  const auto shape = GrownShape(request.need, latest == nullptr ? nullptr : &latest->layout.shape);
  auto generation = std::make_unique<Generation>(Generation{{shape}, {}});
  auto memory = AllocateZeroed(nullptr, generation->layout.TotalBytes(), resources_->stream);
  if (!memory.ok()) return memory.status();
  generation->base[0] = memory.value();
  generations_.push_back(std::move(generation));
  return static_cast<const Generation*>(generations_.back().get());
}

// One exchange. `mine` is how this rank's last step went; every rank returns the same verdict.
Status Group::Agree(const PlanRequest& request, AgreementRecord* record, const Status& mine,
                    cudaStream_t stream) {
  ++record->step;
  record->status = static_cast<std::uint64_t>(mine.code());
  std::memset(record->detail, 0, sizeof(record->detail));
  std::strncpy(record->detail, mine.message().c_str(), sizeof(record->detail) - 1);
  std::vector<AgreementRecord> all;
  const char* op = OpName(request.op);
  // Once the first exchange waits on a device, no local thread may still allocate: from the second
  // one on, local ranks meet on the host before any of them enqueues it.
  const double limit_s = Options::Get().timeout_s;
  if (record->step > 1 && !Meet({token_, record->plan_hash, record->step}, local_ranks_, limit_s)) {
    return Status(Code::kDeadlineExceeded,
                  Format("%s: rank %d of %d waited %.0f s for the other ranks of this process.", op,
                         rank_, world_, limit_s));
  }
  const Status ran =
      resources_->exchange.Run(*nccl_, comm_, device_, rank_, world_, stream, op, *record, &all);
  if (!ran.ok()) return ran;
  token_ = all[0].group;
  local_ranks_ = 0;
  int on_our_gpu = 0;
  for (const AgreementRecord& other : all) {
    local_ranks_ += other.process == record->process;
    on_our_gpu += other.gpu == record->gpu;
  }
  shares_gpu_ = on_our_gpu > 1;
  const std::string verdict = Disagreement(all, op);
  if (verdict.empty()) return Status();
  // Our own failure, if any, is worded better than the cut copy that travels.
  return mine.ok() ? Status(Code::kFailedPrecondition, verdict) : mine;
}

Expected<Generation> Group::RegisterWithDeadline(const protocol::GenerationShape& shape,
                                                 std::uint8_t* memory) {
  // NCCL blocks in its bootstrap until every rank is here and has no deadline of its own. All were
  // here a moment ago; should one die now, this thread is given up and the call returns.
  const double limit_s = Options::Get().timeout_s;
  const auto work = [this, shape, memory] {
    ScopedDevice scoped(device_);
    return Register(*nccl_, comm_, rank_, shape, memory, resources_->stream);
  };
  const double warn_s = Options::Get().warn_s;
  auto registered = WithinDeadline(limit_s, work, warn_s, [this, warn_s] {
    std::fprintf(stderr,
                 "jax_flux: rank %d of %d has waited %.1f s in ncclCommWindowRegister. Still "
                 "waiting for the other ranks.\n",
                 rank_, world_, warn_s);
  });
  if (registered.has_value()) return *std::move(registered);
  return Status(Code::kDeadlineExceeded,
                Format("jax_flux: rank %d of %d waited %.0f s in ncclCommWindowRegister: another "
                       "rank has failed meanwhile.",
                       rank_, world_, limit_s));
}

Expected<const Generation*> Group::StartTogether(const PlanRequest& request, cudaStream_t stream) {
  const Generation* latest = generations_.empty() ? nullptr : generations_.back().get();
  const bool fits = latest != nullptr && Fits(request.need, latest->layout.shape);
  const auto shape =
      fits ? latest->layout.shape
           : GrownShape(request.need, latest == nullptr ? nullptr : &latest->layout.shape);
  AgreementRecord record = {};
  auto gpu = GpuToken();
  if (!gpu.ok()) return gpu.status();
  record.gpu = gpu.value();
  record.process = ProcessToken();
  record.group = record.process ^ reinterpret_cast<std::uintptr_t>(this);
  record.build = LibraryHash();
  record.protocol = static_cast<std::uint64_t>(protocol::kProtocolVersion);
  record.nccl = static_cast<std::uint64_t>(nccl_->version);
  record.op = static_cast<std::uint64_t>(request.op);
  record.plan_hash = request.key.plan_hash;
  record.tuning_digest = request.tuning_digest;
  record.workspace_bytes = protocol::GenerationLayout{shape}.TotalBytes();
  record.generation = generations_.size() - (fits ? 1 : 0);
  record.choices = ChoiceDigest(request.need, request.chunk);
  JAX_FLUX_RETURN_IF_ERROR(Agree(request, &record, Status(), stream));
  if (fits) return latest;

  // Everybody makes a generation of this shape. A rank without memory must not leave the others in
  // the collective registration, so they hear of it first.
  auto memory = AllocateZeroed(nccl_, record.workspace_bytes, resources_->stream);
  Status made = memory.status();
  // The first generation with a copy area is also where the side streams are first needed.
  if (made.ok() && shape.copy_flags > 0) made = MakeSideStreams();
  const Status allocated = Agree(request, &record, made, stream);
  if (!allocated.ok()) {
    if (memory.ok()) FreeUnregistered(nccl_, memory.value());
    return allocated;
  }
  auto generation = RegisterWithDeadline(shape, memory.value());
  if (generation.ok() && shape.copy_flags > 0) {
    const Status warmed =
        side_streams_->WarmUp(generation.value().layout, generation.value().base, rank_);
    if (!warmed.ok()) generation = warmed;
  }
  // The given-up thread may still be inside NCCL with this communicator: no third exchange. The
  // peers that wait in it have its deadline.
  if (generation.status().code() == Code::kDeadlineExceeded) return generation.status();
  // From here on no rank frees: a peer may have the memory mapped.
  JAX_FLUX_RETURN_IF_ERROR(Agree(request, &record, generation.status(), stream));
  generations_.push_back(std::make_unique<Generation>(generation.value()));
  return static_cast<const Generation*>(generations_.back().get());
}

Status Group::MakeSideStreams() {
  if (side_streams_ != nullptr) return Status();
  auto made = SideStreams::Make();
  if (!made.ok()) return made.status();
  side_streams_ = std::move(made.value());
  return Status();
}

Expected<const Binding*> StartPlan(const PlanRequest& request, NcclComm comm, cudaStream_t stream) {
  Registry& registry = TheRegistry();
  {
    std::shared_lock<std::shared_mutex> lock(registry.mutex);
    auto found = registry.plans.find(request.key);
    if (found != registry.plans.end() && found->second.comm == comm) {
      const Binding* binding = found->second.binding;
      JAX_FLUX_RETURN_IF_ERROR(CheckServes(request, binding->generation->layout.shape));
      return binding;
    }
  }
  auto binding = FindOrMakeGroup(request, comm)->Start(request, stream);
  if (!binding.ok()) return binding.status();
  std::unique_lock<std::shared_mutex> lock(registry.mutex);
  registry.plans[request.key] = {comm, binding.value()};
  return binding.value();
}

Status PrepareDevice(int device) { return FindDevice(device).status(); }

const Binding* FindPlan(const PlanKey& key) {
  Registry& registry = TheRegistry();
  std::shared_lock<std::shared_mutex> lock(registry.mutex);
  auto found = registry.plans.find(key);
  return found == registry.plans.end() ? nullptr : found->second.binding;
}

}  // namespace jax_flux::runtime
