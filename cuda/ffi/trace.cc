// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Handlers of the traced ops: those of ag_matmul and matmul_rs with one weight and one more result,
// the bytes that the traced instance writes (kernels/trace.cuh). A call of its own kind, so that
// the product's targets carry nothing for it.
// Route: jax_flux/tools/trace.py -> here -> kernels/gemm.h.
#include <cuda_runtime_api.h>

#include <vector>

#include "cuda/ffi/gemm_call.h"
#include "cuda/ffi/targets.h"
#include "cuda/runtime/watchdog.h"

namespace jax_flux::ffi {
namespace {

using runtime::Code;
using runtime::Expected;
using runtime::Format;
using runtime::OpName;
using runtime::Status;

struct Operands {
  GemmCall call;
  kernels::GemmProblem problem;
};

// x[b, m, k] and y[b, W, m, n] of ag_matmul; x[b, W, m, k] and y[b, m, n] of matmul_rs.
Expected<Operands> Decode(protocol::Op op, const xla_ffi::AnyBuffer& x, const xla_ffi::AnyBuffer& w,
                          const xla_ffi::AnyBuffer& y, const xla_ffi::Dictionary& attributes) {
  auto call = DecodeGemmCall(op, attributes);
  if (!call.ok()) return call.status();
  const GemmCall& gemm = call.value();
  if (gemm.alone()) {
    return Status(
        Code::kInvalidArgument,
        Format("%s: a group of one has nothing to trace; take two ranks or more.", OpName(op)));
  }
  const bool gathers = op == protocol::Op::kAgMatmul;
  const auto in = x.dimensions();
  const std::int64_t world = gemm.site.world;
  if (in.size() != (gathers ? 3u : 4u)) {
    return Status(Code::kInvalidArgument,
                  Format("%s: x is %s; it must be %s.", OpName(op), Describe(x).c_str(),
                         gathers ? "[b, m, k]" : "[b, W, m, k]"));
  }
  const std::int64_t batch = in[0], rows = in[in.size() - 2], depth = in[in.size() - 1];
  auto weight = DecodeWeight(gemm, w);
  if (!weight.ok()) return weight.status();
  const std::int64_t n = weight.value().columns;
  using Sizes = std::vector<std::int64_t>;
  const Sizes x_sizes = gathers ? Sizes{batch, rows, depth} : Sizes{batch, world, rows, depth};
  const Sizes y_sizes = gathers ? Sizes{batch, world, rows, n} : Sizes{batch, rows, n};
  JAX_FLUX_RETURN_IF_ERROR(CheckBuffer(gemm, "x", x, x_sizes, "it must be a shard per rank"));
  JAX_FLUX_RETURN_IF_ERROR(CheckBuffer(gemm, "w", w,
                                       gemm.transpose_w ? Sizes{n, depth} : Sizes{depth, n},
                                       "its depth must be x's k"));
  JAX_FLUX_RETURN_IF_ERROR(CheckBuffer(gemm, "y", y, y_sizes, "it must be the op's result"));
  const kernels::GemmOp kind = gathers ? kernels::GemmOp::kAgMatmul : kernels::GemmOp::kMatmulRs;
  return Operands{gemm, gemm.Problem(kind, batch, rows, n, depth)};
}

Status ClearTrace(const GemmCall& call, const xla_ffi::AnyBuffer& trace, cudaStream_t stream) {
  int sms = 0;
  cudaError_t error = kernels::SmCount(&sms);
  const std::uint64_t need = kernels::TraceBytes(sms);
  if (error == cudaSuccess && trace.size_bytes() < need) {
    return Status(Code::kInvalidArgument,
                  Format("%s: the trace has %zu bytes; %d SMs want %llu.", OpName(call.site.op),
                         trace.size_bytes(), sms, static_cast<unsigned long long>(need)));
  }
  if (error == cudaSuccess) {
    error = cudaMemsetAsync(trace.untyped_data(), 0, trace.size_bytes(), stream);
  }
  if (error == cudaSuccess) return Status();
  return Status(Code::kInternal, Format("%s: clearing the trace: %s", OpName(call.site.op),
                                        cudaGetErrorString(error)));
}

template <protocol::Op kOp>
xla_ffi::Error Instantiate(xla_ffi::Dictionary attributes) {
  return InstantiateGemm(kOp, attributes);
}

template <protocol::Op kOp>
xla_ffi::Error Prepare(std::int32_t device, CommunicatorContext communicators,
                       xla_ffi::Dictionary attributes) {
  return PrepareGemm(kOp, device, communicators, attributes);
}

template <protocol::Op kOp>
xla_ffi::Error Initialize(std::int32_t device, cudaStream_t stream,
                          CommunicatorContext communicators, xla_ffi::AnyBuffer x,
                          xla_ffi::AnyBuffer w, xla_ffi::Result<xla_ffi::AnyBuffer> y,
                          xla_ffi::Result<xla_ffi::AnyBuffer>, xla_ffi::Dictionary attributes) {
  auto operands = Decode(kOp, x, w, *y, attributes);
  if (!operands.ok()) return ToError(operands.status());
  return ToError(InitializeGemm(operands.value().call, device, operands.value().problem,
                                communicators, stream));
}

template <protocol::Op kOp>
xla_ffi::Error Execute(std::int32_t device, cudaStream_t stream, xla_ffi::AnyBuffer x,
                       xla_ffi::AnyBuffer w, xla_ffi::Result<xla_ffi::AnyBuffer> y,
                       xla_ffi::Result<xla_ffi::AnyBuffer> trace, xla_ffi::Dictionary attributes) {
  auto operands = Decode(kOp, x, w, *y, attributes);
  if (!operands.ok()) return ToError(operands.status());
  const GemmCall& call = operands.value().call;
  auto started = Started(call.site, device);
  if (!started.ok()) return ToError(started.status());
  const Status cleared = ClearTrace(call, *trace, stream);
  if (!cleared.ok()) return ToError(cleared);
  GemmLaunch launch = {x.untyped_data(), w.untyped_data(), y->untyped_data(), nullptr, true, true};
  launch.trace = trace->untyped_data();
  return ToError(EnqueueGemm(call, started.value(), operands.value().problem, launch, stream));
}

constexpr protocol::Op kAg = protocol::Op::kAgMatmul;
constexpr protocol::Op kRs = protocol::Op::kMatmulRs;

#define JAX_FLUX_TRACE_HANDLERS(op)                                        \
  XLA_FFI_DEFINE_HANDLER(op##Instantiate, Instantiate<op>,                 \
                         xla_ffi::Ffi::BindInstantiate().Attrs());         \
  XLA_FFI_DEFINE_HANDLER(op##Prepare, Prepare<op>,                         \
                         xla_ffi::Ffi::BindPrepare()                       \
                             .Ctx<xla_ffi::DeviceOrdinal>()                \
                             .Ctx<xla_ffi::Extension<Collectives>>()       \
                             .Attrs());                                    \
  XLA_FFI_DEFINE_HANDLER(op##Initialize, Initialize<op>,                   \
                         xla_ffi::Ffi::BindInitialize()                    \
                             .Ctx<xla_ffi::DeviceOrdinal>()                \
                             .Ctx<xla_ffi::PlatformStream<cudaStream_t>>() \
                             .Ctx<xla_ffi::Extension<Collectives>>()       \
                             .Arg<xla_ffi::AnyBuffer>()                    \
                             .Arg<xla_ffi::AnyBuffer>()                    \
                             .Ret<xla_ffi::AnyBuffer>()                    \
                             .Ret<xla_ffi::AnyBuffer>()                    \
                             .Attrs());                                    \
  XLA_FFI_DEFINE_HANDLER(op##Execute, Execute<op>,                         \
                         xla_ffi::Ffi::BindExecute()                       \
                             .Ctx<xla_ffi::DeviceOrdinal>()                \
                             .Ctx<xla_ffi::PlatformStream<cudaStream_t>>() \
                             .Arg<xla_ffi::AnyBuffer>()                    \
                             .Arg<xla_ffi::AnyBuffer>()                    \
                             .Ret<xla_ffi::AnyBuffer>()                    \
                             .Ret<xla_ffi::AnyBuffer>()                    \
                             .Attrs(),                                     \
                         {xla_ffi::Traits::kCmdBufferCompatible})

JAX_FLUX_TRACE_HANDLERS(kAg);
JAX_FLUX_TRACE_HANDLERS(kRs);

}  // namespace

Target AgMatmulTraceTarget() {
  return {"jax_flux_ag_matmul_trace_v1", kAgInstantiate, kAgPrepare, kAgInitialize, kAgExecute};
}

Target MatmulRsTraceTarget() {
  return {"jax_flux_matmul_rs_trace_v1", kRsInstantiate, kRsPrepare, kRsInitialize, kRsExecute};
}

}  // namespace jax_flux::ffi
