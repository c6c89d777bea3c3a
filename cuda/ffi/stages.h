// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What the handlers of all ops share: attributes, groups, communicator, plan, errors.
// Route of one op: <op>.cc binds -> here -> runtime/group.h (plan, workspace) and
// kernels/registry.h (touch, launch).
//
// Stages (XLA calls them in this order):
//   instantiate  once per call site: checks the attributes
//   prepare      every run: asks for the communicator, loads the kernels
//   initialize   every run: at a plan's first run agrees with the peers and binds the workspace
//   execute      direct or under capture, not at all on a graph's replay: enqueues, nothing else
#ifndef JAX_FLUX_CUDA_FFI_STAGES_H_
#define JAX_FLUX_CUDA_FFI_STAGES_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/kernels/registry.h"
#include "cuda/protocol/layout.h"
#include "cuda/protocol/record.h"
#include "cuda/runtime/group.h"
#include "cuda/runtime/status.h"
#include "xla/ffi/api/collectives_api.h"
#include "xla/ffi/api/ffi.h"

namespace jax_flux::ffi {

namespace xla_ffi = ::xla::ffi;

// How XLA's headers want the collectives extension described to an external handler.
struct CollectivesErrors {
  using Status = xla_ffi::Error;
  template <class T>
  using StatusOr = xla_ffi::ErrorOr<T>;

  static Status Ok() { return Status::Success(); }
  static Status TakeError(const XLA_FFI_Api* api, XLA_FFI_Error* error) {
    std::string message = xla_ffi::internal::GetErrorMessage(api, error);
    xla_ffi::internal::DestroyError(api, error);
    return Status::Internal(std::move(message));
  }
};

using CommunicatorContext = xla_ffi::internal::CommunicatorContextBase<CollectivesErrors>;

// Bound as Ctx<Extension<Collectives>>. Later minor versions only add fields at the tail of the
// struct (0.2 came with jaxlib 0.12), so they serve as well.
struct Collectives : xla_ffi::internal::CollectivesExtensionBase<CommunicatorContext> {
  static bool Support(std::int32_t major, std::int32_t minor) { return major == 0 && minor >= 1; }
};

// Attributes that every target has. Equal on all ranks.
struct CallSite {
  protocol::Op op;
  std::vector<std::vector<std::int64_t>> groups;  // all groups of the mesh axis, logical ids
  std::uint64_t groups_digest;
  std::int64_t world;
  std::int64_t channel;
  std::int64_t sm_margin;    // SMs left to others
  std::int64_t chunk_bytes;  // piece of a shard that is pushed and flagged at once
  std::uint64_t site;
  std::uint64_t plan_hash;
  std::uint64_t tuning_digest;
  const kernels::Kernel* kernel;  // attribute "instance"

  runtime::PlanKey Key(int device) const { return {device, groups_digest, channel, plan_hash}; }
};

runtime::Expected<CallSite> DecodeCallSite(protocol::Op op, const xla_ffi::Dictionary& attributes);

// An optional int64 attribute; DecodeCallSite has refused other types.
std::int64_t AttributeOr(const xla_ffi::Dictionary& attributes, const char* name,
                         std::int64_t otherwise);

// The same of a string.
std::string_view AttributeOr(const xla_ffi::Dictionary& attributes, const char* name,
                             std::string_view otherwise);

xla_ffi::Error ToError(const runtime::Status& status);

// The stages after decoding; `need` is what the op wants of a workspace, `chunk` that of
// runtime::ChoiceDigest.
runtime::Status Prepare(const CallSite& site, int device, CommunicatorContext& communicators);
runtime::Status Initialize(const CallSite& site, int device, const protocol::GenerationShape& need,
                           CommunicatorContext& communicators, cudaStream_t stream,
                           std::uint64_t chunk = 0);
runtime::Expected<const runtime::Binding*> Started(const CallSite& site, int device);
// The last word of execute.
runtime::Status Launch(const CallSite& site, int ctas, const void* args, cudaStream_t stream);

// Called after every kernel launch of a handler.
void CountLaunch(cudaStream_t stream);

// Launches of this process so far. A graph's replay launches without us: tests see it by the count.
struct LaunchCounts {
  std::int64_t direct;
  std::int64_t captured;
};
LaunchCounts Launches();

// CTAs for `work` units of work: the device's SMs less the margin, never more than the work.
runtime::Expected<int> ResidentCtas(const CallSite& site, std::int64_t work);

// "bf16[2, 512, 1024]"
std::string Describe(const xla_ffi::AnyBuffer& buffer);

// One op's handlers as module.cc registers them.
struct Target {
  const char* name;
  XLA_FFI_Handler* instantiate;
  XLA_FFI_Handler* prepare;
  XLA_FFI_Handler* initialize;
  XLA_FFI_Handler* execute;
};

}  // namespace jax_flux::ffi

#endif  // JAX_FLUX_CUDA_FFI_STAGES_H_
