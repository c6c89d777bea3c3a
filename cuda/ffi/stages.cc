// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cuda/ffi/stages.h"

#include <algorithm>
#include <atomic>
#include <sstream>
#include <string_view>

#include "cuda/runtime/device.h"
#include "cuda/runtime/watchdog.h"

namespace jax_flux::ffi {
namespace {

using runtime::Code;
using runtime::Expected;
using runtime::Format;
using runtime::OpName;
using runtime::Status;

std::atomic<std::int64_t> direct_launches{0};
std::atomic<std::int64_t> captured_launches{0};

// What AttributeOr may be asked for.
constexpr const char* kOptionalAttributes[] = {
    "biases",    "chunk_depth", "chunk_rows",   "ctas",      "depth_outer",
    "push_ctas", "push_peers",  "raster_group", "sm_margin", "sweep_segments",
    "transport", "transpose_w", "tuning_digest"};

Status Invalid(protocol::Op op, const std::string& what) {
  return Status(Code::kInvalidArgument,
                Format("%s: %s. The Python package and the native library do not fit: rebuild with "
                       "`make native` or reinstall the wheel.",
                       OpName(op), what.c_str()));
}

// FNV-1a over the ids, row by row.
std::uint64_t Digest(const xla_ffi::Span<const std::int64_t>& ids, std::int64_t world) {
  std::uint64_t hash = 0xcbf29ce484222325u ^ static_cast<std::uint64_t>(world);
  for (const std::int64_t id : ids) {
    hash = (hash ^ static_cast<std::uint64_t>(id)) * 0x100000001b3u;
  }
  return hash;
}

// Errors of this device's earlier calls: after a trap nothing runs here any more.
Status Healthy(int device) {
  if (auto failure = runtime::FatalFailure(device)) {
    return Status(Code::kDeadlineExceeded, *failure + " (an earlier call; restart the process)");
  }
  return Status();
}

Status FromXla(protocol::Op op, const xla_ffi::Error& error) {
  return Status(Code::kInternal,
                Format("%s: XLA gave no communicator: %s", OpName(op), error.message().c_str()));
}

}  // namespace

xla_ffi::Error ToError(const Status& status) {
  switch (status.code()) {
    case Code::kOk:
      return xla_ffi::Error::Success();
    case Code::kInvalidArgument:
      return xla_ffi::Error(xla_ffi::ErrorCode::kInvalidArgument, status.message());
    case Code::kFailedPrecondition:
      return xla_ffi::Error(xla_ffi::ErrorCode::kFailedPrecondition, status.message());
    case Code::kDeadlineExceeded:
      return xla_ffi::Error(xla_ffi::ErrorCode::kDeadlineExceeded, status.message());
    case Code::kResourceExhausted:
      return xla_ffi::Error(xla_ffi::ErrorCode::kResourceExhausted, status.message());
    case Code::kInternal:
      break;
  }
  return xla_ffi::Error(xla_ffi::ErrorCode::kInternal, status.message());
}

std::int64_t AttributeOr(const xla_ffi::Dictionary& attributes, const char* name,
                         std::int64_t otherwise) {
  if (!attributes.contains(name)) return otherwise;
  auto value = attributes.get<std::int64_t>(name);
  return value.has_value() ? *value : otherwise;
}

std::string_view AttributeOr(const xla_ffi::Dictionary& attributes, const char* name,
                             std::string_view otherwise) {
  if (!attributes.contains(name)) return otherwise;
  auto value = attributes.get<std::string_view>(name);
  return value.has_value() ? *value : otherwise;
}

Expected<CallSite> DecodeCallSite(protocol::Op op, const xla_ffi::Dictionary& attributes) {
  CallSite site = {};
  site.op = op;
  for (const char* name : {"world", "channel", "site", "plan_hash", "chunk_bytes"}) {
    if (!attributes.get<std::int64_t>(name).has_value()) {
      return Invalid(op, Format("attribute %s is missing or no int64", name));
    }
  }
  site.world = *attributes.get<std::int64_t>("world");
  site.channel = *attributes.get<std::int64_t>("channel");
  site.site = static_cast<std::uint64_t>(*attributes.get<std::int64_t>("site"));
  site.plan_hash = static_cast<std::uint64_t>(*attributes.get<std::int64_t>("plan_hash"));
  site.chunk_bytes = *attributes.get<std::int64_t>("chunk_bytes");
  site.tuning_digest = static_cast<std::uint64_t>(AttributeOr(attributes, "tuning_digest", 0));
  site.sm_margin = AttributeOr(attributes, "sm_margin", 0);
  for (const char* name : kOptionalAttributes) {
    if (attributes.contains(name) && !attributes.get<std::int64_t>(name).has_value()) {
      return Invalid(op, Format("attribute %s is no int64", name));
    }
  }
  if (attributes.contains("activation") &&
      !attributes.get<std::string_view>("activation").has_value()) {
    return Invalid(op, "attribute activation is no string");
  }
  constexpr std::int64_t kMostSms = 1 << 16;  // of any GPU, by far
  for (const char* name : {"sm_margin", "ctas"}) {
    const std::int64_t count = AttributeOr(attributes, name, 0);
    if (count < 0 || count > kMostSms) {
      return Invalid(op, Format("%s = %lld", name, static_cast<long long>(count)));
    }
  }
  if (site.site == 0) return Invalid(op, "site = 0 means \"no call\"");
  if (site.world < 1 || site.world > protocol::kMaxWorld) {
    return Status(Code::kInvalidArgument,
                  Format("%s: the mesh axis has %lld ranks; the kernels serve 1 to %d (one NVLink "
                         "domain). Pass implementation=\"xla\".",
                         OpName(op), static_cast<long long>(site.world), protocol::kMaxWorld));
  }
  auto groups = attributes.get<xla_ffi::Span<const std::int64_t>>("groups");
  if (!groups.has_value()) return Invalid(op, "attribute groups is missing or no int64 array");
  const auto world = static_cast<std::size_t>(site.world);
  if (groups->size() == 0 || groups->size() % world != 0) {
    return Invalid(op, Format("groups has %zu ids, world is %zu", groups->size(), world));
  }
  for (std::size_t first = 0; first < groups->size(); first += world) {
    site.groups.emplace_back(groups->begin() + first, groups->begin() + first + world);
  }
  site.groups_digest = Digest(*groups, site.world);
  auto instance = attributes.get<std::string_view>("instance");
  if (!instance.has_value()) return Invalid(op, "attribute instance is missing or no string");
  site.kernel = kernels::Find(*instance);
  if (site.kernel == nullptr) {
    return Invalid(op, Format("no kernel is named \"%.*s\"", static_cast<int>(instance->size()),
                              instance->data()));
  }
  return site;
}

Status Prepare(const CallSite& site, int device, CommunicatorContext& communicators) {
  JAX_FLUX_RETURN_IF_ERROR(Healthy(device));
  runtime::ScopedDevice scoped(device);
  // A lazily loaded module would load at its first launch, under the context lock, behind a kernel
  // that waits for a peer.
  JAX_FLUX_RETURN_IF_CUDA_ERROR(kernels::Touch(*site.kernel));
  JAX_FLUX_RETURN_IF_CUDA_ERROR(kernels::TouchAbort());
  JAX_FLUX_RETURN_IF_ERROR(runtime::PrepareDevice(device));
  if (site.world == 1) return Status();
  const xla_ffi::Error error = communicators.RequestCommunicator(
      xla_ffi::GroupMode::kFlattenedId, site.groups, /*communication_id=*/0);
  return error.success() ? Status() : FromXla(site.op, error);
}

Status Initialize(const CallSite& site, int device, const protocol::GenerationShape& need,
                  CommunicatorContext& communicators, cudaStream_t stream, std::uint64_t chunk) {
  JAX_FLUX_RETURN_IF_ERROR(Healthy(device));
  runtime::NcclComm comm = nullptr;
  if (site.world > 1) {
    auto handle = communicators.GetCommunicator(xla_ffi::GroupMode::kFlattenedId, site.groups, 0);
    if (handle.has_error()) return FromXla(site.op, handle.error());
    comm = reinterpret_cast<runtime::NcclComm>(*handle);
    if (comm == nullptr) {
      return Status(Code::kInternal, Format("%s: XLA's communicator is null.", OpName(site.op)));
    }
  }
  const runtime::PlanRequest request = {site.Key(device),   site.op, static_cast<int>(site.world),
                                        site.tuning_digest, need,    chunk};
  const Status status = runtime::StartPlan(request, comm, stream).status();
  if (status.code() == Code::kDeadlineExceeded) {
    // Our all-gather waits for a rank that will not come, and so would the end of the process.
    runtime::KeepFailure(device, status.message());
    runtime::ScopedDevice scoped(device);
    kernels::Abort();
  }
  return status;
}

Expected<const runtime::Binding*> Started(const CallSite& site, int device) {
  JAX_FLUX_RETURN_IF_ERROR(Healthy(device));
  const runtime::Binding* binding = runtime::FindPlan(site.Key(device));
  if (binding != nullptr) return binding;
  return Status(Code::kInternal,
                Format("%s: execute before initialize on device %d.", OpName(site.op), device));
}

Status Launch(const CallSite& site, int ctas, const void* args, cudaStream_t stream) {
  const cudaError_t error = kernels::Launch(*site.kernel, ctas, args, stream);
  if (error == cudaSuccess) {
    CountLaunch(stream);
    return Status();
  }
  return Status(Code::kInternal, Format("%s: launching %s with %d CTAs failed: %s", OpName(site.op),
                                        site.kernel->name, ctas, cudaGetErrorString(error)));
}

void CountLaunch(cudaStream_t stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(stream, &capture);
  ++(capture == cudaStreamCaptureStatusNone ? direct_launches : captured_launches);
}

LaunchCounts Launches() { return {direct_launches.load(), captured_launches.load()}; }

Expected<int> ResidentCtas(const CallSite& site, std::int64_t work) {
  int sms = 0;
  JAX_FLUX_RETURN_IF_CUDA_ERROR(kernels::SmCount(&sms));
  const std::int64_t free = std::max<std::int64_t>(1, sms - site.sm_margin);
  return static_cast<int>(std::max<std::int64_t>(1, std::min(free, work)));
}

std::string Describe(const xla_ffi::AnyBuffer& buffer) {
  std::ostringstream text;
  text << buffer.element_type() << "[";
  const char* separator = "";
  for (const std::int64_t size : buffer.dimensions()) {
    text << separator << size;
    separator = ", ";
  }
  text << "]";
  return text.str();
}

}  // namespace jax_flux::ffi
