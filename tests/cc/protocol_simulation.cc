// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The protocol headers themselves with threads as CTAs: thousands of epochs with exact results,
// every failure record, and two faults that must be seen. Runs natively and under ThreadSanitizer.
// It shows order; GPU fences and proxies need the hardware.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/cc/check.h"
#include "tests/cc/simulation.h"

namespace jax_flux::test {
namespace {

using namespace protocol;

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

// Ragged rows, batches, tiles that cut chunks and chunks that cut tiles, both chunk orders.
const std::vector<Extents>& Shapes() {
  static const std::vector<Extents> shapes = {
      //  b  m  k  n  tile      group  chunk  depth_outer
      {1, 1, 3, 2, 2, 2, 2, 1, 1, 2, false},
      {2, 5, 6, 5, 2, 2, 3, 2, 3, 4, false},
      {1, 9, 8, 4, 4, 4, 2, 1, 2, 3, true},
      {2, 4, 5, 7, 3, 2, 5, 3, 4, 5, true},
      // Packed tiles: two and three short segments to a tile, the last one short or not.
      {1, 3, 6, 5, 4, 2, 2, 1, 3, 2, true, 2},
      {2, 2, 5, 7, 2, 3, 3, 1, 1, 4, false, 3},
  };
  return shapes;
}

std::vector<SimCall> MixedProgram(int calls, std::uint64_t seed) {
  std::vector<SimCall> program;
  ThreadContext random;
  random.random = seed;
  for (int call = 0; call < calls; ++call) {
    // Broadcasts in a row let rank 0 run as far ahead as it may.
    const auto op = static_cast<SimOp>(std::min(random.Random() % 9, 5u));
    const int shape = static_cast<int>(random.Random() % Shapes().size());
    program.push_back(
        {op, shape, 1 + static_cast<std::uint64_t>(op) * 16 + static_cast<std::uint64_t>(shape)});
  }
  return program;
}

void RunMixed(int world, std::vector<int> ctas, int calls, int delayed_rank, int resident = 99) {
  const Stopwatch stopwatch;
  SimConfig config;
  config.world = world;
  config.ctas = std::move(ctas);
  config.shapes = Shapes();
  config.small_shapes = 2;
  config.programs = {MixedProgram(calls, static_cast<std::uint64_t>(world * 77 + calls))};
  config.delayed_rank = delayed_rank;
  config.resident = resident;
  config.delay_us = 400;
  config.seed = static_cast<std::uint64_t>(world) * 31 + config.ctas.size();
  const SimResult result = Simulate(config);
  std::string ctas_text;
  for (int count : config.ctas) ctas_text += std::to_string(count);
  for (int rank = 0; rank < world; ++rank) {
    const Failure& fatal = result.records[static_cast<std::size_t>(rank)].fatal;
    CHECK(fatal.kind == FailureKind::kNone,
          "W " << world << ", rank " << rank << " failed: kind " << static_cast<int>(fatal.kind)
               << ", wait " << static_cast<int>(fatal.wait) << ", peer " << fatal.peer << ", index "
               << fatal.index << ", expected " << fatal.expected << ", seen " << fatal.seen);
    CHECK_EQ(result.finished_calls[static_cast<std::size_t>(rank)], calls, "rank " << rank);
  }
  CHECK(result.wrong.empty(), result.wrong);
  std::printf("  W %d, CTAs %s%s, %s: %d calls exact, %.1f s\n", world, ctas_text.c_str(),
              resident == 1 ? " (one resident)" : "",
              delayed_rank < 0 ? "random delays" : "one delayed rank", calls, stopwatch.Seconds());
  std::fflush(stdout);
}

void RunAllMixed(int calls) {
  for (int world = 1; world <= kMaxWorld; ++world) {
    const int share = calls / (world + 1);
    RunMixed(world, {1}, share, -1);
    RunMixed(world, {world <= 4 ? 4 : 2}, share, world - 1);
    std::vector<int> uneven;
    for (int rank = 0; rank < world; ++rank) uneven.push_back(1 + rank % 3);
    if (world > 1) RunMixed(world, uneven, share, 0);
    RunMixed(world, {3}, share / 2, world / 2, 1);
  }
}

// --- failures ------------------------------------------------------------------------------------

SimConfig OneCall(int world, SimOp op, const Extents& extents) {
  SimConfig config;
  config.world = world;
  config.ctas = {2};
  config.shapes = {extents};
  config.programs = {{{op, 0, 42}}};
  config.delay_one_in = 0;
  return config;
}

// A rank that never comes: every other rank names it, and what it waited for.
void CheckTimeout(SimOp op, const Extents& extents, WaitKind wait, Op named) {
  SimConfig config = OneCall(3, op, extents);
  config.absent_rank = 2;
  config.deadline = {300'000'000u, 1'000'000'000u};
  const SimResult result = Simulate(config);
  for (int rank = 0; rank < 2; ++rank) {
    const FailureRecord& record = result.records[static_cast<std::size_t>(rank)];
    CHECK_EQ(record.warning_ready, 1u, "one warning per call");
    CHECK(record.warning.kind == FailureKind::kLate, static_cast<int>(record.warning.kind));
    CHECK(record.warning.waited_ns >= config.deadline.warn_ns, record.warning.waited_ns);
    CHECK_EQ(record.fatal_ready, 1u, "one fatal record");
    const Failure& fatal = record.fatal;
    CHECK(fatal.kind == FailureKind::kTimeout, static_cast<int>(fatal.kind));
    CHECK(fatal.wait == wait, static_cast<int>(fatal.wait));
    CHECK(fatal.op == named, static_cast<int>(fatal.op));
    CHECK_EQ(fatal.rank, rank, "rank");
    CHECK_EQ(fatal.peer, 2, "peer");
    CHECK_EQ(fatal.site, 42u, "site");
    CHECK_EQ(fatal.expected, 1u, "expected epoch");
    CHECK_EQ(fatal.seen, 0u, "seen epoch");
    CHECK(fatal.waited_ns >= config.deadline.fail_ns, fatal.waited_ns);
    CHECK(wait == WaitKind::kEntry ? fatal.index == -1 : fatal.index >= 0, fatal.index);
    CHECK_EQ(result.finished_calls[static_cast<std::size_t>(rank)], 0, "finished calls");
  }
}

// A late peer is one warning per call, whatever the number of waiting CTAs, and no failure.
void CheckLatePeer() {
  SimConfig config = OneCall(2, SimOp::kAg, Shapes()[1]);
  config.programs[0].push_back(config.programs[0][0]);
  config.ctas = {4};
  config.delayed_rank = 1;
  config.delay_us = 600'000;
  config.deadline = {100'000'000u, 25'000'000'000u};
  const SimResult result = Simulate(config);
  const FailureRecord& record = result.records[0];
  CHECK_EQ(record.warning_ready, 2u, "one warning for each of two calls");
  CHECK(record.warning.kind == FailureKind::kLate, static_cast<int>(record.warning.kind));
  CHECK_EQ(record.warning.peer, 1, "peer");
  CHECK_EQ(record.warning.expected, 2u, "epoch");
  CHECK(record.warning.wait == WaitKind::kAgChunk, static_cast<int>(record.warning.wait));
  CHECK_EQ(record.fatal_ready, 0u, "no failure");
  CHECK_EQ(result.finished_calls[0], 2, "rank 0");
  CHECK(result.wrong.empty(), result.wrong);
}

// X then Y against Y then X: every rank fails with both sites, long before the deadline.
void CheckMismatch(int world, int odd_rank) {
  const Stopwatch stopwatch;
  SimConfig config = OneCall(world, SimOp::kAg, Shapes()[1]);
  const SimCall x{SimOp::kAg, 0, 71};
  const SimCall y{SimOp::kRs, 0, 72};
  config.programs.clear();
  for (int rank = 0; rank < world; ++rank) {
    const SimCall& second = rank == odd_rank ? y : x;
    const SimCall& third = rank == odd_rank ? x : y;
    config.programs.push_back({{SimOp::kCopy, 0, 70}, second, third});
  }
  const SimResult result = Simulate(config);
  for (int rank = 0; rank < world; ++rank) {
    const Failure& fatal = result.records[static_cast<std::size_t>(rank)].fatal;
    CHECK(fatal.kind == FailureKind::kSiteMismatch,
          "rank " << rank << ": " << static_cast<int>(fatal.kind));
    CHECK_EQ(fatal.site, rank == odd_rank ? 72u : 71u, "site of rank " << rank);
    CHECK_EQ(fatal.peer_site, rank == odd_rank ? 71u : 72u, "peer's site at rank " << rank);
    if (rank != odd_rank) CHECK_EQ(fatal.peer, odd_rank, "rank " << rank);
    CHECK_EQ(fatal.expected, 2u, "epoch");
    CHECK_EQ(result.finished_calls[static_cast<std::size_t>(rank)], 1, "rank " << rank);
  }
  CHECK(stopwatch.Seconds() < 20, "found by the deadline only");
}

// Two calls of one channel at once on a device: the second one fails, naming the first.
void CheckConcurrentUse() {
  const GenerationLayout layout{{2, 1, 1, 1024, 1024}};
  const Workspace own(layout);
  const Workspace peer(layout);
  FailureRecord record{};
  Call first{};
  first.base[0] = own.bytes();
  first.base[1] = peer.bytes();
  first.layout = layout;
  first.world = 2;
  first.first_launch = first.last_launch = true;
  first.site = 5;
  first.record = &record;
  this_thread_context = {};
  Call second = first;
  second.site = 6;
  const auto enter = [](const Call& call, std::uint64_t epoch) {
    try {
      PostEntries<OrderedMemory>(call, epoch);
      return true;
    } catch (const Trapped&) {
      return false;
    }
  };
  const std::uint64_t epoch = CallEpoch<OrderedMemory>(first);
  CHECK(enter(first, epoch), "the first call enters");
  CHECK(!enter(second, epoch), "the second call fails");
  CHECK(record.fatal.kind == FailureKind::kConcurrentUse, static_cast<int>(record.fatal.kind));
  CHECK_EQ(record.fatal.site, 6u, "ours");
  CHECK_EQ(record.fatal.peer_site, 5u, "the running call's");

  // The first ends after the second has read its epoch and before it enters.
  OrderedMemory::StoreRelaxed32(first.Control(ControlWord::kFailed), 0);
  record = {};
  OrderedMemory::StoreReleaseSys(own.bytes() + layout.EntryOffset(1, epoch) + kFlagBytes, 5);
  OrderedMemory::StoreReleaseSys(own.bytes() + layout.EntryOffset(1, epoch), epoch);
  FinishCta<OrderedMemory>(first, epoch, 1, true);
  CHECK_EQ(CallEpoch<OrderedMemory>(first), epoch + 1, "the epoch moved");
  CHECK(!enter(second, epoch), "a stale epoch fails");
  CHECK(record.fatal.kind == FailureKind::kConcurrentUse, static_cast<int>(record.fatal.kind));
  CHECK_EQ(record.fatal.seen, epoch + 1, "the epoch found");
}

void RunFailures() {
  const Stopwatch stopwatch;
  Extents empty = Shapes()[1];
  empty.rows = 0;
  CheckTimeout(SimOp::kCopy, Shapes()[1], WaitKind::kAgChunk, Op::kAllGatherCopy);
  CheckTimeout(SimOp::kAg, Shapes()[2], WaitKind::kAgChunk, Op::kAgMatmul);
  CheckTimeout(SimOp::kRs, Shapes()[1], WaitKind::kRsTile, Op::kMatmulRs);
  CheckTimeout(SimOp::kCopy, empty, WaitKind::kEntry, Op::kAllGatherCopy);
  CheckTimeout(SimOp::kCopied, Shapes()[1], WaitKind::kEntry, Op::kAgMatmul);  // at the gate
  CheckLatePeer();
  int mismatches = 0;
  for (int world : {2, 3, 5}) {
    for (int odd_rank = 0; odd_rank < world; ++odd_rank, ++mismatches) {
      CheckMismatch(world, odd_rank);
    }
  }
  CheckConcurrentUse();
  std::printf(
      "  5 timeouts, 1 late peer, %d mismatches, 2 concurrent uses: records right, %.1f s\n",
      mismatches, stopwatch.Seconds());
}

// --- negative controls ---------------------------------------------------------------------------

constexpr int kWrongValueExit = 3;
constexpr int kThreadSanitizerExit = 66;  // ThreadSanitizer's default exit code

// The child: many small calls with a fault. Exits with kWrongValueExit if a value is wrong.
int RunFault(const std::string& name) {
  SimConfig config;
  config.world = 2;
  config.ctas = {2};
  config.shapes = Shapes();
  config.programs = {std::vector<SimCall>(200, {SimOp::kAg, 1, 9})};
  config.delay_one_in = 4;
  config.fault = name == "relaxed_flag" ? SimFault::kRelaxedFlag : SimFault::kFlagBeforeData;
  const SimResult result = Simulate(config);
  if (result.wrong.empty()) return 0;
  std::printf("%s\n", result.wrong.c_str());
  return kWrongValueExit;
}

// Runs this program again with a fault and returns its exit code.
int ExitCodeOfFault(const std::string& name) {
  std::fflush(stdout);
  const pid_t child = fork();
  CHECK(child >= 0, "fork");
  if (child == 0) {
    // ThreadSanitizer's report is what is wanted; its exit code says that it came.
    const int null = open("/dev/null", O_WRONLY);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    const std::string argument = "--fault=" + name;
    execl("/proc/self/exe", "protocol_simulation", argument.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child, "waitpid");
  CHECK(WIFEXITED(status), "the child was killed: " << status);
  return WEXITSTATUS(status);
}

void RunFaults() {
  const Stopwatch stopwatch;
  const int flag_first = ExitCodeOfFault("flag_before_data");
  CHECK(flag_first == (kThreadSanitizer ? kThreadSanitizerExit : kWrongValueExit),
        "a flag before its data was not noticed: exit code " << flag_first);
  if (kThreadSanitizer) {
    // On x86 a relaxed store has the same instruction: only the sanitizer can tell.
    const int relaxed = ExitCodeOfFault("relaxed_flag");
    CHECK_EQ(relaxed, kThreadSanitizerExit, "a relaxed flag store was not noticed");
  }
  std::printf("  caught: flag before data%s, %.1f s\n",
              kThreadSanitizer ? ", relaxed flag store (data races)" : " (wrong values)",
              stopwatch.Seconds());
}

}  // namespace
}  // namespace jax_flux::test

int main(int argc, char** argv) {
  using namespace jax_flux::test;
  const Stopwatch stopwatch;
  int calls = kThreadSanitizer ? 2000 : 5000;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("--fault=", 0) == 0) return RunFault(argument.substr(8));
    if (argument.rfind("--calls=", 0) == 0) calls = std::stoi(argument.substr(8));
  }
  RunFaults();
  RunAllMixed(calls);
  RunFailures();
  std::printf("protocol_simulation%s: %.1f s\n", kThreadSanitizer ? " (ThreadSanitizer)" : "",
              stopwatch.Seconds());
  return 0;
}
