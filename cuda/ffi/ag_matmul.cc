// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Handlers of ag_matmul: x[b, m, k], w_i[k, n_i] ..., biases -> y_i[b, W, m, n_i] ...
// Up to four weights are one launch (of packed tiles: one). More of them are one call still: its
// first launch brings the peers' shards into the workspace, later ones multiply the same slots. One
// entry, one epoch. With the copy transport a gate is the first launch instead, and copy engines
// bring the shards. Route: jax_flux/_lowering.py -> here -> kernels/gemm.h, copy_transport.h.
#include <algorithm>
#include <iterator>
#include <mutex>
#include <vector>

#include "cuda/ffi/copy_transport.h"
#include "cuda/ffi/gemm_call.h"
#include "cuda/ffi/targets.h"

namespace jax_flux::ffi {
namespace {

using runtime::Code;
using runtime::Expected;
using runtime::Format;
using runtime::Status;

constexpr protocol::Op kOp = protocol::Op::kAgMatmul;

struct Operands {
  GemmCall call;
  xla_ffi::AnyBuffer x;
  struct Launch {
    kernels::GemmProblem problem;
    kernels::GemmWeight weight;
    kernels::GemmWeight more[kernels::kMoreWeights];
  };
  std::vector<Launch> launches;

  void Add(const kernels::GemmProblem& problem, std::size_t index,
           const kernels::GemmWeight& weight) {
    // A launch of packed tiles multiplies one weight.
    const std::size_t most = call.instance->kernel.packed ? 1 : kernels::kMoreWeights + 1;
    const std::size_t place = index % most;
    if (place == 0) {
      launches.push_back({problem, weight, {}});
      return;
    }
    launches.back().problem.more_columns[place - 1] = problem.columns;
    launches.back().more[place - 1] = weight;
  }
};

Expected<Operands> Decode(const xla_ffi::AnyBuffer& x, const xla_ffi::RemainingArgs& ws,
                          const xla_ffi::RemainingRets& ys, const xla_ffi::Dictionary& attributes) {
  auto call = DecodeGemmCall(kOp, attributes);
  if (!call.ok()) return call.status();
  const GemmCall& gemm = call.value();
  if (ys.size() == 0 || ws.size() < ys.size()) {
    return Status(Code::kInvalidArgument,
                  Format("ag_matmul: %zu weights and biases for %zu results; a weight per result, "
                         "and at least one.",
                         ws.size(), ys.size()));
  }
  const auto in = x.dimensions();
  if (in.size() != 3) {
    return Status(Code::kInvalidArgument,
                  Format("ag_matmul: x is %s; it must be [b, m, k].", Describe(x).c_str()));
  }
  JAX_FLUX_RETURN_IF_ERROR(
      CheckBuffer(gemm, "x", x, {in[0], in[1], in[2]}, "it must be [b, m, k]"));
  Operands operands = {gemm, x, {}};
  std::vector<std::int64_t> columns;
  std::vector<kernels::GemmWeight> weights;
  for (std::size_t i = 0; i < ys.size(); ++i) {
    const auto w = ws.get<xla_ffi::AnyBuffer>(i);
    const auto y = ys.get<xla_ffi::AnyBuffer>(i);
    if (!w.has_value() || !y.has_value()) {
      return Status(Code::kInvalidArgument, "ag_matmul: an operand is no buffer.");
    }
    auto weight = DecodeWeight(gemm, *w);
    if (!weight.ok()) return weight.status();
    const std::int64_t n = weight.value().columns;
    JAX_FLUX_RETURN_IF_ERROR(CheckBuffer(gemm, "w", *w,
                                         gemm.transpose_w ? std::vector<std::int64_t>{n, in[2]}
                                                          : std::vector<std::int64_t>{in[2], n},
                                         "its depth must be x's k"));
    JAX_FLUX_RETURN_IF_ERROR(
        CheckBuffer(gemm, "y", **y, {in[0], gemm.site.world, in[1], n}, "it must be [b, W, m, n]"));
    weights.push_back({w->untyped_data(), (*y)->untyped_data(), nullptr});
    columns.push_back(n);
  }
  auto biases = DecodeBiases(gemm, ws, ys.size(), columns);
  if (!biases.ok()) return biases.status();
  for (std::size_t i = 0; i < ys.size(); ++i) {
    weights[i].bias = biases.value()[i];
    operands.Add(gemm.Problem(kernels::GemmOp::kAgMatmul, in[0], in[1], columns[i], in[2]), i,
                 weights[i]);
  }
  if (!gemm.alone()) operands.call.KeepChunks(operands.launches[0].problem);
  return operands;
}

xla_ffi::Error InstantiateAgMatmul(xla_ffi::Dictionary attributes) {
  return InstantiateGemm(kOp, attributes);
}

xla_ffi::Error PrepareAgMatmul(std::int32_t device, CommunicatorContext communicators,
                               xla_ffi::Dictionary attributes) {
  return PrepareGemm(kOp, device, communicators, attributes);
}

// The workspace holds x's shards, whatever the weights: the launches need the same.
xla_ffi::Error InitializeAgMatmul(std::int32_t device, cudaStream_t stream,
                                  CommunicatorContext communicators, xla_ffi::AnyBuffer x,
                                  xla_ffi::RemainingArgs ws, xla_ffi::RemainingRets ys,
                                  xla_ffi::Dictionary attributes) {
  auto operands = Decode(x, ws, ys, attributes);
  if (!operands.ok()) return ToError(operands.status());
  for (const auto& launch : operands.value().launches) {
    const Status status =
        InitializeGemm(operands.value().call, device, launch.problem, communicators, stream);
    if (!status.ok()) return ToError(status);
  }
  return xla_ffi::Error::Success();
}

// The GEMMs; with the copy transport a gate was the call's first launch.
std::vector<GemmLaunch> Gemms(const Operands& operands) {
  std::vector<GemmLaunch> gemms;
  for (const auto& launch : operands.launches) {
    const auto& [w, y, bias] = launch.weight;
    GemmLaunch gemm = {operands.x.untyped_data(), w, y, bias, false, false};
    std::copy(std::begin(launch.more), std::end(launch.more), std::begin(gemm.more));
    gemms.push_back(gemm);
  }
  gemms.front().first = !operands.call.copies();
  gemms.back().last = true;
  return gemms;
}

Status Enqueue(const Operands& operands, int device, cudaStream_t stream) {
  const GemmCall& call = operands.call;
  const runtime::Binding* binding = nullptr;
  if (!call.alone()) {
    auto started = Started(call.site, device);
    if (!started.ok()) return started.status();
    binding = started.value();
  }
  const std::vector<GemmLaunch> gemms = Gemms(operands);
  for (const GemmLaunch& gemm : gemms) JAX_FLUX_RETURN_IF_ERROR(CheckPointers(call, gemm));
  std::unique_lock<std::mutex> lock;
  if (call.copies()) {
    lock = std::unique_lock<std::mutex>(binding->side_streams->mutex());
    JAX_FLUX_RETURN_IF_ERROR(EnqueueCopies(call, *binding, operands.launches[0].problem,
                                           operands.x.untyped_data(), stream));
  }
  for (std::size_t i = 0; i < gemms.size(); ++i) {
    JAX_FLUX_RETURN_IF_ERROR(
        EnqueueGemm(call, binding, operands.launches[i].problem, gemms[i], stream));
  }
  return call.copies() ? JoinCopies(*binding, stream) : Status();
}

xla_ffi::Error ExecuteAgMatmul(std::int32_t device, cudaStream_t stream, xla_ffi::AnyBuffer x,
                               xla_ffi::RemainingArgs ws, xla_ffi::RemainingRets ys,
                               xla_ffi::Dictionary attributes) {
  auto operands = Decode(x, ws, ys, attributes);
  if (!operands.ok()) return ToError(operands.status());
  return ToError(Enqueue(operands.value(), device, stream));
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, InstantiateAgMatmul, xla_ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kPrepare, PrepareAgMatmul,
                       xla_ffi::Ffi::BindPrepare()
                           .Ctx<xla_ffi::DeviceOrdinal>()
                           .Ctx<xla_ffi::Extension<Collectives>>()
                           .Attrs());
XLA_FFI_DEFINE_HANDLER(kInitialize, InitializeAgMatmul,
                       xla_ffi::Ffi::BindInitialize()
                           .Ctx<xla_ffi::DeviceOrdinal>()
                           .Ctx<xla_ffi::PlatformStream<cudaStream_t>>()
                           .Ctx<xla_ffi::Extension<Collectives>>()
                           .Arg<xla_ffi::AnyBuffer>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attrs());
XLA_FFI_DEFINE_HANDLER(kExecute, ExecuteAgMatmul,
                       xla_ffi::Ffi::BindExecute()
                           .Ctx<xla_ffi::DeviceOrdinal>()
                           .Ctx<xla_ffi::PlatformStream<cudaStream_t>>()
                           .Arg<xla_ffi::AnyBuffer>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attrs(),
                       {xla_ffi::Traits::kCmdBufferCompatible});

}  // namespace

Target AgMatmulTarget() {
  return {"jax_flux_ag_matmul_v1", kInstantiate, kPrepare, kInitialize, kExecute};
}

}  // namespace jax_flux::ffi
