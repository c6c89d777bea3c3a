// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What the runtime decides and says without a GPU: growth, agreement, versions, sentences.
#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cuda/protocol/record.h"
#include "cuda/runtime/agreement.h"
#include "cuda/runtime/deadline.h"
#include "cuda/runtime/group.h"
#include "cuda/runtime/nccl_api.h"
#include "cuda/runtime/rendezvous.h"
#include "cuda/runtime/watchdog.h"
#include "cuda/runtime/workspace.h"
#include "tests/cc/check.h"

namespace jax_flux {
namespace {

using protocol::GenerationShape;
using runtime::AgreementRecord;

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void GrowthAtLeastDoublesWhatMustGrow() {
  const GenerationShape small = {2, 10, 0, 5000, 0, 0, 0};
  const GenerationShape first = runtime::GrownShape(small, nullptr);
  CHECK(Fits(small, first), "the first generation");
  CHECK_EQ(first.rs_half_bytes, 0u, "no RS area before a call needs one");
  CHECK_EQ(first.copy_bytes, 0u, "no copy area before a call needs one");
  const GenerationShape larger = {2, 10, 7, first.ag_half_bytes + 1, 4096, 8, 100 << 20};
  const GenerationShape second = runtime::GrownShape(larger, &first);
  CHECK(Fits(larger, second), "the second generation");
  CHECK(second.ag_half_bytes >= 2 * first.ag_half_bytes, second.ag_half_bytes);
  CHECK_EQ(second.ag_flags, first.ag_flags, "enough flags stay enough");
  CHECK(Fits(small, second), "a larger generation serves the small call");
}

void DisagreementNamesRanksAndBothValues() {
  std::vector<AgreementRecord> records(3, AgreementRecord{});
  CHECK(runtime::Disagreement(records, "ag_matmul").empty(), "equal records");
  records[2].plan_hash = 0xabc;
  const std::string plan = runtime::Disagreement(records, "ag_matmul");
  CHECK(Has(plan, "ag_matmul") && Has(plan, "rank 2 has 0xabc") && Has(plan, "rank 0 has 0"), plan);
  records[2].plan_hash = 0;
  // One plan, one workspace: what two builds of a version may still choose differently.
  const GenerationShape need = {2, 96, 0, 4096, 0, 0, 0};
  const std::uint64_t chunk = 128ull << 32 | 1024;
  records[0].choices = records[1].choices = runtime::ChoiceDigest(need, chunk);
  for (int change = 0; change < 8; ++change) {
    GenerationShape other = need;
    if (change == 0) other.ag_flags = 95;
    if (change == 1) other.rs_flags = 1;
    if (change == 2) other.ag_half_bytes = 4080;
    if (change == 3) other.rs_half_bytes = 16;
    if (change == 4) other.copy_flags = 1;
    if (change == 5) other.copy_bytes = 16;
    const std::uint64_t other_chunk = change == 6   ? 256ull << 32 | 512
                                      : change == 7 ? 64ull << 32 | 2048
                                                    : chunk;
    records[2].choices = runtime::ChoiceDigest(other, other_chunk);
    const std::string choices = runtime::Disagreement(records, "ag_matmul");
    CHECK(Has(choices, "own choices") && Has(choices, "same build of jax_flux"), choices);
  }
  records[2].choices = runtime::ChoiceDigest(need, chunk);
  CHECK(runtime::Disagreement(records, "ag_matmul").empty(), "equal choices");
  records[1].build = 7;
  const std::string build = runtime::Disagreement(records, "ag_matmul");
  CHECK(Has(build, "version of jax_flux"), build);
  records[1].status = static_cast<std::uint64_t>(runtime::Code::kResourceExhausted);
  std::snprintf(records[1].detail, sizeof(records[1].detail), "no memory");
  const std::string failed = runtime::Disagreement(records, "ag_matmul");
  CHECK(Has(failed, "rank 1 of 3 could not start the call: no memory"), failed);
}

void NcclOutsideTheTriedRangeIsRefused() {
  CHECK(runtime::JudgeNcclVersion(22809).empty(), "2.28.9");
  CHECK(runtime::JudgeNcclVersion(23007).empty(), "2.30.7");
  CHECK(Has(runtime::JudgeNcclVersion(22707), "NCCL 2.27.7"), "too old");
  CHECK(Has(runtime::JudgeNcclVersion(23203), "nvidia-nccl-cu13"), "too new");
  const auto loaded = runtime::LoadNccl();
  CHECK(!loaded.ok() && Has(loaded.status().message(), "nvidia-nccl-cu13"), "none is loaded here");
}

void SentencesNameOpRankPeerAndRemedy() {
  protocol::Failure failure = {};
  failure.kind = protocol::FailureKind::kTimeout;
  failure.wait = protocol::WaitKind::kAgChunk;
  failure.op = protocol::Op::kAgMatmul;
  failure.rank = 1;
  failure.peer = 3;
  failure.index = 17;
  failure.expected = 9;
  failure.seen = 8;
  failure.waited_ns = 2500000000;
  const std::string timeout = runtime::Sentence(failure);
  CHECK(
      Has(timeout, "ag_matmul: rank 1 gave up after 2.5 s waiting for chunk 17 of rank 3's shard"),
      timeout);
  CHECK(Has(timeout, "9 expected, 8 seen") && Has(timeout, "JAX_FLUX_TIMEOUT_S"), timeout);
  failure.kind = protocol::FailureKind::kSiteMismatch;
  failure.site = 0x10;
  failure.peer_site = 0x20;
  CHECK(Has(runtime::Sentence(failure), "call site 0x10, rank 3 at 0x20"), "order");
  failure.kind = protocol::FailureKind::kConcurrentUse;
  CHECK(Has(runtime::Sentence(failure), "channel="), "concurrent use");
  CHECK(!runtime::LastFailure().has_value(), "nothing has failed");
}

void APlanThatOutgrowsItsWorkspaceIsRefused() {
  runtime::PlanRequest request = {};
  request.op = protocol::Op::kMatmulRs;
  request.key.plan_hash = 0xfeed;
  request.need = {2, 8, 16, 4096, 8192, 4, 1024};
  CHECK(runtime::CheckServes(request, request.need).ok(), "exactly as large");
  GenerationShape have = request.need;
  have.rs_flags = 15;
  const std::string flags = runtime::CheckServes(request, have).message();
  CHECK(Has(flags, "matmul_rs: plan 0xfeed") && Has(flags, "8, 15 and 4 flags"), flags);
  have = request.need;
  have.ag_half_bytes -= 1;
  CHECK(Has(runtime::CheckServes(request, have).message(), "4095, 8192 and 1024 bytes"), "bytes");
  have = request.need;
  have.copy_flags = 3;
  CHECK(Has(runtime::CheckServes(request, have).message(), "8, 16 and 3 flags"), "copies");
}

void LocalRanksMeetStepByStepAndGiveUpInTime() {
  constexpr int kThreads = 4, kSteps = 5, kRounds = 200;
  std::atomic<int> met{0};
  for (int round = 0; round < kRounds; ++round) {  // the keys are forgotten in between
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&met] {
        for (std::uint64_t step = 0; step < kSteps; ++step) {
          met += runtime::Meet({1, 2, step}, kThreads, 60);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  CHECK_EQ(met.load(), kThreads * kSteps * kRounds, "meetings");
  CHECK(!runtime::Meet({3, 4, 5}, 2, 0.05), "a rank that does not come");
}

void WorkThatTakesTooLongIsGivenUp() {
  int warnings = 0;
  const auto warn = [&warnings] { ++warnings; };
  const auto in_time = [] { return runtime::Status(runtime::Code::kInternal, "said"); };
  CHECK(runtime::WithinDeadline(60, in_time, 60, warn)->message() == "said", "work in time");
  CHECK_EQ(warnings, 0, "no warning in time");
  auto go_on = std::make_shared<std::promise<void>>();
  auto ended = std::make_shared<std::promise<void>>();
  auto end = ended->get_future();
  const auto work = [go_on, ended] {
    go_on->get_future().wait();
    ended->set_value();
    return runtime::Status();
  };
  CHECK(!runtime::WithinDeadline(0.05, work, 0.01, warn).has_value(), "work that never ends");
  CHECK_EQ(warnings, 1, "a warning before it is given up");
  go_on->set_value();
  end.wait();  // what was given up may still end, and touches nothing of its caller
}

}  // namespace
}  // namespace jax_flux

int main() {
  jax_flux::GrowthAtLeastDoublesWhatMustGrow();
  jax_flux::DisagreementNamesRanksAndBothValues();
  jax_flux::NcclOutsideTheTriedRangeIsRefused();
  jax_flux::SentencesNameOpRankPeerAndRemedy();
  jax_flux::APlanThatOutgrowsItsWorkspaceIsRefused();
  jax_flux::LocalRanksMeetStepByStepAndGiveUpInTime();
  jax_flux::WorkThatTakesTooLongIsGivenUp();
  return 0;
}
