// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// A deadline for calls that have none: NCCL connects peers inside them, over sockets, and waits.
#ifndef JAX_FLUX_CUDA_RUNTIME_DEADLINE_H_
#define JAX_FLUX_CUDA_RUNTIME_DEADLINE_H_

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>

#include "cuda/runtime/status.h"

namespace jax_flux::runtime {

// What `work()` returns, a Status or an Expected, from a thread of its own; nothing where it takes
// longer than `limit_s`, and a call of `late` once it takes longer than `warn_s`. That thread is
// given up, not ended: `work` holds by value, or outlives the process, all that it touches.
template <typename Work, typename Late>
auto WithinDeadline(double limit_s, Work work, double warn_s, const Late& late)
    -> std::optional<decltype(work())> {
  auto promise = std::make_shared<std::promise<decltype(work())>>();
  auto future = promise->get_future();
  const auto start = std::chrono::steady_clock::now();
  const auto ready = [&](double seconds) {
    const std::chrono::duration<double> wait(seconds);
    return future.wait_until(start + std::chrono::duration_cast<std::chrono::nanoseconds>(wait)) ==
           std::future_status::ready;
  };
  try {
    std::thread([promise, work] { promise->set_value(work()); }).detach();
  } catch (const std::system_error& error) {
    return Status(Code::kResourceExhausted,
                  Format("jax_flux: no thread for a call into NCCL, which may wait for ever: %s",
                         error.what()));
  }
  if (warn_s < limit_s && !ready(warn_s)) late();
  if (!ready(limit_s)) return std::nullopt;
  return future.get();
}

}  // namespace jax_flux::runtime

#endif  // JAX_FLUX_CUDA_RUNTIME_DEADLINE_H_
