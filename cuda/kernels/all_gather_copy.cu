// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Copy-only fused all-gather: the protocol of a fused kernel without its GEMM.
// Route: registry.cc -> here -> protocol/epoch.h, schedule.h, push.cuh.
//
// Every CTA first claims pushes (own chunk -> slot of a peer), which wait for nobody, then claims
// copy-outs in protocol order (own segment, r-1, r-2, ...), which wait for the chunk's flag.
// Invariant: no CTA waits for a CTA of its own grid, so one resident CTA is enough to finish.
// Order: Publish (release, sys) on the sender pairs with Await (acquire, sys) on the receiver.
#include <cuda_runtime.h>

#include "cuda/kernels/all_gather_copy.h"
#include "cuda/kernels/entries.h"
#include "cuda/kernels/push.cuh"
#include "cuda/kernels/sync.cuh"

namespace jax_flux::kernels {
namespace {

using protocol::ControlWord;
using Mem = DeviceMemory;

constexpr int kThreads = 256;
using Mover = BulkMover<16384>;

struct Shared {
  Mover::Shared mover;
  std::uint32_t ticket;
};

// One chunk as byte ranges of the operand, a slot and the output.
struct Chunk {
  std::uint64_t first;  // byte inside the plane
  std::uint64_t bytes;
  std::int32_t batch;
  std::int32_t flag;
};

__device__ Chunk ChunkOf(const AllGatherCopyArgs& args, std::int32_t index) {
  const protocol::ChunkCoord at = protocol::ChunkAt(args.chunks, index);
  const std::uint64_t full = args.chunks.chunk_rows * AllGatherCopyArgs::kUnitBytes;
  const std::uint64_t first = at.row_chunk * full;
  const std::uint64_t rest = args.plane_bytes - first;
  return {first, rest < full ? rest : full, at.batch,
          args.chunks.FlagIndex(at.batch, at.row_chunk, at.depth_chunk)};
}

// Slot of `source` in the workspace of `at`, for the plane and byte of `chunk`.
__device__ std::uint8_t* SlotAt(const AllGatherCopyArgs& args, std::uint64_t epoch, std::int32_t at,
                                std::int32_t source, const Chunk& chunk) {
  return args.call.base[at] + args.call.layout.AgHalfOffset(epoch) +
         args.SlotBytes() * static_cast<std::uint64_t>(source) +
         args.plane_pitch * static_cast<std::uint64_t>(chunk.batch) + chunk.first;
}

template <class Word>
__device__ void CopyWords(std::uint8_t* target, const std::uint8_t* source, std::uint64_t words) {
  for (std::uint64_t i = threadIdx.x; i < words; i += kThreads) {
    reinterpret_cast<Word*>(target)[i] = reinterpret_cast<const Word*>(source)[i];
  }
}

// All threads, generic proxy: whatever TMA cannot address.
__device__ void CopyUnaligned(std::uint8_t* target, const std::uint8_t* source,
                              std::uint64_t bytes) {
  const std::uint64_t address =
      reinterpret_cast<std::uint64_t>(target) | reinterpret_cast<std::uint64_t>(source) | bytes;
  if (address % 8 == 0) {
    CopyWords<std::uint64_t>(target, source, bytes / 8);
  } else if (address % 4 == 0) {
    CopyWords<std::uint32_t>(target, source, bytes / 4);
  } else if (address % 2 == 0) {
    CopyWords<std::uint16_t>(target, source, bytes / 2);
  } else {
    CopyWords<std::uint8_t>(target, source, bytes);
  }
}

// Whole CTA. Aligned ranges go by TMA from thread 0, their last < 16 bytes and all others by
// ordinary stores. On return thread 0 may announce the range: its bulk stores are complete, and the
// CTA barrier orders the other threads' stores before its release.
__device__ void CopyRange(Mover& mover, std::uint8_t* target, const std::uint8_t* source,
                          std::uint64_t bytes) {
  const bool aligned =
      (reinterpret_cast<std::uint64_t>(target) | reinterpret_cast<std::uint64_t>(source)) %
          kBulkBytes ==
      0;
  const std::uint64_t by_bulk = aligned ? bytes / kBulkBytes * kBulkBytes : 0;
  if (threadIdx.x == 0 && by_bulk > 0) {
    mover.Move(target, source, by_bulk);
    mover.Drain();
  }
  CopyUnaligned(target + by_bulk, source + by_bulk, bytes - by_bulk);
  __syncthreads();  // the stores of all threads, to thread 0; CTA scope
}

__device__ std::uint32_t Claim(Shared& shared, const protocol::Call& call, ControlWord counter) {
  if (threadIdx.x == 0) shared.ticket = protocol::ClaimTicket<Mem>(call, counter);
  __syncthreads();  // the ticket, to the CTA
  const std::uint32_t ticket = shared.ticket;
  __syncthreads();  // all have read it before thread 0 claims again
  return ticket;
}

__device__ void Push(const AllGatherCopyArgs& args, Shared& shared, Mover& mover,
                     std::uint64_t epoch) {
  const protocol::Call& call = args.call;
  const auto total = static_cast<std::uint32_t>(protocol::TotalPushes(args.chunks, call.world));
  const std::int32_t count = args.chunks.Count();
  for (;;) {
    const std::uint32_t ticket = Claim(shared, call, ControlWord::kPushTicket);
    if (ticket >= total) return;
    const std::int32_t step = static_cast<std::int32_t>(ticket) / count;
    const std::int32_t peer = protocol::PushPeerAt(call.rank, call.world, step);
    const Chunk chunk = ChunkOf(args, static_cast<std::int32_t>(ticket) - step * count);
    CopyRange(mover, SlotAt(args, epoch, peer, call.rank, chunk),
              args.x + args.plane_bytes * chunk.batch + chunk.first, chunk.bytes);
    // Release, system scope; pairs with CopyOut's AwaitFlag on `peer`.
    if (threadIdx.x == 0) {
      protocol::PublishFlag<Mem>(call, epoch, peer,
                                 call.layout.AgFlagOffset(call.rank, chunk.flag));
    }
  }
}

__device__ void CopyOut(const AllGatherCopyArgs& args, Shared& shared, Mover& mover,
                        std::uint64_t epoch) {
  const protocol::Call& call = args.call;
  const std::int32_t count = args.chunks.Count();
  const auto total = static_cast<std::uint32_t>(call.world * count);
  for (;;) {
    const std::uint32_t ticket = Claim(shared, call, ControlWord::kCopyTicket);
    if (ticket >= total) return;
    const std::int32_t step = static_cast<std::int32_t>(ticket) / count;
    const std::int32_t source =
        protocol::SegmentAt(protocol::SegmentOrder::kOwnFirst, call.rank, call.world, step);
    const Chunk chunk = ChunkOf(args, static_cast<std::int32_t>(ticket) - step * count);
    const std::uint8_t* from = args.x + args.plane_bytes * chunk.batch + chunk.first;
    if (source != call.rank) {
      from = SlotAt(args, epoch, call.rank, source, chunk);
      if (threadIdx.x == 0) {
        // Acquire, system scope; pairs with Push's PublishFlag on `source`.
        protocol::AwaitFlag<Mem>(call, epoch, protocol::WaitKind::kAgChunk, source, chunk.flag,
                                 call.layout.AgFlagOffset(source, chunk.flag));
        // Thread 0 reads the slot by TMA next: generic (acquired) -> async proxy.
        bulk::FenceGenericToAsync();
      }
      __syncthreads();  // hands the acquire to the threads that copy the unaligned part
    }
    std::uint8_t* to =
        args.y +
        args.plane_bytes * (static_cast<std::uint64_t>(chunk.batch) * call.world + source) +
        chunk.first;
    CopyRange(mover, to, from, chunk.bytes);
  }
}

__global__ void __launch_bounds__(kThreads)
    AllGatherCopyKernel(const __grid_constant__ AllGatherCopyArgs args) {
  __shared__ Shared shared;
  const std::uint64_t epoch = protocol::CallEpoch<Mem>(args.call);
  Mover mover(shared.mover);
  if (threadIdx.x == 0) {
    mover.Init();
    // Release, system scope; pairs with CheckEntry on every peer.
    if (blockIdx.x == 0) protocol::PostEntries<Mem>(args.call, epoch);
  }
  __syncthreads();  // every thread has read the epoch before this CTA can be counted as done
  Push(args, shared, mover, epoch);
  CopyOut(args, shared, mover, epoch);
  // Thread 0 after CopyRange's CTA barrier. Acquire-release with the launch's other CTAs, GPU
  // scope; in the first one acquire of the entries, system scope, which pairs with PostEntries on
  // each peer.
  if (threadIdx.x == 0) protocol::FinishCta<Mem>(args.call, epoch, gridDim.x, blockIdx.x == 0);
}

}  // namespace

Kernel AllGatherCopyKernelEntry() {
  Kernel kernel = {};
  kernel.name = "all_gather_copy";
  kernel.op = "all_gather_copy";
  kernel.dtype = "any";
  kernel.layout = "bytes";
  kernel.cluster[0] = kernel.cluster[1] = 1;
  kernel.transports = "tma";
  kernel.function = reinterpret_cast<const void*>(&AllGatherCopyKernel);
  kernel.threads = kThreads;
  return kernel;
}

}  // namespace jax_flux::kernels
