# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sizes of GPUs on CPU devices take hours: that is said before they start, and wants a flag."""

from __future__ import annotations

import argparse

from jax_flux.tools.group import Group

# Measured: 1.5e10 in bf16, 2.3e10 in f32, four devices on two cores of a server CPU.
CPU_FLOP_PER_S = 1e10
LONG_S = 600.0


def add_flag(parser: argparse.ArgumentParser) -> None:
    """``--slow``."""
    parser.add_argument(
        "--slow", action="store_true", help="run sizes that take hours on CPU devices there too"
    )


def refusal(ranks: Group, flop: float, what: str, instead: str) -> str | None:
    """Why work is not started on CPU devices without ``--slow``; None on GPUs, or if it is short.

    Args:
      ranks: the devices.
      flop: floating-point operations of all devices together, repeats included.
      what: the work, in a few words.
      instead: what to give for a short run.
    """
    seconds = flop / CPU_FLOP_PER_S
    if ranks.on_gpu or seconds <= LONG_S:
        return None
    long = f"{seconds / 3600:.0f} hours" if seconds >= 7200 else f"{seconds / 60:.0f} minutes"
    return (
        f"JAX runs on {ranks.mesh.size} CPU devices, where {what} would take about {long} "
        f"({flop:.1e} FLOP with all contenders and repeats) for times that say nothing about GPUs. "
        f"{instead}, or --slow to run it all the same. `python -m jax_flux doctor` says why JAX "
        "sees no GPU."
    )
