# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The subcommands of ``python -m jax_flux``; nothing else of the package imports them."""
