// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Every interleaving of small cases of the protocol, and the faults that it must catch. What the
// model joins into one action is argued in protocol_model.h; docs/protocol.md has the proof.
#include <cstdio>
#include <string>
#include <vector>

#include "tests/cc/check.h"
#include "tests/cc/explore.h"
#include "tests/cc/protocol_model.h"

namespace jax_flux::test {
namespace {

constexpr std::uint64_t kMaxStates = 12'000'000;

// "A" and "a" are a large and a small all-gather, "R" and "r" reduce-scatters, "B" and "b"
// broadcasts, "D" and "d" backward calls, "C" and "c" copy-engine calls, "P" and "p" those of two
// weights. A digit before the letter is the generation.
std::vector<ModelCall> Program(const std::string& text) {
  static const std::string kLetters = "arbdcp";
  std::vector<ModelCall> program;
  int generation = 0;
  for (char letter : text) {
    if (letter == '0' || letter == '1') {
      generation = letter - '0';
      continue;
    }
    const bool large = letter >= 'A' && letter <= 'Z';
    const std::size_t op = kLetters.find(large ? static_cast<char>(letter - 'A' + 'a') : letter);
    CHECK(op != std::string::npos, text);
    program.push_back({static_cast<ModelOp>(op), large ? 2 : 1, generation,
                       static_cast<int>(program.size()) + 1});
    generation = 0;
  }
  return program;
}

// Every sequence of `calls` letters.
std::vector<std::string> Sequences(const std::string& letters, int calls) {
  std::vector<std::string> all = {""};
  for (int call = 0; call < calls; ++call) {
    std::vector<std::string> longer;
    for (const std::string& start : all) {
      for (char letter : letters) longer.push_back(start + letter);
    }
    all.swap(longer);
  }
  return all;
}

struct Total {
  std::uint64_t states = 0;
  std::uint64_t steps = 0;
  double interleavings = 0;
  double largest = 0;
  int cases = 0;
};

void Prove(const ModelConfig& config, Total* total) {
  const Model model(config);
  const Explored explored = ExploreAll(model, config.ignored, kMaxStates);
  if (explored.found.kind != BreakKind::kNone) {
    std::fprintf(stderr, "%s breaks:\n%s", config.name.c_str(),
                 Trace(model, explored, config.ignored).c_str());
    Die();
  }
  CHECK(explored.complete, config.name << " has more than " << kMaxStates << " states");
  total->states += explored.states;
  total->steps += explored.steps;
  total->interleavings += explored.interleavings;
  total->cases += 1;
}

struct Family {
  const char* what;
  int world;
  std::vector<int> ctas;
  bool pusher_thread;
  int resident;
  std::vector<std::string> programs;
  int pack = 0;
};

void ProveFamily(const Family& family) {
  const Stopwatch stopwatch;
  Total total;
  for (const std::string& program : family.programs) {
    ModelConfig config;
    config.name = std::string(family.what) + " [" + program + "]";
    config.world = family.world;
    config.programs = {Program(program)};
    config.ctas = family.ctas;
    config.pusher_thread = family.pusher_thread;
    config.resident = family.resident;
    config.pack = family.pack;
    Prove(config, &total);
  }
  std::printf("  %-58s W %d %5d cases %10llu states %11llu steps %8.1e interleavings %5.1f s\n",
              family.what, family.world, total.cases, static_cast<unsigned long long>(total.states),
              static_cast<unsigned long long>(total.steps), total.interleavings,
              stopwatch.Seconds());
  std::fflush(stdout);
}

void ProveAll() {
  const std::vector<std::string> mixed = {"aArRa", "AaRrA", "rRaAr", "ABrbR", "bBabA", "dDaRd"};
  const std::vector<Family> families = {
      {"one CTA, every sequence of 5 calls", 2, {1}, false, 99, Sequences("aArR", 5)},
      {"two CTAs, mixed sequences", 2, {2}, false, 99, mixed},
      {"two CTAs, every sequence of 3 calls", 2, {2}, false, 99, Sequences("aArR", 3)},
      {"two CTAs, one resident", 2, {2}, false, 1, mixed},
      {"three CTAs against one", 2, {3, 1}, false, 99, {"aRAr", "dAb"}},
      {"pusher thread, one CTA", 2, {1}, true, 99, mixed},
      {"pusher threads, two CTAs", 2, {2}, true, 99, {"ra", "Ar"}},
      {"growth between calls", 2, {2}, false, 99, {"a1Aa1Ra", "r1R1Ara", "1a0A1r0R1A"}},
      {"copy engine, every sequence of 4 calls with AG and RS",
       2,
       {1},
       false,
       99,
       Sequences("acR", 4)},
      {"copy engine, mixed sequences of 5",
       2,
       {1},
       false,
       99,
       {"cCcCc", "aCArc", "CaCRC", "bcbCb"}},
      {"copy engine, several weights and backward", 2, {1}, false, 99, {"pcPa", "aPRp", "dPdC"}},
      {"copy engine, two CTAs", 2, {2}, false, 99, {"caC", "Pr", "acR"}},
      {"copy engine, two CTAs, one resident", 2, {2}, false, 1, {"caC", "Pra"}},
      {"copy engine and growth", 2, {1}, false, 99, {"c1Cc1Ca", "1c0C1a0c"}},
      {"one CTA, every sequence of 4 calls", 3, {1}, false, 99, Sequences("aArR", 4)},
      {"one CTA, mixed sequences of 5", 3, {1}, false, 99, {"aArRa", "BaRbA", "a1A0r1Ra"}},
      {"two CTAs on one rank", 3, {2, 1, 1}, false, 99, {"aAraR", "rRaAr", "bda"}},
      {"pusher thread, one CTA", 3, {1}, true, 99, {"aa", "ra"}},
      {"two CTAs on every rank", 3, {2}, false, 99, {"a", "r"}},
      {"copy engine", 3, {1}, false, 99, {"cC", "cac", "acr", "bcb", "pc"}},
      {"one CTA", 4, {1}, false, 99, {"ar", "ra", "bbb"}},
      // Packed tiles; pieces are columns. Full packs, short ones, one segment to a pack.
      {"packs of 2, one CTA, every sequence of 3", 2, {1}, false, 99, Sequences("aArR", 3), 2},
      {"packs of 2, two CTAs", 2, {2}, false, 99, {"aRAr", "RRa", "dDa"}, 2},
      {"packs of 2, two CTAs, one resident", 2, {2}, false, 1, {"aRAr", "RRa", "dDa"}, 2},
      {"packs of 1: own between foreign, two CTAs", 2, {2}, false, 1, {"aRAr", "RRa"}, 1},
      {"packs of 2 and pusher threads", 2, {2}, true, 99, {"ar"}, 2},
      {"packs of 2, one CTA", 3, {1}, false, 99, {"aRA", "RrR", "DaR"}, 2},
      {"packs of 3, one CTA", 3, {1}, false, 99, {"aRA", "RrR", "DaR"}, 3},
      {"packs of 2, two CTAs on one rank", 3, {2, 1, 1}, false, 1, {"aR", "Ra"}, 2},
      {"packs of 3, one CTA", 4, {1}, false, 99, {"r", "a"}, 3},
  };
  for (const Family& family : families) ProveFamily(family);
}

// Ranks whose programs differ: some rank says so, and no rank finishes the call.
ModelConfig Mismatch(int world, int odd_rank, int letters, int ctas, bool pusher_thread,
                     Fault fault) {
  static const char* const kPairs[][2] = {{"ar", "ra"},   {"aA", "Aa"}, {"bR", "Rb"}, {"da", "ad"},
                                          {"bar", "bra"}, {"ca", "ac"}, {"cC", "Cc"}};
  ModelConfig config;
  config.world = world;
  config.name = "mismatch " + std::string(kPairs[letters][0]) + " against " + kPairs[letters][1];
  for (int rank = 0; rank < world; ++rank) {
    std::vector<ModelCall> program = Program(kPairs[letters][rank == odd_rank]);
    if (rank == odd_rank) std::swap(program.rbegin()[0].site, program.rbegin()[1].site);
    config.programs.push_back(program);
  }
  config.ctas = {ctas};
  config.pusher_thread = pusher_thread;
  config.fault = fault;
  return config;
}

void ProveMismatches() {
  const Stopwatch stopwatch;
  Total total;
  for (int world : {2, 3}) {
    for (int odd_rank = 0; odd_rank < world; ++odd_rank) {
      for (int letters = 0; letters < 7; ++letters) {
        Prove(Mismatch(world, odd_rank, letters, 1, false, Fault::kNone), &total);
        // With a pusher thread a rank can fail before it has sent to a third one.
        if (letters == 0) Prove(Mismatch(world, odd_rank, 0, 1, true, Fault::kNone), &total);
        // With two CTAs one can fail before the other has posted the rank's entry.
        if (world == 2) Prove(Mismatch(2, odd_rank, letters, 2, false, Fault::kNone), &total);
      }
    }
  }
  std::printf("  %-58s W 2,3 %3d cases %10llu states %11llu steps %8.1e interleavings %5.1f s\n",
              "X then Y against Y then X: every rank fails at once", total.cases,
              static_cast<unsigned long long>(total.states),
              static_cast<unsigned long long>(total.steps), total.interleavings,
              stopwatch.Seconds());
}

struct Control {
  const char* what;
  Fault fault;
  const char* program;
  std::vector<int> ctas;
  int resident;
  BreakKind expected;
  std::vector<BreakKind> looked_past;
  int world;  // the smallest that shows it
  int pack = 0;
};

std::uint32_t Mask(const std::vector<BreakKind>& kinds) {
  std::uint32_t mask = 0;
  for (BreakKind kind : kinds) mask |= 1u << static_cast<int>(kind);
  return mask;
}

ModelConfig ConfigOf(const Control& control, int world) {
  ModelConfig config;
  config.name = control.what;
  config.world = world;
  config.programs = {Program(control.program)};
  config.ctas = control.ctas;
  config.resident = control.resident;
  config.fault = control.fault;
  config.ignored = Mask(control.looked_past);
  config.pack = control.pack;
  return config;
}

void Catch(const Control& control) {
  for (int world = 2; world < control.world; ++world) {
    ModelConfig config = ConfigOf(control, world);
    config.name += " is harmless";
    Total total;
    Prove(config, &total);
    std::printf("  %s: no break at W %d in %llu states\n", control.what, world,
                static_cast<unsigned long long>(total.states));
  }
  const ModelConfig config = ConfigOf(control, control.world);
  const Model model(config);
  const Explored explored = FindNearest(model, config.ignored, 4'000'000);
  CHECK(explored.found.kind == control.expected,
        control.what << ": expected " << Name(control.expected) << ", found "
                     << Name(explored.found.kind) << " " << explored.found.text);
  std::printf("  %s [%s], W %d: %s after %llu states\n%s", control.what, control.program,
              control.world, Name(explored.found.kind),
              static_cast<unsigned long long>(explored.states),
              Trace(model, explored, config.ignored).c_str());
}

void CatchAll() {
  using K = BreakKind;
  const std::vector<Control> controls = {
      {"half size of the call", Fault::kHalfPerCall, "aA", {1}, 99, K::kWrongData, {}, 2},
      {"flag rows of the call", Fault::kFlagRowPerCall, "aA", {1}, 99, K::kTwoWriters, {}, 3},
      {"flag rows of the call, the rule not checked",
       Fault::kFlagRowPerCall,
       "Aa",
       {1},
       99,
       K::kDeadlock,
       {K::kTwoWriters, K::kFlagBackwards, K::kWrongData},
       3},
      {"flag rows of the call, the rule not checked",
       Fault::kFlagRowPerCall,
       "Aa",
       {1},
       99,
       K::kWrongData,
       {K::kTwoWriters, K::kFlagBackwards},
       3},
      {"epoch advanced by the first CTA",
       Fault::kEarlyEpoch,
       "aa",
       {2},
       99,
       K::kDeadlock,
       {K::kFlagBackwards},
       2},
      {"epoch advanced by the first CTA",
       Fault::kEarlyEpoch,
       "aa",
       {2},
       99,
       K::kWrongData,
       {K::kFlagBackwards, K::kDeadlock},
       2},
      {"AG and RS share an area", Fault::kSharedAreas, "d", {1}, 99, K::kFlagBackwards, {}, 2},
      {"AG and RS share an area, the rule not checked",
       Fault::kSharedAreas,
       "d",
       {1},
       99,
       K::kWrongData,
       {K::kFlagBackwards},
       2},
      {"entries not awaited", Fault::kSkippedEntry, "bbb", {1}, 99, K::kTooFarAhead, {}, 2},
      {"entries not awaited, the rule not checked",
       Fault::kSkippedEntry,
       "bbb",
       {1},
       99,
       K::kWrongData,
       {K::kTooFarAhead},
       2},
      {"flag copied from the word of the last finished epoch",
       Fault::kLiveEpochCopied,
       "c",
       {1},
       99,
       K::kDeadlock,
       {K::kFlagBackwards},
       2},
      {"flag copied from the word of the running epoch",
       Fault::kLiveNextCopied,
       "cc",
       {1},
       99,
       K::kWrongData,
       {K::kFlagBackwards},
       2},
      {"copies without a gate", Fault::kNoGate, "cc", {1}, 99, K::kWrongData, {}, 2},
      {"copies in the AG area", Fault::kCopiesInAgArea, "ca", {1}, 99, K::kWrongData, {}, 2},
      {"RS: own tiles before foreign ones",
       Fault::kWaitBeforePush,
       "r",
       {1},
       99,
       K::kDeadlock,
       {},
       2},
      {"AG: tiles before pushes", Fault::kWaitBeforePush, "a", {1}, 99, K::kDeadlock, {}, 2},
      {"RS, packed: a tile waits before it sends",
       Fault::kWaitBeforeSend,
       "r",
       {1},
       99,
       K::kDeadlock,
       {},
       2,
       2},
      {"RS: static schedule, two CTAs, one resident",
       Fault::kStaticSchedule,
       "R",
       {2},
       1,
       K::kDeadlock,
       {},
       2},
  };
  for (const Control& control : controls) Catch(control);
}

void CatchMismatch(const char* what, const ModelConfig& config) {
  const Model model(config);
  const Explored explored = FindNearest(model, config.ignored, 4'000'000);
  CHECK(explored.found.kind == BreakKind::kMismatchUnseen,
        what << ": found " << Name(explored.found.kind));
  std::printf("  %s, W %d: %s\n%s", what, config.world, Name(explored.found.kind),
              Trace(model, explored, config.ignored).c_str());
}

void CatchMismatches() {
  // Looking at the awaited peer alone is enough for two ranks and leaves a third one waiting.
  Total total;
  Prove(Mismatch(2, 1, 0, 1, true, Fault::kCheckOnlyAwaited), &total);
  CatchMismatch("waits look at the awaited peer only (no break at W 2)",
                Mismatch(3, 2, 0, 1, true, Fault::kCheckOnlyAwaited));
  CatchMismatch("a trap before the entry is posted",
                Mismatch(2, 1, 0, 2, false, Fault::kTrapUnannounced));
}

}  // namespace
}  // namespace jax_flux::test

int main() {
  using namespace jax_flux::test;
  const Stopwatch stopwatch;
  std::printf("Right in every interleaving:\n");
  ProveAll();
  ProveMismatches();
  std::printf("Caught:\n");
  CatchAll();
  CatchMismatches();
  std::printf("protocol_checker: %.1f s\n", stopwatch.Seconds());
  return 0;
}
