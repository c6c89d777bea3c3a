// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cuda/ffi/gemm_call.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <sstream>
#include <utility>

#include "cuda/ffi/copy_transport.h"
#include "cuda/runtime/watchdog.h"

namespace jax_flux::ffi {
namespace {

using runtime::Code;
using runtime::Expected;
using runtime::Format;
using runtime::OpName;
using runtime::Status;

constexpr std::uintptr_t kTmaAlignment = 16;
constexpr std::int64_t kMostOfAPlan = 1 << 20;  // fits int32 with a tile's margin

std::int32_t I32(std::int64_t value) { return static_cast<std::int32_t>(value); }

xla_ffi::DataType Dtype(const GemmCall& call) {
  return call.instance->dtype == kernels::GemmDtype::kF16 ? xla_ffi::F16 : xla_ffi::BF16;
}

bool ParseActivation(std::string_view name, kernels::Activation* activation) {
  using kernels::Activation;
  constexpr std::pair<const char*, Activation> kNames[] = {{"", Activation::kNone},
                                                           {"relu", Activation::kRelu},
                                                           {"gelu", Activation::kGelu},
                                                           {"silu", Activation::kSilu}};
  for (const auto& [known, value] : kNames) {
    if (name == known) {
      *activation = value;
      return true;
    }
  }
  return false;
}

std::string Shape(const std::vector<std::int64_t>& dimensions) {
  std::ostringstream text;
  const char* separator = "[";
  for (const std::int64_t size : dimensions) {
    text << separator << size;
    separator = ", ";
  }
  text << "]";
  return text.str();
}

Status CannotRun(const GemmCall& call, const kernels::GemmProblem& problem) {
  const std::string rule = CanRun(*call.instance, problem, call.Plan(problem));
  if (rule.empty()) return Status();
  return Status(Code::kInvalidArgument,
                Format("%s: b = %d, W = %d, m = %d, n = %d, k = %d with kernel %s: %s. Pass "
                       "implementation=None to let the planner choose, or \"xla\".",
                       OpName(call.site.op), problem.batch, problem.world, problem.rows,
                       problem.columns, problem.depth, call.instance->kernel.name, rule.c_str()));
}

Status CheckAligned(const GemmCall& call, const char* name, const void* pointer) {
  if (reinterpret_cast<std::uintptr_t>(pointer) % kTmaAlignment == 0) return Status();
  return Status(Code::kInternal,
                Format("%s: XLA put %s at %p, and TMA reads from multiples of %zu bytes. Pass "
                       "implementation=\"xla\" at this call.",
                       OpName(call.site.op), name, pointer, kTmaAlignment));
}

}  // namespace

kernels::GemmProblem GemmCall::Problem(kernels::GemmOp op, std::int64_t batch, std::int64_t rows,
                                       std::int64_t columns, std::int64_t depth) const {
  kernels::GemmProblem problem = {};
  problem.op = alone() ? kernels::GemmOp::kPlain : op;
  problem.transpose_w = transpose_w;
  problem.world = I32(site.world);
  problem.batch = I32(batch);
  problem.rows = I32(rows);
  problem.columns = I32(columns);
  problem.depth = I32(depth);
  return problem;
}

kernels::GemmPlan GemmCall::Plan(const kernels::GemmProblem& problem) const {
  kernels::GemmPlan plan = kernels::DefaultPlan(
      *instance, problem, copies() ? kernels::Transport::kCopy : kernels::Transport::kTma);
  if (raster_group > 0) plan.raster_group = I32(raster_group);
  if (sweep_segments > 0) plan.sweep_segments = I32(sweep_segments);
  if (chunk_rows > 0) plan.chunk_rows = I32(chunk_rows);
  if (chunk_depth > 0) plan.chunk_depth = I32(chunk_depth);
  if (push_peers > 0) plan.push_peers = I32(push_peers);
  if (push_ctas > 0) plan.push_ctas = I32(push_ctas);
  if (depth_outer >= 0) plan.depth_outer = depth_outer != 0;
  plan.sm_margin = I32(site.sm_margin);
  return plan;
}

void GemmCall::KeepChunks(const kernels::GemmProblem& first) {
  const kernels::GemmPlan plan = Plan(first);
  chunk_rows = plan.chunk_rows;
  chunk_depth = plan.chunk_depth;
  depth_outer = plan.depth_outer ? 1 : 0;
}

Expected<GemmCall> DecodeGemmCall(protocol::Op op, const xla_ffi::Dictionary& attributes) {
  auto site = DecodeCallSite(op, attributes);
  if (!site.ok()) return site.status();
  GemmCall call = {};
  call.site = site.value();
  call.instance = kernels::FindGemm(call.site.kernel->name);
  if (call.instance == nullptr) {
    return Status(Code::kInvalidArgument,
                  Format("%s: kernel %s is no GEMM.", OpName(op), call.site.kernel->name));
  }
  call.transpose_w = AttributeOr(attributes, "transpose_w", 0) != 0;
  for (const auto& [name, value] : {std::pair("raster_group", &call.raster_group),
                                    {"sweep_segments", &call.sweep_segments},
                                    {"chunk_rows", &call.chunk_rows},
                                    {"chunk_depth", &call.chunk_depth},
                                    {"push_peers", &call.push_peers},
                                    {"push_ctas", &call.push_ctas}}) {
    *value = AttributeOr(attributes, name, 0);
    if (*value >= 0 && *value <= kMostOfAPlan) continue;
    return Status(Code::kInvalidArgument,
                  Format("%s: %s = %lld; the kernels take 0 (their own choice) to %lld. Leave it "
                         "out of Config and of the tuning record.",
                         OpName(op), name, static_cast<long long>(*value),
                         static_cast<long long>(kMostOfAPlan)));
  }
  call.depth_outer = AttributeOr(attributes, "depth_outer", -1);
  const std::int64_t transport = AttributeOr(attributes, "transport", 0);
  if (transport < 0 || transport > static_cast<std::int64_t>(kernels::Transport::kCopy)) {
    return Status(Code::kInvalidArgument,
                  Format("%s: transport is %lld; 0 is \"tma\", 1 is \"copy\".", OpName(op),
                         static_cast<long long>(transport)));
  }
  call.transport = static_cast<kernels::Transport>(transport);
  call.biases = static_cast<std::uint64_t>(AttributeOr(attributes, "biases", 0));
  const std::string activation(AttributeOr(attributes, "activation", std::string_view()));
  if (!ParseActivation(activation, &call.activation)) {
    return Status(Code::kInvalidArgument,
                  Format("%s: no kernel applies \"%s\" (of \"relu\", \"gelu\", \"silu\").",
                         OpName(op), activation.c_str()));
  }
  return call;
}

Expected<Weight> DecodeWeight(const GemmCall& call, const xla_ffi::AnyBuffer& w) {
  const auto size = w.dimensions();
  if (size.size() != 2 || w.element_type() != Dtype(call)) {
    return Status(
        Code::kInvalidArgument,
        Format("%s: w is %s; it must be a matrix of %s, as kernel %s is for.", OpName(call.site.op),
               Describe(w).c_str(), call.instance->kernel.dtype, call.instance->kernel.name));
  }
  return call.transpose_w ? Weight{size[0], size[1]} : Weight{size[1], size[0]};
}

Status CheckBuffer(const GemmCall& call, const char* name, const xla_ffi::AnyBuffer& buffer,
                   const std::vector<std::int64_t>& dimensions, const char* rule) {
  const auto actual = buffer.dimensions();
  bool fits = actual.size() == dimensions.size() && buffer.element_type() == Dtype(call);
  for (std::size_t i = 0; fits && i < dimensions.size(); ++i) {
    fits = actual[i] == dimensions[i] && actual[i] <= std::numeric_limits<std::int32_t>::max();
  }
  if (fits) return Status();
  return Status(Code::kInvalidArgument,
                Format("%s: %s is %s for %lld ranks; %s, here %s%s.", OpName(call.site.op), name,
                       Describe(buffer).c_str(), static_cast<long long>(call.site.world), rule,
                       call.instance->kernel.dtype, Shape(dimensions).c_str()));
}

Expected<std::vector<const void*>> DecodeBiases(const GemmCall& call,
                                                const xla_ffi::RemainingArgs& operands,
                                                std::size_t first,
                                                const std::vector<std::int64_t>& columns) {
  std::size_t expected = 0;
  for (std::uint64_t left = call.biases; left != 0; left &= left - 1) ++expected;
  const bool too_many = columns.size() < 64 && call.biases >> columns.size() != 0;
  if (operands.size() != first + expected || too_many) {
    return Status(
        Code::kInvalidArgument,
        Format("%s: %zu operands after the weights, attribute biases = %llu, %zu results; "
               "a bias for each bit, a bit for each result.",
               OpName(call.site.op), operands.size() - first,
               static_cast<unsigned long long>(call.biases), columns.size()));
  }
  std::vector<const void*> data(columns.size(), nullptr);
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (i >= 64 || (call.biases >> i & 1) == 0) continue;
    const auto bias = operands.get<xla_ffi::AnyBuffer>(first++);
    if (!bias.has_value()) return Status(Code::kInvalidArgument, "a bias is no buffer.");
    JAX_FLUX_RETURN_IF_ERROR(
        CheckBuffer(call, "bias", *bias, {columns[i]}, "one number per column"));
    data[i] = bias->untyped_data();
  }
  return data;
}

