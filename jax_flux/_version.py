# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The one home of the package version; the native library carries the same string."""

__version__ = "0.1.0"
