// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Epochs, entries, flags and tickets, templated on a memory policy: device atomics in kernels
// (kernels/sync.cuh), std::atomic in the simulation (tests/cc). The proof is in docs/protocol.md.
//
// A call's epoch is one more than the last finished epoch of its generation. Flags and entries hold
// epochs and are compared >=, so nothing is ever reset. Each call posts its entry to every peer and
// ends only after it has seen every peer's entry: no rank is ever more than one call ahead, and two
// halves are enough without acknowledgements. (A peer writes half e&1 again in call e+2, after it
// finished e+1, which needed our entry into e+1, which we post after we finished e.)
//
// A memory policy Mem provides, for words inside a workspace given by address p:
//   u64  LoadAcquireSys(p), LoadRelaxed(p)
//   void StoreReleaseSys(p, u64), StoreReleaseGpu(p, u64), StoreRelaxed(p, u64)
//   u32  FetchAddAcqRel(p, u32), Exchange32(p, u32); void StoreRelaxed32(p, u32)
//   u64  CompareExchange(p, expected, desired) -> the old value; acquire
//   u64  NowNs(); void Pause(); void Warn(call, failure); [[noreturn]] void Fail(call, failure)
// Call::site is never 0: a busy word of 0 means idle.
#ifndef JAX_FLUX_CUDA_PROTOCOL_EPOCH_H_
#define JAX_FLUX_CUDA_PROTOCOL_EPOCH_H_

#include "cuda/protocol/base.h"
#include "cuda/protocol/layout.h"
#include "cuda/protocol/record.h"
#include "cuda/protocol/schedule.h"

namespace jax_flux::protocol {

// Kernel argument shared by every fused kernel. Constant over replays of a captured graph: the
// epoch is read from the control block, never passed.
struct Call {
  std::uint8_t*
      base[kMaxWorld];  // workspace of each rank as this device sees it; base[rank] is own
  GenerationLayout layout;
  std::int32_t rank;
  std::int32_t world;
  Op op;
  bool first_launch;  // of a call made of several launches
  bool last_launch;
  std::uint64_t site;
  Deadline deadline;
  FailureRecord* record;

