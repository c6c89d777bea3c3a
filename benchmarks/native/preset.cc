// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// C interface of the kernels for preset.py: one rank alone, its peers' workspaces in local memory.
// Route: preset.py (ctypes) -> here -> kernels/gemm.h.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "benchmarks/native/paced.h"
#include "cuda/kernels/copy.h"
#include "cuda/kernels/gemm.h"

#define PRESET_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace jax_flux;  // NOLINT: a leaf program

// Mirrors preset.py's PresetCall, field by field.
struct PresetCall {
  const char* instance;
  std::int32_t world, rank, batch, rows, columns, depth;
  std::int32_t raster_group, sweep_segments, chunk_rows, chunk_depth, depth_outer, sm_margin;
  std::int32_t push_peers, push_ctas;
  std::int32_t transport;  // kernels::Transport
  std::int32_t copies;     // 1: the copies of the own shard run too, in front of the GEMM
  const void* x;
  const void* w;
  void* y;
  std::uint8_t* base[protocol::kMaxWorld];
  protocol::FailureRecord* record;
  std::uint64_t site;
  std::uint64_t fail_ns;
  void* link;   // PacedLinkState, of instances with the paced link
  void* trace;  // of traced instances
  const void* bias;
  std::int32_t activation;  // kernels::Activation
};

thread_local std::string last_error;

const char* Error(std::string text) {
  last_error = std::move(text);
  return last_error.empty() ? nullptr : last_error.c_str();
}

kernels::GemmProblem Problem(const kernels::GemmInstance& instance, const PresetCall& call) {
  return {instance.op, instance.transpose_w, call.world, call.rank, call.batch,
          call.rows,   call.columns,         call.depth};
}

kernels::GemmPlan Plan(const PresetCall& call) {
  return {
      call.raster_group, call.sweep_segments,   call.chunk_rows,
      call.chunk_depth,  call.depth_outer != 0, call.sm_margin,
      call.push_peers,   call.push_ctas,        static_cast<kernels::Transport>(call.transport)};
}

// Of the product, or of the table with the paced link.
const kernels::GemmInstance* FindInstance(const char* name) {
  for (const auto& instance : preset::PacedInstances()) {
    if (std::string_view(name) == instance.kernel.name) return &instance;
  }
  return kernels::FindGemm(name);
}

// Gate and copies of a call whose shards are copied.
cudaError_t LaunchGate(const PresetCall& preset, const kernels::GemmProblem& problem,
                       const kernels::GemmPlan& plan, protocol::Call call, cudaStream_t stream) {
  call.last_launch = false;
  cudaError_t status = kernels::LaunchCopyGate(call, stream);
  if (status != cudaSuccess || preset.copies == 0) return status;
  return kernels::CopyShards(call, problem, plan, preset.x, &stream, 1);
}

}  // namespace

PRESET_EXPORT int preset_instances(const char** names, int capacity) {
  int count = 0;
  for (const auto* table : {&kernels::GemmInstances(), &preset::PacedInstances()}) {
    for (const auto& instance : *table) {
      if (count < capacity) names[count] = instance.kernel.name;
      ++count;
    }
  }
  return count;
}

// Fills the plan fields from DefaultPlan.
PRESET_EXPORT const char* preset_plan(PresetCall* call) {
  const kernels::GemmInstance* instance = FindInstance(call->instance);
  if (instance == nullptr) return Error("no such instance");
  const kernels::GemmPlan plan = kernels::DefaultPlan(
      *instance, Problem(*instance, *call), static_cast<kernels::Transport>(call->transport));
  call->raster_group = plan.raster_group;
  call->sweep_segments = plan.sweep_segments;
  call->chunk_rows = plan.chunk_rows;
  call->chunk_depth = plan.chunk_depth;
  call->depth_outer = plan.depth_outer;
  call->sm_margin = plan.sm_margin;
  call->push_peers = plan.push_peers;
  call->push_ctas = plan.push_ctas;
  return nullptr;
}

