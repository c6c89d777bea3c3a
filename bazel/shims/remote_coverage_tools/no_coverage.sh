#!/bin/sh
# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

echo "Coverage needs Bazel's own coverage tools, which this build does not fetch." >&2
exit 1
