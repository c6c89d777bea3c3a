// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cuda/runtime/agreement.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <random>
#include <thread>

#include "cuda/runtime/deadline.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/options.h"

namespace jax_flux::runtime {
namespace {

struct Field {
  std::uint64_t AgreementRecord::*value;
  const char* name;
  const char* remedy;
};

constexpr Field kFields[] = {
    {&AgreementRecord::build, "the version of jax_flux",
     "Install the same build of jax_flux on every host."},
    {&AgreementRecord::protocol, "the protocol version",
     "Install the same build of jax_flux on every host."},
    {&AgreementRecord::nccl, "the version of NCCL", "Install the same NCCL on every host."},
    {&AgreementRecord::op, "the op",
     "All ranks must run the same program in the same order; look for Python control flow that "
     "depends on the process."},
    {&AgreementRecord::tuning_digest, "the digest of the tuning tables",
     "Give every host the same tuning file."},
    {&AgreementRecord::plan_hash, "the plan (op, shapes, dtypes, options)",
     "All ranks must trace the same shapes and options in the same order; look for Python control "
     "flow or sizes that depend on the process."},
    {&AgreementRecord::workspace_bytes, "the workspace bytes",
     "All ranks must trace the same shapes."},
    {&AgreementRecord::generation, "the number of workspaces made so far",
     "One rank failed in an earlier call; restart all ranks."},
    {&AgreementRecord::choices, "the library's own choices (digest of flags, bytes and chunks)",
     "Install the same build of jax_flux on every host."},
    {&AgreementRecord::step, "the step of the plan's start", "Restart all ranks."},
};

// Polls `event`; false when `limit_s` has passed. Says `report` once, after `warn_s`.
Expected<bool> Poll(cudaEvent_t event, double limit_s, double warn_s, const std::string& report) {
  const auto start = std::chrono::steady_clock::now();
  bool reported = false;
  for (int polls = 0;; ++polls) {
    const cudaError_t state = cudaEventQuery(event);
    if (state == cudaSuccess) return true;
    if (state != cudaErrorNotReady) {
      return Status(Code::kInternal, Format("jax_flux: the device failed before or while the ranks "
                                            "compared their plans: %s",
                                            cudaGetErrorString(state)));
    }
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
    if (waited.count() > limit_s) return false;
    if (!reported && waited.count() > warn_s) {
      std::fprintf(stderr, "jax_flux: %s\n", report.c_str());
      reported = true;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(polls < 100 ? 20 : 500));
  }
}

}  // namespace

std::string Disagreement(const std::vector<AgreementRecord>& records, const char* op) {
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    if (records[rank].status == static_cast<std::uint64_t>(Code::kOk)) continue;
    return Format("%s: rank %zu of %zu could not start the call: %.127s", op, rank, records.size(),
                  records[rank].detail);
  }
  for (const Field& field : kFields) {
    const std::uint64_t first = records[0].*field.value;
    for (std::size_t rank = 1; rank < records.size(); ++rank) {
      const std::uint64_t other = records[rank].*field.value;
      if (other == first) continue;
      return Format(
          "%s: the %zu ranks of the mesh axis differ in %s: rank 0 has %#llx, rank %zu has %#llx. "
          "%s",
          op, records.size(), field.name, static_cast<unsigned long long>(first), rank,
          static_cast<unsigned long long>(other), field.remedy);
    }
  }
  return "";
}

std::uint64_t ChoiceDigest(const protocol::GenerationShape& need, std::uint64_t chunk) {
  const auto u64 = [](std::int32_t value) { return static_cast<std::uint64_t>(value); };
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, word by word
  for (const std::uint64_t part :
       {u64(need.ag_flags), u64(need.rs_flags), u64(need.copy_flags), need.ag_half_bytes,
        need.rs_half_bytes, need.copy_bytes, chunk}) {
    hash = (hash ^ part) * 0x100000001b3u;
  }
  return hash;
}

Expected<std::uint64_t> GpuToken() {
  int device = 0;
  JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaGetDevice(&device));
  std::uint64_t token = 0;
  for (const cudaDeviceAttr part :
       {cudaDevAttrPciDomainId, cudaDevAttrPciBusId, cudaDevAttrPciDeviceId}) {
    int value = 0;
    JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaDeviceGetAttribute(&value, part, device));
    token = token << 16 | static_cast<std::uint16_t>(value);
  }
  return token;
}

