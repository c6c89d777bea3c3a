// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Handlers of matmul_rs: x[b, W, m, k], w[k, n], maybe bias[n] -> y[b, m, n], summed over the ranks
// in f32.
// Several operand pairs arrive as one pair, concatenated along k by the lowering.
// Route: jax_flux/_lowering.py -> here -> kernels/gemm.h.
#include "cuda/ffi/gemm_call.h"
#include "cuda/ffi/targets.h"

namespace jax_flux::ffi {
namespace {

using runtime::Code;
using runtime::Expected;
using runtime::Format;
using runtime::Status;

constexpr protocol::Op kOp = protocol::Op::kMatmulRs;

struct Operands {
  GemmCall call;
  kernels::GemmProblem problem;
  GemmLaunch launch;
};

Expected<Operands> Decode(const xla_ffi::AnyBuffer& x, const xla_ffi::AnyBuffer& w,
                          const xla_ffi::RemainingArgs& bias, const xla_ffi::AnyBuffer& y,
                          const xla_ffi::Dictionary& attributes) {
  auto call = DecodeGemmCall(kOp, attributes);
  if (!call.ok()) return call.status();
  const GemmCall& gemm = call.value();
  const auto in = x.dimensions();
  if (in.size() != 4) {
    return Status(Code::kInvalidArgument,
                  Format("matmul_rs: x is %s; it must be [b, W, m, k].", Describe(x).c_str()));
  }
  JAX_FLUX_RETURN_IF_ERROR(
      CheckBuffer(gemm, "x", x, {in[0], gemm.site.world, in[2], in[3]}, "it must be [b, W, m, k]"));
  auto weight = DecodeWeight(gemm, w);
  if (!weight.ok()) return weight.status();
  const std::int64_t n = weight.value().columns;
  JAX_FLUX_RETURN_IF_ERROR(CheckBuffer(
      gemm, "w", w,
      gemm.transpose_w ? std::vector<std::int64_t>{n, in[3]} : std::vector<std::int64_t>{in[3], n},
      "its depth must be x's k"));
  JAX_FLUX_RETURN_IF_ERROR(CheckBuffer(gemm, "y", y, {in[0], in[2], n}, "it must be [b, m, n]"));
  auto biases = DecodeBiases(gemm, bias, 0, {n});
  if (!biases.ok()) return biases.status();
  if (gemm.activation != kernels::Activation::kNone) {
    return Status(Code::kInvalidArgument, "matmul_rs: no activation follows its sum.");
  }
  return Operands{
      gemm,
      gemm.Problem(kernels::GemmOp::kMatmulRs, in[0], in[2], n, in[3]),
      {x.untyped_data(), w.untyped_data(), y.untyped_data(), biases.value()[0], true, true}};
}

xla_ffi::Error InstantiateMatmulRs(xla_ffi::Dictionary attributes) {
  return InstantiateGemm(kOp, attributes);
}

xla_ffi::Error PrepareMatmulRs(std::int32_t device, CommunicatorContext communicators,
                               xla_ffi::Dictionary attributes) {
  return PrepareGemm(kOp, device, communicators, attributes);
}

xla_ffi::Error InitializeMatmulRs(std::int32_t device, cudaStream_t stream,
                                  CommunicatorContext communicators, xla_ffi::AnyBuffer x,
                                  xla_ffi::AnyBuffer w, xla_ffi::RemainingArgs bias,
                                  xla_ffi::Result<xla_ffi::AnyBuffer> y,
                                  xla_ffi::Dictionary attributes) {
  auto operands = Decode(x, w, bias, *y, attributes);
  if (!operands.ok()) return ToError(operands.status());
  return ToError(InitializeGemm(operands.value().call, device, operands.value().problem,
                                communicators, stream));
}

Status Enqueue(const Operands& operands, int device, cudaStream_t stream) {
  const runtime::Binding* binding = nullptr;
  if (!operands.call.alone()) {
    auto started = Started(operands.call.site, device);
    if (!started.ok()) return started.status();
    binding = started.value();
  }
  return EnqueueGemm(operands.call, binding, operands.problem, operands.launch, stream);
}

xla_ffi::Error ExecuteMatmulRs(std::int32_t device, cudaStream_t stream, xla_ffi::AnyBuffer x,
                               xla_ffi::AnyBuffer w, xla_ffi::RemainingArgs bias,
                               xla_ffi::Result<xla_ffi::AnyBuffer> y,
                               xla_ffi::Dictionary attributes) {
  auto operands = Decode(x, w, bias, *y, attributes);
  if (!operands.ok()) return ToError(operands.status());
  return ToError(Enqueue(operands.value(), device, stream));
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, InstantiateMatmulRs, xla_ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kPrepare, PrepareMatmulRs,
                       xla_ffi::Ffi::BindPrepare()
                           .Ctx<xla_ffi::DeviceOrdinal>()
                           .Ctx<xla_ffi::Extension<Collectives>>()
                           .Attrs());
XLA_FFI_DEFINE_HANDLER(kInitialize, InitializeMatmulRs,
                       xla_ffi::Ffi::BindInitialize()
                           .Ctx<xla_ffi::DeviceOrdinal>()
                           .Ctx<xla_ffi::PlatformStream<cudaStream_t>>()
                           .Ctx<xla_ffi::Extension<Collectives>>()
                           .Arg<xla_ffi::AnyBuffer>()
                           .Arg<xla_ffi::AnyBuffer>()
                           .RemainingArgs()
                           .Ret<xla_ffi::AnyBuffer>()
                           .Attrs());
XLA_FFI_DEFINE_HANDLER(kExecute, ExecuteMatmulRs,
                       xla_ffi::Ffi::BindExecute()
                           .Ctx<xla_ffi::DeviceOrdinal>()
                           .Ctx<xla_ffi::PlatformStream<cudaStream_t>>()
                           .Arg<xla_ffi::AnyBuffer>()
                           .Arg<xla_ffi::AnyBuffer>()
                           .RemainingArgs()
                           .Ret<xla_ffi::AnyBuffer>()
                           .Attrs(),
                       {xla_ffi::Traits::kCmdBufferCompatible});

}  // namespace

Target MatmulRsTarget() {
  return {"jax_flux_matmul_rs_v1", kInstantiate, kPrepare, kInitialize, kExecute};
}

}  // namespace jax_flux::ffi