xla_ffi::Error InstantiateGemm(protocol::Op op, const xla_ffi::Dictionary& attributes) {
  return ToError(DecodeGemmCall(op, attributes).status());
}

xla_ffi::Error PrepareGemm(protocol::Op op, std::int32_t device, CommunicatorContext& communicators,
                           const xla_ffi::Dictionary& attributes) {
  auto call = DecodeGemmCall(op, attributes);
  if (!call.ok()) return ToError(call.status());
  {
    runtime::ScopedDevice scoped(device);
    const Status copies = PrepareCopies(call.value());
    if (!copies.ok()) return ToError(copies);
  }
  return ToError(Prepare(call.value().site, device, communicators));
}

Status InitializeGemm(const GemmCall& call, int device, const kernels::GemmProblem& problem,
                      CommunicatorContext& communicators, cudaStream_t stream) {
  JAX_FLUX_RETURN_IF_ERROR(CannotRun(call, problem));
  if (call.alone()) return Status();
  const kernels::GemmPlan plan = call.Plan(problem);
  const auto chunk = static_cast<std::uint64_t>(plan.chunk_rows) << 32 |
                     static_cast<std::uint64_t>(plan.chunk_depth);
  return Initialize(call.site, device, kernels::GemmNeeds(*call.instance, problem, plan),
                    communicators, stream, chunk);
}

