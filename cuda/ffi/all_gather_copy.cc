// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Handlers of the copy-only all-gather, x[b, m, k] -> y[b, W, m, k], any dtype of whole bytes.
// Route: jax_flux/_primitives.py -> here -> kernels/all_gather_copy.cu.
#include "cuda/kernels/all_gather_copy.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "cuda/ffi/stages.h"
#include "cuda/ffi/targets.h"
#include "cuda/runtime/watchdog.h"

namespace jax_flux::ffi {
namespace {

using runtime::Code;
using runtime::Expected;
using runtime::Format;
using runtime::OpName;
using runtime::Status;
using Args = kernels::AllGatherCopyArgs;

constexpr protocol::Op kOp = protocol::Op::kAllGatherCopy;

struct Problem {
  CallSite site;
  std::int64_t ctas;  // attribute, 0 for the device's SMs
  Args args;          // without call, x, y
  protocol::GenerationShape need;
};

Expected<Problem> Decode(const xla_ffi::AnyBuffer& x, const xla_ffi::AnyBuffer& y,
                         const xla_ffi::Dictionary& attributes) {
  auto site = DecodeCallSite(kOp, attributes);
  if (!site.ok()) return site.status();
  if (std::string_view(site.value().kernel->op) != OpName(kOp)) {
    return Status(Code::kInvalidArgument,
                  Format("all_gather_copy: attribute instance names %s, a kernel of %s.",
                         site.value().kernel->name, site.value().kernel->op));
  }
  const std::int64_t world = site.value().world;
  const auto in = x.dimensions();
  const auto out = y.dimensions();
  if (in.size() != 3 || out.size() != 4 || out[0] != in[0] || out[1] != world || out[2] != in[1] ||
      out[3] != in[2] || x.element_type() != y.element_type()) {
    return Status(Code::kInvalidArgument,
                  Format("all_gather_copy: x is %s and y %s for %lld ranks; y must be [b, W, m, k] "
                         "of x's dtype for x[b, m, k].",
                         Describe(x).c_str(), Describe(y).c_str(), static_cast<long long>(world)));
  }
  const std::int64_t chunk_bytes = site.value().chunk_bytes;
  if (chunk_bytes < 16 || chunk_bytes % 16 != 0) {
    return Status(Code::kInvalidArgument,
                  Format("all_gather_copy: chunk_bytes is %lld; it must be a positive multiple of "
                         "16, TMA's unit.",
                         static_cast<long long>(chunk_bytes)));
  }
  Problem problem = {site.value(), AttributeOr(attributes, "ctas", 0), {}, {}};
  Args& args = problem.args;
  const std::size_t batch = static_cast<std::size_t>(in[0]);
  args.plane_bytes = batch == 0 ? 0 : x.size_bytes() / batch;
  args.plane_pitch = protocol::AlignUp(args.plane_bytes, 128);
  const std::uint64_t units = (args.plane_bytes + Args::kUnitBytes - 1) / Args::kUnitBytes;
  const std::int64_t chunk_units = chunk_bytes / static_cast<std::int64_t>(Args::kUnitBytes);
  const std::uint64_t chunks = (units + chunk_units - 1) / chunk_units * batch;
  const auto limit = static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max());
  if (units > limit || chunks * static_cast<std::uint64_t>(world) > limit) {
    return Status(
        Code::kInvalidArgument,
        Format("all_gather_copy: x is %s, cut into %llu chunks of %lld bytes; W times that "
               "must stay below 2^31. Use larger chunks.",
               Describe(x).c_str(), static_cast<unsigned long long>(chunks),
               static_cast<long long>(chunk_bytes)));
  }
  args.chunks = {static_cast<std::int32_t>(batch),
                 static_cast<std::int32_t>(units),
                 1,
                 static_cast<std::int32_t>(std::min<std::int64_t>(
                     chunk_units, std::max<std::int64_t>(1, static_cast<std::int64_t>(units)))),
                 1,
                 false};
  problem.need = {static_cast<std::int32_t>(world),
                  args.chunks.Count(),
                  0,
                  args.SlotBytes() * static_cast<std::uint64_t>(world),
                  0,
                  0,
                  0};
  return problem;
}

xla_ffi::Error InstantiateAllGatherCopy(xla_ffi::Dictionary attributes) {
  return ToError(DecodeCallSite(kOp, attributes).status());
}

xla_ffi::Error PrepareAllGatherCopy(std::int32_t device, CommunicatorContext communicators,
                                    xla_ffi::Dictionary attributes) {
  auto site = DecodeCallSite(kOp, attributes);
  if (!site.ok()) return ToError(site.status());
  return ToError(Prepare(site.value(), device, communicators));
}

xla_ffi::Error InitializeAllGatherCopy(std::int32_t device, cudaStream_t stream,
                                       CommunicatorContext communicators, xla_ffi::AnyBuffer x,
                                       xla_ffi::Result<xla_ffi::AnyBuffer> y,
                                       xla_ffi::Dictionary attributes) {
  auto problem = Decode(x, *y, attributes);
  if (!problem.ok()) return ToError(problem.status());
  return ToError(
      Initialize(problem.value().site, device, problem.value().need, communicators, stream));
}

Status Enqueue(Problem& problem, int device, const xla_ffi::AnyBuffer& x,
               const xla_ffi::AnyBuffer& y, cudaStream_t stream) {
  auto binding = Started(problem.site, device);
  if (!binding.ok()) return binding.status();
  Args& args = problem.args;
  args.call = binding.value()->MakeCall(kOp, problem.site.site);
  args.x = static_cast<const std::uint8_t*>(x.untyped_data());
  args.y = static_cast<std::uint8_t*>(y.untyped_data());
  auto ctas = problem.ctas > 0
                  ? Expected<int>(static_cast<int>(problem.ctas))
                  : ResidentCtas(problem.site, problem.site.world * args.chunks.Count());
  if (!ctas.ok()) return ctas.status();
  return Launch(problem.site, ctas.value(), &args, stream);
}

xla_ffi::Error ExecuteAllGatherCopy(std::int32_t device, cudaStream_t stream, xla_ffi::AnyBuffer x,
                                    xla_ffi::Result<xla_ffi::AnyBuffer> y,
                                    xla_ffi::Dictionary attributes) {
  auto problem = Decode(x, *y, attributes);
  if (!problem.ok()) return ToError(problem.status());
  return ToError(Enqueue(problem.value(), device, x, *y, stream));
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, InstantiateAllGatherCopy,
                       xla_ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kPrepare, PrepareAllGatherCopy,
                       xla_ffi::Ffi::BindPrepare()
                           .Ctx<xla_ffi::DeviceOrdinal>()
                           .Ctx<xla_ffi::Extension<Collectives>>()
                           .Attrs());
XLA_FFI_DEFINE_HANDLER(kInitialize, InitializeAllGatherCopy,
                       xla_ffi::Ffi::BindInitialize()
                           .Ctx<xla_ffi::DeviceOrdinal>()
                           .Ctx<xla_ffi::PlatformStream<cudaStream_t>>()
                           .Ctx<xla_ffi::Extension<Collectives>>()
                           .Arg<xla_ffi::AnyBuffer>()
                           .Ret<xla_ffi::AnyBuffer>()
                           .Attrs());
XLA_FFI_DEFINE_HANDLER(kExecute, ExecuteAllGatherCopy,
                       xla_ffi::Ffi::BindExecute()
                           .Ctx<xla_ffi::DeviceOrdinal>()
                           .Ctx<xla_ffi::PlatformStream<cudaStream_t>>()
                           .Arg<xla_ffi::AnyBuffer>()
                           .Ret<xla_ffi::AnyBuffer>()
                           .Attrs(),
                       {xla_ffi::Traits::kCmdBufferCompatible});

}  // namespace

Target AllGatherCopyTarget() {
  return {"jax_flux_all_gather_copy_v1", kInstantiate, kPrepare, kInitialize, kExecute};
}

}  // namespace jax_flux::ffi