// Offsets inside a workspace, in the order of preset.py's Layout.
PRESET_EXPORT const char* preset_layout(const PresetCall* call, std::uint64_t* out) {
  const kernels::GemmInstance* instance = FindInstance(call->instance);
  if (instance == nullptr) return Error("no such instance");
  const protocol::GenerationLayout layout{
      kernels::GemmNeeds(*instance, Problem(*instance, *call), Plan(*call))};
  *out++ = layout.TotalBytes();
  *out++ = layout.ControlOffset(protocol::ControlWord::kEpoch);
  *out++ = layout.EntriesOffset();
  *out++ = layout.AgDataOffset();
  *out++ = layout.AgFlagOffset(0, 0);
  *out++ = layout.AgFlagOffset(1, 0) - layout.AgFlagOffset(0, 0);
  *out++ = static_cast<std::uint64_t>(layout.shape.ag_flags);
  *out++ = layout.RsFlagOffset(0, 0);
  *out++ = layout.RsFlagOffset(1, 0) - layout.RsFlagOffset(0, 0);
  *out++ = static_cast<std::uint64_t>(layout.shape.rs_flags);
  *out++ = layout.AgHalfOffset(0);
  *out++ = layout.AgHalfOffset(1);
  *out++ = layout.RsHalfOffset(0);
  *out++ = layout.RsHalfOffset(1);
  *out++ = layout.CopyFlagOffset(0, 0);
  *out++ = layout.CopyFlagOffset(1, 0) - layout.CopyFlagOffset(0, 0);
  *out++ = static_cast<std::uint64_t>(layout.shape.copy_flags);
  *out++ = layout.CopyDataOffset();
  return nullptr;
}

PRESET_EXPORT const char* preset_touch(const char* name) {
  const kernels::GemmInstance* instance = FindInstance(name);
  if (instance == nullptr) return Error("no such instance");
  cudaError_t status = kernels::Touch(instance->kernel);
  if (status == cudaSuccess) status = kernels::Touch(kernels::CopyGate());
  return Error(status == cudaSuccess ? std::string() : cudaGetErrorString(status));
}

PRESET_EXPORT const char* preset_launch(const PresetCall* preset, void* stream) {
  const kernels::GemmInstance* instance = FindInstance(preset->instance);
  if (instance == nullptr) return Error("no such instance");
  const kernels::GemmProblem problem = Problem(*instance, *preset);
  const kernels::GemmPlan plan = Plan(*preset);
  const auto main = static_cast<cudaStream_t>(stream);
  protocol::Call call = {};
  for (int rank = 0; rank < problem.world; ++rank) call.base[rank] = preset->base[rank];
  call.layout.shape = kernels::GemmNeeds(*instance, problem, plan);
  call.rank = problem.rank;
  call.world = problem.world;
  call.op = instance->op == kernels::GemmOp::kAgMatmul ? protocol::Op::kAgMatmul
                                                       : protocol::Op::kMatmulRs;
  call.first_launch = true;
  call.last_launch = true;
  call.site = preset->site;
  call.deadline = {preset->fail_ns, preset->fail_ns};
  call.record = preset->record;
  if (plan.transport == kernels::Transport::kCopy) {
    const cudaError_t status = LaunchGate(*preset, problem, plan, call, main);
    if (status != cudaSuccess) return Error(cudaGetErrorString(status));
    call.first_launch = false;
  }
  const bool alone = instance->op == kernels::GemmOp::kPlain;
  const kernels::Epilogue epilogue = {preset->bias,
                                      static_cast<kernels::Activation>(preset->activation)};
  return Error(kernels::LaunchGemm(*instance, problem, plan,
                                   {preset->x, preset->w, preset->y, epilogue},
                                   alone ? nullptr : &call, main, {preset->link, preset->trace}));
}
