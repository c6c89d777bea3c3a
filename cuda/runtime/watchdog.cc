// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cuda/runtime/watchdog.h"

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "cuda/runtime/options.h"

namespace jax_flux::runtime {
namespace {

constexpr int kMaxDevices = 64;
constexpr std::size_t kPageBytes = 4096;
constexpr auto kPeriod = std::chrono::milliseconds(20);

using Clock = std::chrono::steady_clock;

struct Slot {
  std::atomic<protocol::FailureRecord*> host{nullptr};
  protocol::FailureRecord* device = nullptr;
  // Of a device that has failed, by its record or by KeepFailure.
  std::string sentence;
  Clock::time_point failed_at;
  std::atomic<bool> known_to_cuda{false};
};

// Never destroyed: the thread below may run until the process is gone.
struct Watch {
  std::mutex mutex;
  std::array<Slot, kMaxDevices> slots;
  std::string last;
  bool started = false;
};

Watch& TheWatch() {
  static auto* watch = new Watch;
  return *watch;
}

// The kernel's release of `ready` (system scope) pairs with this acquire.
bool Ready(const std::uint32_t& word) { return __atomic_load_n(&word, __ATOMIC_ACQUIRE) != 0; }

void Say(const std::string& sentence) {
  std::fprintf(stderr, "%s\n", sentence.c_str());
  std::fflush(stderr);
}

// Asks CUDA about a failed device until it knows; on a thread of its own, as the call may block.
void AskCuda(int device) {
  std::thread([device] {
    Slot& slot = TheWatch().slots[device];
    while (!slot.known_to_cuda.load()) {
      cudaSetDevice(device);
      const cudaError_t state = cudaStreamQuery(cudaStreamLegacy);
      if (state != cudaSuccess && state != cudaErrorNotReady) {
        Say(Format("jax_flux: device %d is lost to this process after that: %s.", device,
                   cudaGetErrorString(state)));
        slot.known_to_cuda.store(true);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }).detach();
}

// Called under the mutex.
void Fail(Watch& watch, int device, const std::string& sentence) {
  Slot& slot = watch.slots[device];
  if (!slot.sentence.empty()) return;
  slot.sentence = watch.last = sentence;
  slot.failed_at = Clock::now();
  Say(sentence);
  AskCuda(device);
}

// Called under the mutex.
void EndIfStuck(const Watch& watch) {
  for (const Slot& slot : watch.slots) {
    if (slot.sentence.empty() || slot.known_to_cuda.load()) continue;
    const std::chrono::duration<double> since = Clock::now() - slot.failed_at;
    if (since.count() < Options::Get().grace_s) continue;
    Say(Format(
        "%s CUDA has not reported the failed device within %.0f s (JAX_FLUX_GRACE_S), so XLA "
        "would wait for ever: ending this process.",
        slot.sentence.c_str(), Options::Get().grace_s));
    std::_Exit(kEndedByWatchdog);
  }
}

// Prints and keeps what is new; called under the mutex.
void Collect(Watch& watch) {
  for (int device = 0; device < kMaxDevices; ++device) {
    protocol::FailureRecord* record = watch.slots[device].host.load(std::memory_order_acquire);
    if (record == nullptr) continue;
    if (Ready(record->warning_ready)) {
      Say(Sentence(record->warning));
      __atomic_store_n(&record->warning_ready, 0u, __ATOMIC_RELEASE);
    }
    if (Ready(record->fatal_ready)) Fail(watch, device, Sentence(record->fatal));
  }
}

void Run() {
  Watch& watch = TheWatch();
  for (;;) {
    {
      std::lock_guard<std::mutex> lock(watch.mutex);
      Collect(watch);
      EndIfStuck(watch);
    }
    std::this_thread::sleep_for(kPeriod);
  }
}

std::string What(const protocol::Failure& failure) {
  switch (failure.wait) {
    case protocol::WaitKind::kEntry:
      return Format("rank %d to enter the call", failure.peer);
    case protocol::WaitKind::kAgChunk:
      return Format("chunk %d of rank %d's shard", failure.index, failure.peer);
    case protocol::WaitKind::kRsTile:
      return Format("rank %d's partial of tile %d", failure.peer, failure.index);
  }
  return "a peer";
}

}  // namespace

const char* OpName(protocol::Op op) {
  switch (op) {
    case protocol::Op::kAllGatherCopy:
      return "all_gather_copy";
    case protocol::Op::kAgMatmul:
      return "ag_matmul";
    case protocol::Op::kMatmulRs:
      return "matmul_rs";
    case protocol::Op::kMatmulAr:
      return "matmul_ar";
  }
  return "jax_flux";
}

std::string Sentence(const protocol::Failure& failure) {
  using protocol::FailureKind;
  const char* op = OpName(failure.op);
  const double seconds = static_cast<double>(failure.waited_ns) * 1e-9;
  const auto u64 = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
  switch (failure.kind) {
    case FailureKind::kLate:
      return Format(
          "jax_flux: %s: rank %d has waited %.1f s for %s (call %llu expected, %llu seen; call "
          "site "
          "%#llx). Still waiting: compilation, checkpoints and debuggers make ranks late.",
          op, failure.rank, seconds, What(failure).c_str(), u64(failure.expected),
          u64(failure.seen), u64(failure.site));
    case FailureKind::kTimeout:
      return Format(
          "jax_flux: %s: rank %d gave up after %.1f s waiting for %s (call %llu expected, %llu "
          "seen; "
          "call site %#llx). That rank is stuck, has failed, or runs another program; "
          "JAX_FLUX_TIMEOUT_S sets the limit.",
          op, failure.rank, seconds, What(failure).c_str(), u64(failure.expected),
          u64(failure.seen), u64(failure.site));
    case FailureKind::kSiteMismatch:
      return Format(
          "jax_flux: %s: rank %d is at call site %#llx, rank %d at %#llx (call %llu of both). The "
          "ranks run their calls in different order, or in jitted functions of other names; look "
          "for Python control flow or lax.cond that depends on the rank.",
          op, failure.rank, u64(failure.site), failure.peer, u64(failure.peer_site),
          u64(failure.expected));
    case FailureKind::kConcurrentUse:
      return Format(
          "jax_flux: %s: call site %#llx started on rank %d while call site %#llx was running on "
          "the "
          "same channel. Give calls that run at the same time different channel= numbers.",
          op, u64(failure.site), failure.rank, u64(failure.peer_site));
    case FailureKind::kNone:
      break;
  }
  return Format("jax_flux: %s: rank %d failed without a record.", op, failure.rank);
}

Expected<protocol::FailureRecord*> DeviceRecord(int device) {
  Watch& watch = TheWatch();
  std::lock_guard<std::mutex> lock(watch.mutex);
  if (device < 0 || device >= kMaxDevices) {
    return Status(Code::kInternal, Format("jax_flux: device ordinal %d is out of range.", device));
  }
  Slot& slot = watch.slots[device];
  if (slot.host.load(std::memory_order_relaxed) != nullptr) return slot.device;
  // Our own pages, registered with CUDA: they stay readable after the context is lost or gone.
  void* page = std::aligned_alloc(kPageBytes, kPageBytes);
  if (page == nullptr) return Status(Code::kResourceExhausted, "jax_flux: no host memory.");
  std::memset(page, 0, kPageBytes);
  JAX_FLUX_RETURN_IF_CUDA_ERROR(
      cudaHostRegister(page, kPageBytes, cudaHostRegisterMapped | cudaHostRegisterPortable));
  void* address = nullptr;
  JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaHostGetDevicePointer(&address, page, 0));
  slot.device = static_cast<protocol::FailureRecord*>(address);
  slot.host.store(static_cast<protocol::FailureRecord*>(page), std::memory_order_release);
  if (!watch.started) {
    watch.started = true;
    std::thread(Run).detach();
  }
  return slot.device;
}

std::optional<std::string> FatalFailure(int device) {
  Watch& watch = TheWatch();
  if (device < 0 || device >= kMaxDevices) return std::nullopt;
  std::lock_guard<std::mutex> lock(watch.mutex);
  Collect(watch);
  const Slot& slot = watch.slots[device];
  if (slot.sentence.empty()) return std::nullopt;
  return slot.sentence;
}

void KeepFailure(int device, const std::string& sentence) {
  Watch& watch = TheWatch();
  if (device < 0 || device >= kMaxDevices) return;
  std::lock_guard<std::mutex> lock(watch.mutex);
  Fail(watch, device, sentence);
}

std::optional<std::string> LastFailure() {
  Watch& watch = TheWatch();
  std::lock_guard<std::mutex> lock(watch.mutex);
  Collect(watch);
  if (watch.last.empty()) return std::nullopt;
  return watch.last;
}

}  // namespace jax_flux::runtime
