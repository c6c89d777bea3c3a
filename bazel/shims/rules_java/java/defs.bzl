# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

"""Stand-in for rules_java: re-exports Bazel's native rules, so that no build asks the network."""

java_binary = native.java_binary
java_import = native.java_import
java_library = native.java_library
java_package_configuration = native.java_package_configuration
java_plugin = native.java_plugin
java_runtime = native.java_runtime
java_test = native.java_test
java_toolchain = native.java_toolchain
