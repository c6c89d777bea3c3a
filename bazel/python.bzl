# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

"""python_extension(): one limited-API shared library for every Python >= 3.12."""

load("@rules_cc//cc:defs.bzl", "cc_binary")

def python_extension(name, srcs, deps = [], copts = [], visibility = None):
    """Links a nanobind module into NAME.abi3.so, stripped, exporting PyInit_NAME and nothing else.

    Args:
      name: module name, as in NB_MODULE(name, m).
      srcs: .cc files, the one with NB_MODULE among them.
      deps: cc_library and nvcc_library targets.
      copts: further compiler options.
      visibility: as everywhere.

    XLA, NCCL and the driver are never linked: XLA's FFI is header-only, NCCL is the one JAX has
    loaded, and the static CUDA runtime looks for libcuda when it is first called.
    """
    cc_binary(
        name = name + ".abi3.so",
        srcs = srcs,
        copts = ["-fvisibility=hidden", "-fno-strict-aliasing"] + copts,
        linkopts = [
            "-Wl,--version-script=$(location //bazel:extension.lds)",
            "-Wl,--gc-sections",
            "-Wl,--as-needed",
            "-Wl,-s",
        ],
        additional_linker_inputs = ["//bazel:extension.lds"],
        linkshared = 1,
        deps = deps + ["@nanobind//:nanobind"],
        visibility = visibility,
    )
