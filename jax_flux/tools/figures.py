# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of `bench`: seconds in, figures out; pure, so that made-up times test it.

ECT   = t - t_gemm                   exposed communication; t_gemm: XLA's unsplit dot, same run
E     = 1 - ECT_fused / ECT_xla      1: all hidden; 0: as XLA; below 0: worse
limit = max(flops / peak, wire bytes / link rate)
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from jax_flux.tools.cases import Case


def median(samples: Sequence[float]) -> float:
    """The middle of the repetitions."""
    return statistics.median(samples)


def ect(t: float, t_gemm: float) -> float:
    """Exposed communication time, negative where the op beats the bare matmul."""
    return t - t_gemm


def efficiency(ect_fused: float, ect_xla: float) -> float | None:
    """E; None where XLA exposes nothing, so that there is nothing to hide."""
    return None if ect_xla <= 0 else 1 - ect_fused / ect_xla


def limit(flops: float, peak: float, wire: float, rate: float | None) -> tuple[float, str]:
    """(seconds, "gemm" or "link"): no implementation on this machine is faster."""
    gemm, link = flops / peak, wire / rate if rate else 0.0
    return (gemm, "gemm") if gemm >= link else (link, "link")


def peak_of(dot: float, rows: Iterable[tuple[float, float]]) -> float:
    """FLOP/s: the large dot's, or that of the fastest bare matmul, given as (flops, seconds)."""
    return max([dot, *(flops / t for flops, t in rows)])


def finish(
    rows: Sequence[dict[str, Any]], dot: float, rate: float | None, *, real: bool
) -> dict[str, Any]:
    """Adds every figure to the measured rows and returns the run's ceilings.

    Args:
      rows: of `measure.row`: "flops", "wire_bytes" and ``implementations[name]`` with "samples_s"
        (or an "error"), the bare matmul under "gemm".
      dot: measured FLOP/s of the large dot.
      rate: measured bytes/s of the link, each direction.
      real: ranks have a GPU each, so that E means something.
    """
    measured: list[tuple[float, float]] = []
    for row in rows:
        for entry in row["implementations"].values():
            if "samples_s" in entry:
                entry["median_s"] = median(entry["samples_s"])
        gemm = row["implementations"].get("gemm", {})
        if "median_s" in gemm:
            measured.append((row["flops"], gemm["median_s"]))
    peak = peak_of(dot, measured)
    for row in rows:
        _figures(row, peak, rate, real)
    return {"peak_flops": peak, "large_dot_flops": dot, "link_bytes_per_s": rate}


def _figures(row: dict[str, Any], peak: float, rate: float | None, real: bool) -> None:
    row["limit_s"], row["bound"] = limit(row["flops"], peak, row["wire_bytes"], rate)
    entries = row["implementations"]
    t_gemm = entries.get("gemm", {}).get("median_s")
    t_xla = entries.get("xla", {}).get("median_s")
    for name, entry in entries.items():
        t = entry.get("median_s")
        if t is None:
            continue
        entry["fraction_of_limit"] = row["limit_s"] / t
        if name == "gemm" or t_gemm is None:
            continue
        entry["ect_s"] = ect(t, t_gemm)
        if name.startswith("xla") or t_xla is None:
            continue
        entry["speed_up"] = t_xla / t
        # An op that took XLA after all hides nothing: its E would be noise.
        if real and entry.get("ran") != "xla":
            entry["E"] = efficiency(entry["ect_s"], ect(t_xla, t_gemm))


def chain_length(case: Case, world: int, itemsize: int, *, small: bool) -> int:
    """Dependent ops in one call, for about 6 ms of work: the host's share drowns in them."""
    if small:
        return 2
    expected = case.flops / 700e12 + case.wire_bytes(world, itemsize) / 350e9 + 40e-6
    return max(4, min(24, round(6e-3 / expected)))
