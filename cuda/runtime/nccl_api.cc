// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/nccl_api.h"

#include <dlfcn.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "cuda/runtime/options.h"

namespace jax_flux::runtime {
namespace {

// RTLD_NOLOAD: an answer only if somebody, in practice XLA's plugin, has loaded it already.
void* Library() { return dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD); }

template <class Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

std::string VersionText(int version) {
  return Format("%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

Expected<const NcclApi*> Load() {
  void* library = Library();
  if (library == nullptr) {
    return Status(Code::kFailedPrecondition,
                  "jax_flux: no libnccl.so.2 is loaded in this process. The fused ops use the NCCL "
                  "that JAX brings in: install the wheel nvidia-nccl-cu13 (2.28.9 to 2.30.7) with "
                  "jax[cuda13], or pass implementation=\"xla\".");
  }
  auto* api = new NcclApi{};
  const char* missing = nullptr;
  const auto need = [&](bool found, const char* name) {
    if (!found && missing == nullptr) missing = name;
  };
  if (!Find(library, "ncclGetVersion", &api->GetVersion) ||
      api->GetVersion(&api->version) != kNcclSuccess) {
    delete api;
    return Status(Code::kFailedPrecondition,
                  "jax_flux: the loaded libnccl.so.2 does not tell its version. Install the wheel "
                  "nvidia-nccl-cu13 (2.28.9 to 2.30.7).");
  }
  if (std::string verdict = JudgeNcclVersion(api->version); !verdict.empty()) {
    delete api;
    return Status(Code::kFailedPrecondition, verdict);
  }
#define JAX_FLUX_NEED(name) need(Find(library, "nccl" #name, &api->name), "nccl" #name)
  JAX_FLUX_NEED(GetErrorString);
  JAX_FLUX_NEED(GetLastError);
  JAX_FLUX_NEED(CommUserRank);
  JAX_FLUX_NEED(CommCount);
  JAX_FLUX_NEED(CommCuDevice);
  JAX_FLUX_NEED(CommGetAsyncError);
  JAX_FLUX_NEED(MemAlloc);
  JAX_FLUX_NEED(MemFree);
  JAX_FLUX_NEED(CommWindowRegister);
  JAX_FLUX_NEED(CommWindowDeregister);
  JAX_FLUX_NEED(AllGather);
  JAX_FLUX_NEED(TeamLsa);
  if (api->version >= 22900) JAX_FLUX_NEED(GetLsaDevicePointer);
#undef JAX_FLUX_NEED
  if (missing != nullptr) {
    const std::string version = VersionText(api->version);
    delete api;
    return Status(Code::kFailedPrecondition,
                  Format("jax_flux: the loaded NCCL %s has no %s. Install the wheel "
                         "nvidia-nccl-cu13 (2.28.9 to 2.30.7).",
                         version.c_str(), missing));
  }
  return static_cast<const NcclApi*>(api);
}

// First fields of NCCL 2.28's device-side window struct, which later versions keep.
struct WindowHead {
  void* host;
  std::uint8_t* lsa_flat_base;  // memory of LSA rank 0
  std::int32_t lsa_rank;
  std::int32_t world_rank;
  std::uint32_t stride_4g;  // distance between two ranks' memory in units of 4 GiB
};
static_assert(offsetof(WindowHead, stride_4g) == 24, "layout of NCCL's window struct");

}  // namespace

std::string JudgeNcclVersion(int version) {
  if (version >= kNcclOldest && version <= kNcclNewest) return "";
  return Format(
      "jax_flux: NCCL %s is loaded; symmetric windows were tried with 2.28 to 2.30.7. Install the "
      "wheel nvidia-nccl-cu13 in that range, or pass implementation=\"xla\".",
      VersionText(version).c_str());
}

int LoadedNcclVersion() {
  void* library = Library();
  int (*get_version)(int*) = nullptr;
  int version = 0;
  if (library != nullptr && Find(library, "ncclGetVersion", &get_version)) get_version(&version);
  return version;
}

Expected<const NcclApi*> LoadNccl() {
  static std::mutex mutex;
  static const NcclApi* loaded = nullptr;
  std::lock_guard<std::mutex> lock(mutex);
  if (loaded != nullptr) return loaded;
  // A failure is not kept: NCCL may be loaded later.
  Expected<const NcclApi*> result = Load();
  if (result.ok()) loaded = result.value();
  return result;
}

Status NcclApi::Check(int result, NcclComm comm, const char* call) const {
  const auto start = std::chrono::steady_clock::now();
  while (result == kNcclInProgress) {
    int state = kNcclSuccess;
    result = CommGetAsyncError(comm, &state);
    if (result == kNcclSuccess) result = state;
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
    if (result == kNcclInProgress && waited.count() > Options::Get().timeout_s) {
      return Status(Code::kDeadlineExceeded,
                    Format("jax_flux: %s has not returned for %.0f s: a rank of the group did not "
                           "call it.",
                           call, waited.count()));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  if (result == kNcclSuccess) return Status();
  const char* detail = GetLastError(comm);
  return Status(Code::kInternal,
                Format("jax_flux: %s failed: %s (%s). NCCL_DEBUG=WARN tells more.", call,
                       GetErrorString(result), detail == nullptr ? "" : detail));
}

Expected<std::array<std::uint8_t*, protocol::kMaxWorld>> PeerPointers(const NcclApi& nccl,
                                                                      NcclComm comm,
                                                                      NcclWindow window, int rank,
                                                                      int world,
                                                                      cudaStream_t stream) {
  const NcclTeam team = nccl.TeamLsa(comm);
  if (team.ranks != world || team.rank != rank) {
    return Status(
        Code::kFailedPrecondition,
        Format("jax_flux: only %d of the %d GPUs of this mesh axis can read and write each other's "
               "memory (this is rank %d). The fused ops need peer access among all of them: NVLink "
               "or PCIe peer-to-peer inside one machine, IPC not disabled (see `nvidia-smi topo "
               "-p2p r`, NCCL_P2P_DISABLE). Put the axis inside one machine or pass "
               "implementation=\"xla\".",
               team.ranks, world, rank));
  }
  std::array<std::uint8_t*, protocol::kMaxWorld> base = {};
  if (nccl.GetLsaDevicePointer != nullptr) {
    for (int peer = 0; peer < world; ++peer) {
      void* pointer = nullptr;
      JAX_FLUX_RETURN_IF_ERROR(nccl.Check(nccl.GetLsaDevicePointer(window, 0, peer, &pointer), comm,
                                          "ncclGetLsaDevicePointer"));
      base[peer] = static_cast<std::uint8_t*>(pointer);
    }
    return base;
  }
  WindowHead head;
  JAX_FLUX_RETURN_IF_CUDA_ERROR(
      cudaMemcpyAsync(&head, window, sizeof(head), cudaMemcpyDeviceToHost, stream));
  JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream));
  if (head.lsa_rank != rank || head.world_rank != rank || head.lsa_flat_base == nullptr) {
    return Status(Code::kInternal,
                  Format("jax_flux: NCCL %s's window struct is not the one expected (ranks %d and "
                         "%d, not %d). Install nvidia-nccl-cu13 2.28.9 or 2.30.7.",
                         VersionText(nccl.version).c_str(), head.lsa_rank, head.world_rank, rank));
  }
  for (int peer = 0; peer < world; ++peer) {
    base[peer] = head.lsa_flat_base + ((static_cast<std::uint64_t>(peer) * head.stride_4g) << 32);
  }
  return base;
}

}  // namespace jax_flux::runtime
