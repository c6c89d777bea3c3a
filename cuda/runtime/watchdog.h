// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Failure record of each device: kernels write it, a host thread turns it into a sentence on
// stderr and keeps it. Route: kernels/sync.cuh -> here -> ffi (error of later calls), Python's
// last_failure().
//
// A kernel that gives up traps, and XLA raises when CUDA reports that. CUDA does not always report
// it to every process (seen with two contexts trapping at once on one GPU): a process whose device
// has failed without CUDA knowing JAX_FLUX_GRACE_S later would wait for ever, so it is ended.
#ifndef JAX_FLUX_CUDA_RUNTIME_WATCHDOG_H_
#define JAX_FLUX_CUDA_RUNTIME_WATCHDOG_H_

#include <optional>
#include <string>

#include "cuda/protocol/record.h"
#include "cuda/runtime/status.h"

namespace jax_flux::runtime {

// Name of an op as users call it.
const char* OpName(protocol::Op op);

// One sentence: op, rank, peer, what, expected, seen, seconds, remedy.
std::string Sentence(const protocol::Failure& failure);

// The record of `device` as its kernels address it; made at the first call, watched from then on.
Expected<protocol::FailureRecord*> DeviceRecord(int device);

// Exit status of a process that the watchdog ended.
inline constexpr int kEndedByWatchdog = 70;

// The fatal sentence of `device`: its kernel's, or one that KeepFailure was given.
std::optional<std::string> FatalFailure(int device);

// Prints and keeps a failure that the host found itself (a peer that missed an agreement), of a
// device that is about to be aborted.
void KeepFailure(int device, const std::string& sentence);

// The last fatal failure of the process, wherever it was found.
std::optional<std::string> LastFailure();

}  // namespace jax_flux::runtime

#endif  // JAX_FLUX_CUDA_RUNTIME_WATCHDOG_H_