Status CheckPointers(const GemmCall& call, const GemmLaunch& launch) {
  JAX_FLUX_RETURN_IF_ERROR(CheckAligned(call, "x", launch.x));
  JAX_FLUX_RETURN_IF_ERROR(CheckAligned(call, "w", launch.w));
  JAX_FLUX_RETURN_IF_ERROR(CheckAligned(call, "the result", launch.y));
  JAX_FLUX_RETURN_IF_ERROR(CheckAligned(call, "bias", launch.bias));
  for (const auto& [w, y, bias] : launch.more) {
    JAX_FLUX_RETURN_IF_ERROR(CheckAligned(call, "w", w));
    JAX_FLUX_RETURN_IF_ERROR(CheckAligned(call, "the result", y));
    JAX_FLUX_RETURN_IF_ERROR(CheckAligned(call, "bias", bias));
  }
  return Status();
}

Status EnqueueGemm(const GemmCall& call, const runtime::Binding* binding,
                   kernels::GemmProblem problem, const GemmLaunch& launch, cudaStream_t stream) {
  JAX_FLUX_RETURN_IF_ERROR(CheckPointers(call, launch));
  protocol::Call kernel_call = {};
  if (binding != nullptr) {
    problem.rank = binding->rank;
    kernel_call = binding->MakeCall(call.site.op, call.site.site, launch.first, launch.last);
  }
  kernels::GemmPlan plan = call.Plan(problem);
  if (call.copies() && binding->shares_gpu) {
    plan.sm_margin = std::max(plan.sm_margin, kSmsForLocalCopies);
  }
  kernels::GemmOperands operands = {launch.x, launch.w, launch.y, {launch.bias, call.activation}};
  std::copy(std::begin(launch.more), std::end(launch.more), std::begin(operands.more));
  const std::string error = kernels::LaunchGemm(*call.instance, problem, plan, operands,
                                                binding != nullptr ? &kernel_call : nullptr, stream,
                                                {nullptr, launch.trace});
  if (!error.empty()) {
    return Status(Code::kInternal, Format("%s: %s", OpName(call.site.op), error.c_str()));
  }
  CountLaunch(stream);
  return Status();
}

}  // namespace jax_flux::ffi