std::uint64_t ProcessToken() {
  static const std::uint64_t token = [] {
    std::random_device random;
    const std::uint64_t high = random();
    return (high << 32 | random()) ^ static_cast<std::uint64_t>(getpid());
  }();
  return token;
}

Status Exchange::Init() {
  const std::size_t bytes = sizeof(AgreementRecord) * protocol::kMaxWorld;
  JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&before_, cudaEventDisableTiming));
  JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&after_, cudaEventDisableTiming));
  JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaMallocHost(reinterpret_cast<void**>(&host_), bytes));
  JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaMalloc(reinterpret_cast<void**>(&device_), bytes));
  return Status();
}

Status Exchange::Run(const NcclApi& nccl, NcclComm comm, int device, int rank, int world,
                     cudaStream_t stream, const char* op, const AgreementRecord& mine,
                     std::vector<AgreementRecord>* all) {
  // Threads that start plans of two meshes at once would share the buffers.
  std::lock_guard<std::mutex> lock(mutex_);
  const std::size_t bytes = sizeof(AgreementRecord);
  const Options& options = Options::Get();
  JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaEventRecord(before_, stream));
  auto idle = Poll(before_, options.queue_s, options.warn_s,
                   Format("%s: rank %d of %d has waited %.1f s for the work that was enqueued "
                          "before this call's first run. Still waiting: for up to %.0f s "
                          "(JAX_FLUX_QUEUE_S).",
                          op, rank, world, options.warn_s, options.queue_s));
  if (!idle.ok()) return idle.status();
  if (!idle.value()) {
    return Status(
        Code::kDeadlineExceeded,
        Format("%s: rank %d of %d waited %.0f s for the work that was enqueued before this "
               "call's first run. A collective among it may wait for a rank that is stuck or "
               "has failed; JAX_FLUX_QUEUE_S sets the limit.",
               op, rank, world, options.queue_s));
  }

  const double limit_s = options.timeout_s;
  const Status late(
      Code::kDeadlineExceeded,
      Format("%s: rank %d of %d waited %.0f s for the other ranks to start this call for the "
             "first time. A rank is stuck, has failed, or does not run this program. "
             "JAX_FLUX_TIMEOUT_S sets the limit.",
             op, rank, world, limit_s));
  host_[rank] = mine;
  JAX_FLUX_RETURN_IF_CUDA_ERROR(
      cudaMemcpyAsync(device_ + rank, host_ + rank, bytes, cudaMemcpyHostToDevice, stream));
  const std::string report = Format(
      "%s: rank %d of %d has waited %.1f s for the other ranks to start this call for the "
      "first time. Still waiting.",
      op, rank, world, options.warn_s);
  // The first collective of its kind on a communicator connects the ranks before it returns.
  const auto all_gather = [this, &nccl, comm, device, rank, stream, bytes] {
    ScopedDevice scoped(device);
    return nccl.Check(nccl.AllGather(device_ + rank, device_, bytes, kNcclUint8, comm, stream),
                      comm, "ncclAllGather");
  };
  const auto start = std::chrono::steady_clock::now();
  const auto enqueued = WithinDeadline(limit_s, all_gather, options.warn_s, [&report] {
    std::fprintf(stderr, "jax_flux: %s\n", report.c_str());
  });
  if (!enqueued.has_value()) return late;
  JAX_FLUX_RETURN_IF_ERROR(*enqueued);
  const std::chrono::duration<double> connecting = std::chrono::steady_clock::now() - start;
  JAX_FLUX_RETURN_IF_CUDA_ERROR(
      cudaMemcpyAsync(host_, device_, bytes * world, cudaMemcpyDeviceToHost, stream));
  JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaEventRecord(after_, stream));
  const double limit_left = limit_s - connecting.count();
  const double warn_left = options.warn_s - connecting.count();
  auto done = Poll(after_, limit_left, warn_left > 0 ? warn_left : limit_left, report);
  if (!done.ok()) return done.status();
  if (!done.value()) return late;
  all->assign(host_, host_ + world);
  return Status();
}

}  // namespace jax_flux::runtime
