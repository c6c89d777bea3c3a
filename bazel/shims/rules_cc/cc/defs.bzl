# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

"""Stand-in for rules_cc: re-exports Bazel's native rules, so that no build asks the network."""

cc_binary = native.cc_binary
cc_import = native.cc_import
cc_library = native.cc_library
cc_test = native.cc_test
cc_toolchain = native.cc_toolchain
cc_toolchain_suite = native.cc_toolchain_suite