  JAX_FLUX_HD std::uint8_t* Control(ControlWord word) const {
    return base[rank] + layout.ControlOffset(word);
  }
};

template <class Mem>
JAX_FLUX_HD std::uint64_t CallEpoch(const Call& call) {
  // Stable while the launch runs: only its own last CTA advances it, after every CTA has read it.
  return Mem::LoadRelaxed(call.Control(ControlWord::kEpoch)) + 1;
}

template <class Mem>
JAX_FLUX_HD std::uint32_t ClaimTicket(const Call& call, ControlWord counter) {
  return Mem::FetchAddAcqRel(call.Control(counter), 1);
}

// Stores our entry of `epoch` at every peer; pairs with CheckEntry's acquire. Repeating it stores
// the same values.
template <class Mem>
JAX_FLUX_HD void StoreEntries(const Call& call, std::uint64_t epoch) {
  for (std::int32_t step = 0; step < call.world - 1; ++step) {
    std::uint8_t* entry = call.base[PushPeerAt(call.rank, call.world, step)] +
                          call.layout.EntryOffset(call.rank, epoch);
    Mem::StoreRelaxed(entry + kFlagBytes, call.site);
    Mem::StoreReleaseSys(entry, epoch);
  }
}

// Announces our entry into `epoch`. One thread of the first launch.
template <class Mem>
JAX_FLUX_HD void PostEntries(const Call& call, std::uint64_t epoch) {
  // Acquire; pairs with FinishCta's release of the busy word by a call that has just ended.
  const std::uint64_t other = Mem::CompareExchange(call.Control(ControlWord::kBusy), 0, call.site);
  if (other != 0) {
    Mem::Fail(call, {FailureKind::kConcurrentUse, WaitKind::kEntry, call.op, call.rank, call.rank,
                     -1, call.site, other, epoch, epoch, 0});
  }
  // The busy word is cleared after the epoch is stored. An epoch that moved since the caller read
  // it means that another call was still running then, and has finished in between.
  const std::uint64_t now = CallEpoch<Mem>(call);
  if (now != epoch) {
    Mem::Fail(call, {FailureKind::kConcurrentUse, WaitKind::kEntry, call.op, call.rank, call.rank,
                     -1, call.site, 0, epoch, now, 0});
  }
  StoreEntries<Mem>(call, epoch);
}

// Fails if `peer` has entered this epoch with another call site. Returns the epoch in its entry.
template <class Mem>
JAX_FLUX_HD std::uint64_t CheckEntry(const Call& call, std::uint64_t epoch, std::int32_t peer) {
  std::uint8_t* entry = call.base[call.rank] + call.layout.EntryOffset(peer, epoch);
  const std::uint64_t seen = Mem::LoadAcquireSys(entry);  // pairs with StoreEntries on `peer`
  if (seen == epoch) {
    const std::uint64_t site = Mem::LoadRelaxed(entry + kFlagBytes);
    if (site != call.site) {
      // Our trap may come before the thread that posts our entry: the peer must see it to fail too.
      StoreEntries<Mem>(call, epoch);
      Mem::Fail(call, {FailureKind::kSiteMismatch, WaitKind::kEntry, call.op, call.rank, peer, -1,
                       call.site, site, epoch, seen, 0});
    }
  }
  return seen;
}

// Slow path of every wait: polls with a deadline, and looks at the peers' entries in turn on the
// way, so that ranks in different program order fail at once instead of at the deadline. All peers,
// not only the awaited one: that one may itself have failed on a third rank's entry (W >= 3).
template <class Mem>
JAX_FLUX_HD void SpinUntil(const Call& call, std::uint64_t epoch, WaitKind wait, std::int32_t peer,
                           std::int32_t index, const std::uint8_t* word) {
  constexpr std::int32_t kPollsPerCheck = 64;  // a clock read and an entry read per 64 polls
  const std::uint64_t start = Mem::NowNs();
  bool warned = false;
  for (std::int32_t round = 0;; round = (round + 1) % (call.world - 1)) {
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    for (std::int32_t poll = 0; poll < kPollsPerCheck; ++poll) {
      // Pairs with PublishFlag or StoreEntries on `peer`, as the caller says.
      if (Mem::LoadAcquireSys(word) >= epoch) return;
      Mem::Pause();
    }
    CheckEntry<Mem>(call, epoch, PushPeerAt(call.rank, call.world, round));
    const std::uint64_t waited = Mem::NowNs() - start;
    if (waited < call.deadline.warn_ns && waited < call.deadline.fail_ns) continue;
    const Failure failure = {
        FailureKind::kLate,     wait,  call.op, call.rank, peer, index, call.site, 0, epoch,
        Mem::LoadRelaxed(word), waited};
    if (waited >= call.deadline.fail_ns) {
      Failure fatal = failure;
      fatal.kind = FailureKind::kTimeout;
      Mem::Fail(call, fatal);
    }
    // One report per call is enough; the others wait for the same peer.
    if (!warned && Mem::Exchange32(call.Control(ControlWord::kWarned), 1) == 0) {
      Mem::Warn(call, failure);
    }
    warned = true;
  }
}

// Waits until `peer` has published flag `offset` of our workspace for this epoch. Acquire, system
// scope; pairs with PublishFlag on the peer. A TMA read of the data needs fence.proxy.async after
// it.
template <class Mem>
JAX_FLUX_HD void AwaitFlag(const Call& call, std::uint64_t epoch, WaitKind wait, std::int32_t peer,
                           std::int32_t index, std::uint64_t offset) {
  const std::uint8_t* word = call.base[call.rank] + offset;
  if (Mem::LoadAcquireSys(word) >= epoch) return;
  SpinUntil<Mem>(call, epoch, wait, peer, index, word);
}

// Publishes flag `offset` of `peer`'s workspace. The caller's data writes are complete (bulk
// stores: cp.async.bulk.wait_group 0, not .read). Release, system scope; pairs with AwaitFlag on
// the peer.
template <class Mem>
JAX_FLUX_HD void PublishFlag(const Call& call, std::uint64_t epoch, std::int32_t peer,
                             std::uint64_t offset) {
  Mem::StoreReleaseSys(call.base[peer] + offset, epoch);
}

// Until the peer of `step` has entered it.
template <class Mem>
JAX_FLUX_HD void AwaitEntry(const Call& call, std::uint64_t epoch, std::int32_t step) {
  const std::int32_t peer = PushPeerAt(call.rank, call.world, step);
  if (CheckEntry<Mem>(call, epoch, peer) >= epoch) return;
  const std::uint8_t* word = call.base[call.rank] + call.layout.EntryOffset(peer, epoch);
  SpinUntil<Mem>(call, epoch, WaitKind::kEntry, peer, -1, word);
  CheckEntry<Mem>(call, epoch, peer);
}

// Waits until every peer has entered `epoch`, with our call site. Acquire, system scope; pairs with
// StoreEntries on each peer.
template <class Mem>
JAX_FLUX_HD void AwaitEntries(const Call& call, std::uint64_t epoch) {
  for (std::int32_t step = 0; step < call.world - 1; ++step) {
    AwaitEntry<Mem>(call, epoch, step);
  }
}

// Gate of a call whose data copy engines carry: one thread, in the call's first launch, before its
// copies are enqueued. Slots and source word of the copies are the same in every epoch:
//   a peer's entry into `epoch` says that it has read its slots of the call before;
//   the word keeps `epoch` until our next gate, which the stream runs after these copies.
template <class Mem>
JAX_FLUX_HD void OpenCopyGate(const Call& call, std::uint64_t epoch) {
  PostEntries<Mem>(call, epoch);
  AwaitEntries<Mem>(call, epoch);
  // Partner: the copies of this word, ordered by the end of the launch.
  Mem::StoreReleaseSys(call.Control(ControlWord::kCopyEpoch), epoch);
}

// Counts a chunk that is written at `peer`, its flag too; true for the last of `chunks`, whose
// caller then publishes that the shard is whole. Acquire-release with the other pushers' counts,
// GPU scope: each counts after its own chunk, so the last one's release covers all of them.
template <class Mem>
JAX_FLUX_HD bool CountPushed(const Call& call, std::int32_t peer, std::int32_t chunks) {
  std::uint8_t* pushed = call.base[call.rank] + call.layout.PushedOffset(peer);
  if (Mem::FetchAddAcqRel(pushed, 1) + 1 != static_cast<std::uint32_t>(chunks)) return false;
  Mem::StoreRelaxed32(pushed, 0);  // for the next call: in this one nobody counts any more
  return true;
}

// Whether this CTA (of a kernel with clusters: this cluster) is the launch's last one. One thread,
// after every role of it has made its last claim, read and flag, and in the CTA that posted the
// entries after AwaitEntries. Acquire-release: the last arriver sees every CTA's epoch read, claims
// and awaited entries as done.
template <class Mem>
JAX_FLUX_HD bool ArriveCta(const Call& call, std::uint32_t cta_count) {
  return Mem::FetchAddAcqRel(call.Control(ControlWord::kDoneCtas), 1) + 1 == cta_count;
}

// In the last CTA, one thread: zeroes the tickets, then advances the epoch. Nothing here is for a
// peer, and the next launch of the stream starts after this one has ended, so nothing waits for
// stores to reach system memory: at the tail of a call that took 2 us.
template <class Mem>
JAX_FLUX_HD void EndLaunch(const Call& call, std::uint64_t epoch) {
  Mem::StoreRelaxed32(call.Control(ControlWord::kTileTicket), 0);
  Mem::StoreRelaxed32(call.Control(ControlWord::kPushTicket), 0);
  Mem::StoreRelaxed32(call.Control(ControlWord::kCopyTicket), 0);
  Mem::StoreRelaxed32(call.Control(ControlWord::kWarned), 0);
  Mem::StoreRelaxed32(call.Control(ControlWord::kDoneCtas), 0);
  if (call.last_launch) {
    Mem::StoreRelaxed(call.Control(ControlWord::kEpoch), epoch);
    // Release, GPU scope, and last: a concurrent call of this device that finds us idle also finds
    // the new epoch (PostEntries).
    Mem::StoreReleaseGpu(call.Control(ControlWord::kBusy), 0);
  }
}

// The end of a CTA; one thread. In the CTA that posts entries `awaits`, in a call's last launch:
// the call ends after every peer has entered it. By that CTA, not the last one, so that it can wait
// while the others work: reads of system memory take most of a microsecond each.
template <class Mem>
JAX_FLUX_HD void FinishCta(const Call& call, std::uint64_t epoch, std::uint32_t cta_count,
                           bool awaits) {
  if (awaits && call.last_launch) AwaitEntries<Mem>(call, epoch);
  if (ArriveCta<Mem>(call, cta_count)) EndLaunch<Mem>(call, epoch);
}

}  // namespace jax_flux::protocol

#endif  // JAX_FLUX_CUDA_PROTOCOL_EPOCH_H_
