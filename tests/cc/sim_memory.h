// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The memory policy of the simulation: words of a workspace are std::atomic objects placed in raw
// memory, data is plain floats. So ThreadSanitizer sees exactly the order that flags and entries
// give to the data, and nothing else.
#ifndef JAX_FLUX_TESTS_CC_SIM_MEMORY_H_
#define JAX_FLUX_TESTS_CC_SIM_MEMORY_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <thread>

#include "cuda/protocol/epoch.h"
#include "tests/cc/check.h"

namespace jax_flux::test {

// One rank's workspace of one generation.
class Workspace {
 public:
  explicit Workspace(const protocol::GenerationLayout& layout)
      : bytes_(static_cast<std::uint8_t*>(
            ::operator new (layout.TotalBytes(), std::align_val_t{protocol::kAreaBytes}))) {
    using protocol::ControlWord;
    std::memset(bytes_, 0, layout.TotalBytes());
    for (std::uint64_t at = 0; at < layout.AgDataOffset(); at += protocol::kFlagBytes) {
      new (bytes_ + at) std::atomic<std::uint64_t>(0);
    }
    for (ControlWord word :
         {ControlWord::kTileTicket, ControlWord::kPushTicket, ControlWord::kCopyTicket,
          ControlWord::kDoneCtas, ControlWord::kWarned, ControlWord::kFailed}) {
      new (bytes_ + layout.ControlOffset(word)) std::atomic<std::uint32_t>(0);
    }
    for (std::int32_t peer = 0; peer < layout.shape.world; ++peer) {
      new (bytes_ + layout.PushedOffset(peer)) std::atomic<std::uint32_t>(0);
    }
  }
  ~Workspace() { ::operator delete (bytes_, std::align_val_t{protocol::kAreaBytes}); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  std::uint8_t* bytes() const { return bytes_; }

 private:
  std::uint8_t* bytes_;
};

// What the trap of a device is here: thrown by Fail, and by the next poll of the rank's other
// threads.
struct Trapped {};

// What a simulated thread knows beside its kernel arguments.
struct ThreadContext {
  std::atomic<bool>* rank_trapped = nullptr;
  std::uint64_t random = 1;
  std::uint32_t delay_one_in = 0;  // 0: no random delays

  std::uint32_t Random() {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(random >> 33);
  }
};
inline thread_local ThreadContext this_thread_context;

inline void RandomDelay() {
  ThreadContext& context = this_thread_context;
  if (context.delay_one_in == 0 || context.Random() % context.delay_one_in != 0) return;
  const std::uint32_t kind = context.Random() % 8;
  if (kind < 6) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(context.Random() % 150));
  }
}

// kFlagOrder is release except in a negative control, which ThreadSanitizer must report.
template <std::memory_order kFlagOrder>
struct SimMemory {
  static std::atomic<std::uint64_t>* Word(const void* p) {
    return static_cast<std::atomic<std::uint64_t>*>(const_cast<void*>(p));
  }
  static std::atomic<std::uint32_t>* Word32(const void* p) {
    return static_cast<std::atomic<std::uint32_t>*>(const_cast<void*>(p));
  }
  static std::uint64_t LoadAcquireSys(const void* p) {
    return Word(p)->load(std::memory_order_acquire);
  }
  static std::uint64_t LoadRelaxed(const void* p) {
    return Word(p)->load(std::memory_order_relaxed);
  }
  static void StoreReleaseSys(void* p, std::uint64_t value) {
    RandomDelay();
    Word(p)->store(value, kFlagOrder);
  }
  static void StoreReleaseGpu(void* p, std::uint64_t value) {
    RandomDelay();
    Word(p)->store(value, std::memory_order_release);
  }
  static void StoreRelaxed(void* p, std::uint64_t value) {
    Word(p)->store(value, std::memory_order_relaxed);
  }
  static std::uint32_t FetchAddAcqRel(void* p, std::uint32_t value) {
    RandomDelay();
    return Word32(p)->fetch_add(value, std::memory_order_acq_rel);
  }
  static void StoreRelaxed32(void* p, std::uint32_t value) {
    Word32(p)->store(value, std::memory_order_relaxed);
  }
  static std::uint32_t Exchange32(void* p, std::uint32_t value) {
    return Word32(p)->exchange(value, std::memory_order_acq_rel);
  }
  static std::uint64_t CompareExchange(void* p, std::uint64_t expected, std::uint64_t desired) {
    Word(p)->compare_exchange_strong(expected, desired, std::memory_order_acq_rel,
                                     std::memory_order_acquire);
    return expected;
  }
  static std::uint64_t NowNs() {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                          std::chrono::steady_clock::now().time_since_epoch())
                                          .count());
  }
  static void Pause() {
    ThreadContext& context = this_thread_context;
    if (context.rank_trapped != nullptr && context.rank_trapped->load(std::memory_order_relaxed)) {
      throw Trapped();
    }
    if (context.Random() % 16 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    } else {
      std::this_thread::yield();
    }
  }
  // One writer: guarded by the control word kWarned. Read after the rank's threads have joined.
  static void Warn(const protocol::Call& call, const protocol::Failure& failure) {
    call.record->warning = failure;
    call.record->warning_ready += 1;
  }
  [[noreturn]] static void Fail(const protocol::Call& call, const protocol::Failure& failure) {
    if (Exchange32(call.Control(protocol::ControlWord::kFailed), 1) == 0) {
      call.record->fatal = failure;
      call.record->fatal_ready += 1;
    }
    if (this_thread_context.rank_trapped != nullptr) {
      this_thread_context.rank_trapped->store(true, std::memory_order_relaxed);
    }
    throw Trapped();
  }
};

using OrderedMemory = SimMemory<std::memory_order_release>;
using RelaxedMemory = SimMemory<std::memory_order_relaxed>;

}  // namespace jax_flux::test

#endif  // JAX_FLUX_TESTS_CC_SIM_MEMORY_H_
