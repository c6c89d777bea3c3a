// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The exact accesses of cuda/protocol/epoch.h, recorded by a memory policy of its own: which words,
// in which order, with which memory order. Threads cannot show a swapped pair of relaxed stores.
#include "cuda/protocol/epoch.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/cc/check.h"

namespace jax_flux::test {
namespace {

using namespace protocol;

constexpr int kWorld = 3;
constexpr int kRank = 1;
constexpr std::uint64_t kSite = 77;

std::vector<std::string> recorded;
std::vector<std::uint8_t> memory[kWorld];
const GenerationLayout kLayout{{kWorld, 4, 4, 1024, 1024, 4, 1024}};

// "rank 2 entry 1.0" for a word: which workspace, which region.
std::string NameOf(const void* p) {
  const auto* byte = static_cast<const std::uint8_t*>(p);
  for (int rank = 0; rank < kWorld; ++rank) {
    const std::uint8_t* begin = memory[rank].data();
    if (byte < begin || byte >= begin + memory[rank].size()) continue;
    const auto offset = static_cast<std::uint64_t>(byte - begin);
    const std::string where = "rank " + std::to_string(rank) + " ";
    static const char* const kControl[] = {"epoch",       "busy",        "tile ticket",
                                           "push ticket", "copy ticket", "done",
                                           "warned",      "failed",      "copy epoch"};
    for (int word = 0; word < static_cast<int>(ControlWord::kCount); ++word) {
      if (offset == kLayout.ControlOffset(static_cast<ControlWord>(word))) {
        return where + kControl[word];
      }
    }
    for (int source = 0; source < kWorld; ++source) {
      for (std::uint64_t parity = 0; parity < 2; ++parity) {
        const std::uint64_t entry = kLayout.EntryOffset(source, parity);
        const std::string of = std::to_string(source) + "." + std::to_string(parity);
        if (offset == entry) return where + "entry " + of;
        if (offset == entry + kFlagBytes) return where + "site " + of;
      }
      if (offset == kLayout.AgFlagOffset(source, 2))
        return where + "flag of " + std::to_string(source);
    }
    return where + "+" + std::to_string(offset);
  }
  return "outside";
}

template <class T>
T Get(const void* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}
template <class T>
void Put(void* p, T value) {
  std::memcpy(p, &value, sizeof(T));
}

struct RecordingMemory {
  static void Note(const char* what, const void* p, const std::string& value = "") {
    recorded.push_back(std::string(what) + " " + NameOf(p) + value);
  }
  static std::uint64_t LoadAcquireSys(const void* p) {
    Note("acquire", p);
    return Get<std::uint64_t>(p);
  }
  static std::uint64_t LoadRelaxed(const void* p) {
    Note("load", p);
    return Get<std::uint64_t>(p);
  }
  static void StoreReleaseSys(void* p, std::uint64_t value) {
    Note("release", p, " = " + std::to_string(value));
    Put(p, value);
  }
  static void StoreReleaseGpu(void* p, std::uint64_t value) {
    Note("release to the GPU", p, " = " + std::to_string(value));
    Put(p, value);
  }
  static void StoreRelaxed(void* p, std::uint64_t value) {
    Note("store", p, " = " + std::to_string(value));
    Put(p, value);
  }
  static std::uint32_t FetchAddAcqRel(void* p, std::uint32_t value) {
    Note("add", p);
    const auto old = Get<std::uint32_t>(p);
    Put(p, old + value);
    return old;
  }
  static void StoreRelaxed32(void* p, std::uint32_t value) {
    Note("store", p, " = " + std::to_string(value));
    Put(p, value);
  }
  static std::uint32_t Exchange32(void* p, std::uint32_t value) {
    Note("exchange", p);
    const auto old = Get<std::uint32_t>(p);
    Put(p, value);
    return old;
  }
  static std::uint64_t CompareExchange(void* p, std::uint64_t expected, std::uint64_t desired) {
    Note("compare-exchange", p);
    const auto old = Get<std::uint64_t>(p);
    if (old == expected) Put(p, desired);
    return old;
  }
  static std::uint64_t NowNs() { return 0; }
  static void Pause() {}
  static void Warn(const Call&, const Failure&) { recorded.push_back("warn"); }
  [[noreturn]] static void Fail(const Call&, const Failure& failure) {
    CHECK(false, "failed: kind " << static_cast<int>(failure.kind));
    Die();
  }
};

Call NewCall() {
  Call call{};
  for (int rank = 0; rank < kWorld; ++rank) {
    memory[rank].assign(kLayout.TotalBytes(), 0);
    call.base[rank] = memory[rank].data();
  }
  call.layout = kLayout;
  call.rank = kRank;
  call.world = kWorld;
  call.first_launch = call.last_launch = true;
  call.site = kSite;
  recorded.clear();
  return call;
}

void Expect(const char* what, const std::vector<std::string>& expected) {
  std::string seen;
  for (const std::string& access : recorded) seen += "\n  " + access;
  CHECK(recorded == expected, what << " did:" << seen);
  recorded.clear();
}

void CheckEnter() {
  const Call call = NewCall();
  PostEntries<RecordingMemory>(call, 1);
  // The site is there before the epoch that announces it.
  Expect("PostEntries", {"compare-exchange rank 1 busy", "load rank 1 epoch",
                         "store rank 2 site 1.1 = 77", "release rank 2 entry 1.1 = 1",
                         "store rank 0 site 1.1 = 77", "release rank 0 entry 1.1 = 1"});
}

void CheckFlags() {
  const Call call = NewCall();
  PublishFlag<RecordingMemory>(call, 1, 2, kLayout.AgFlagOffset(kRank, 2));
  Expect("PublishFlag", {"release rank 2 flag of 1 = 1"});
  Put<std::uint64_t>(call.base[kRank] + kLayout.AgFlagOffset(0, 2), 1);
  AwaitFlag<RecordingMemory>(call, 1, WaitKind::kAgChunk, 0, 2, kLayout.AgFlagOffset(0, 2));
  Expect("AwaitFlag", {"acquire rank 1 flag of 0"});
}

// Peers' entries of epoch 2 are in place.
Call EnteredCall() {
  Call call = NewCall();
  Put<std::uint64_t>(call.Control(ControlWord::kEpoch), 1);
  for (int peer = 0; peer < kWorld; ++peer) {
    Put<std::uint64_t>(call.base[kRank] + kLayout.EntryOffset(peer, 2), 2);
    Put<std::uint64_t>(call.base[kRank] + kLayout.EntryOffset(peer, 2) + kFlagBytes, kSite);
  }
  return call;
}

void CheckCopyGate() {
  const Call call = EnteredCall();
  OpenCopyGate<RecordingMemory>(call, 2);
  // Our entry before any wait: the peers' gates wait for it. The source of the flags comes last.
  Expect("OpenCopyGate",
         {"compare-exchange rank 1 busy", "load rank 1 epoch", "store rank 2 site 1.0 = 77",
          "release rank 2 entry 1.0 = 2", "store rank 0 site 1.0 = 77",
          "release rank 0 entry 1.0 = 2", "acquire rank 1 entry 2.0", "load rank 1 site 2.0",
          "acquire rank 1 entry 0.0", "load rank 1 site 0.0", "release rank 1 copy epoch = 2"});
}

void CheckFinish() {
  Call call = EnteredCall();
  // Entries before the arrival: whoever arrives last may then end the call.
  FinishCta<RecordingMemory>(call, 2, 2, true);
  Expect("FinishCta of the first CTA",
         {"acquire rank 1 entry 2.0", "load rank 1 site 2.0", "acquire rank 1 entry 0.0",
          "load rank 1 site 0.0", "add rank 1 done"});
  FinishCta<RecordingMemory>(call, 2, 2, false);
  const std::vector<std::string> zeroed = {
      "store rank 1 tile ticket = 0", "store rank 1 push ticket = 0",
      "store rank 1 copy ticket = 0", "store rank 1 warned = 0", "store rank 1 done = 0"};
  std::vector<std::string> expected = {"add rank 1 done"};
  expected.insert(expected.end(), zeroed.begin(), zeroed.end());
  // The epoch before the busy word: who finds us idle finds the new epoch.
  expected.insert(expected.end(), {"store rank 1 epoch = 2", "release to the GPU rank 1 busy = 0"});
  Expect("FinishCta of the last CTA", expected);

  call = EnteredCall();
  call.last_launch = false;
  FinishCta<RecordingMemory>(call, 2, 1, true);
  expected = {"add rank 1 done"};
  expected.insert(expected.end(), zeroed.begin(), zeroed.end());
  Expect("FinishCta of a launch that is not the last", expected);
}

}  // namespace
}  // namespace jax_flux::test

int main() {
  using namespace jax_flux::test;
  const Stopwatch stopwatch;
  CheckEnter();
  CheckFlags();
  CheckCopyGate();
  CheckFinish();
  std::printf("epoch_test: accesses as specified, %.1f s\n", stopwatch.Seconds());
  return 0;
}
