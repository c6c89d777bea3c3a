// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Python's view of the native library; importing it touches no GPU. Route: jax_flux/_ffi.py ->
// here.
#include <cuda_runtime_api.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "cuda/ffi/stages.h"
#include "cuda/ffi/targets.h"
#include "cuda/protocol/base.h"
#include "cuda/runtime/nccl_api.h"
#include "cuda/runtime/version.h"
#include "cuda/runtime/watchdog.h"

namespace nb = nanobind;

namespace jax_flux::ffi {
namespace {

nb::dict Registrations() {
  nb::dict targets;
  for (const Target& target : {AllGatherCopyTarget(), AgMatmulTarget(), MatmulRsTarget(),
                               AgMatmulTraceTarget(), MatmulRsTraceTarget()}) {
    nb::dict stages;
    stages["instantiate"] = nb::capsule(reinterpret_cast<void*>(target.instantiate));
    stages["prepare"] = nb::capsule(reinterpret_cast<void*>(target.prepare));
    stages["initialize"] = nb::capsule(reinterpret_cast<void*>(target.initialize));
    stages["execute"] = nb::capsule(reinterpret_cast<void*>(target.execute));
    targets[target.name] = stages;
  }
  return targets;
}

nb::dict Versions() {
  nb::dict versions;
  versions["library"] = runtime::kLibraryVersion;
  versions["ffi_api_major"] = XLA_FFI_API_MAJOR;
  versions["ffi_api_minor"] = XLA_FFI_API_MINOR;
  versions["cuda"] = CUDART_VERSION;
  versions["protocol"] = protocol::kProtocolVersion;
  versions["nccl"] = runtime::LoadedNcclVersion();
  return versions;
}

nb::dict CountLaunches() {
  const LaunchCounts counts = Launches();
  nb::dict result;
  result["direct"] = counts.direct;
  result["captured"] = counts.captured;
  return result;
}

nb::list Instances() {
  nb::list rows;
  for (const kernels::Kernel& kernel : kernels::Kernels()) {
    nb::dict row;
    row["name"] = kernel.name;
    row["op"] = kernel.op;
    row["dtype"] = kernel.dtype;
    row["layout"] = kernel.layout;
    row["tile"] = nb::make_tuple(kernel.tile[0], kernel.tile[1], kernel.tile[2]);
    row["cluster"] = nb::make_tuple(kernel.cluster[0], kernel.cluster[1]);
    row["split"] = std::max(1, kernel.split);
    row["packed"] = kernel.packed;
    nb::list transports;
    std::istringstream words(kernel.transports);
    for (std::string word; words >> word;) transports.append(word);
    row["transports"] = nb::tuple(transports);
    rows.append(row);
  }
  return rows;
}

}  // namespace
}  // namespace jax_flux::ffi

NB_MODULE(_native, m) {
  m.doc() = "Native library of jax_flux: FFI handlers, their kernels and the failure record.";
  m.def("registrations", &jax_flux::ffi::Registrations,
        "FFI target name -> stage name -> handler capsule.");
  m.def("versions", &jax_flux::ffi::Versions,
        "Versions of the library, the FFI API and CUDA it was built with, the protocol, and the "
        "NCCL loaded now (0 for none).");
  m.def("instances", &jax_flux::ffi::Instances, "One dict per compiled kernel.");
  m.def("launches", &jax_flux::ffi::CountLaunches,
        "Kernel launches of this process, direct and under capture; replays are not seen.");
  m.def("last_failure", &jax_flux::runtime::LastFailure,
        "Sentence of the last missed deadline of this process, or None.");
}
