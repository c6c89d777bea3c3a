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
#include <thread>
#include <utility>

namespace jax_flux::runtime {

// What `work()` returns, on a thread of its own; nothing where it takes longer than `limit_s`. That
// thread is given up, not ended: `work` holds by value, or outlives the process, all that it
// touches.
template <typename Work>
auto WithinDeadline(double limit_s, Work work) -> std::optional<decltype(work())> {
  auto promise = std::make_shared<std::promise<decltype(work())>>();
  auto future = promise->get_future();
  std::thread([promise, work = std::move(work)] { promise->set_value(work()); }).detach();
  const std::chrono::duration<double> limit(limit_s);
  if (future.wait_for(limit) != std::future_status::ready) return std::nullopt;
  return future.get();
}

}  // namespace jax_flux::runtime

#endif  // JAX_FLUX_CUDA_RUNTIME_DEADLINE_H_
