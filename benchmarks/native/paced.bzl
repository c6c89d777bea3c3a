# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

"""The forward instances of the fused ops once more, over an emulated link: paced_link.cuh."""

load("//cuda/kernels:instances.bzl", "GEMM_INSTANCES")

def _paced(row):
    return {
        "name": row["name"].replace("sm90_", "sm90_paced_"),
        "config": row["config"],
        "op": row["op"],
        "build": "PacedTraced" if row["build"] == "Traced" else "Paced",
        "why": "measures overlap on one GPU",
        "no_spills": False,  # the ring of departures is indexed at run time
    }

PACED_INSTANCES = [
    _paced(row)
    for row in GEMM_INSTANCES
    if "_bf16_nn_" in row["name"] and "_pack_" not in row["name"]
    and not row["name"].endswith("_plain")
]

PACED_UNIT = """#include "benchmarks/native/paced_link.cuh"
#include "cuda/kernels/gemm_entry.cuh"
namespace jax_flux::preset {
kernels::GemmInstance Describe_%{name}() {
  return kernels::DescribeGemm<kernels::TileConfig<%{config}>, kernels::GemmOp::%{op}, %{build}>(
      "%{name}");
}
}  // namespace jax_flux::preset
"""

PACED_ENTRY = (
    "kernels::GemmInstance Describe_%{name}();\n",
    "      Describe_%{name}(),\n",
)

PACED_REGISTRY = """#include "benchmarks/native/paced.h"
namespace jax_flux::preset {
%{declarations}
const std::vector<kernels::GemmInstance>& PacedInstances() {
  static const auto* instances = new std::vector<kernels::GemmInstance>{
%{entries}  };
  return *instances;
}
}  // namespace jax_flux::preset
"""
