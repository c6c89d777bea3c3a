# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The parts of ``train_lm.py``: flags, data, model, training, parity, report."""
