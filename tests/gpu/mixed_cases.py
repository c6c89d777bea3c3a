# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""A few rounds of `python -m jax_flux stress`, as every rank runs them."""

from __future__ import annotations

import jax

from jax_flux.tools import stress


def mixed(seed: int, rounds: int, burst: int) -> dict[str, int]:
    """What ran; a result that is wrong raises with seed, round and calls."""
    loop = stress.Loop(jax.devices(), seed, "full", burst)
    for number in range(rounds):
        loop.round(number)
    return dict(loop.counts)
