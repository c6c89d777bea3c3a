# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""How far two reports are apart: the ratios to XLA, which machines and minutes change the least."""

from __future__ import annotations

import pathlib
import statistics
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.gpu_report import record as records
from jax_flux.tools import targets

BAR = 0.03  # two runs of the same code ought to agree within this


def ratios(record: Mapping[str, Any]) -> dict[str, float]:
    """How many times faster than the faster XLA each fused row and block is."""
    found = {}
    for part, bench in records.benches(record):
        for row in bench["rows"]:
            entries = row["implementations"]
            ours, best = entries.get("jax_flux", {}), targets.fastest_xla(entries)
            # Where the op took XLA the ratio is one of a program to itself.
            if best is not None and ours.get("ran") == "fused" and "median_s" in ours:
                found[f"{part['name']} {row['name']}"] = best / ours["median_s"]
    for name, block in record["block"].items():
        for contender, entry in block["contenders"].items():
            if "speed_up" in entry:
                found[f"{name} {contender}"] = entry["speed_up"]
    return found


def spread(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[float, str, float, float]]:
    """(relative difference, what, ratio in a, ratio in b) of what both have, worst first."""
    first, second = ratios(a), ratios(b)
    both = [(abs(first[k] / second[k] - 1), k, first[k], second[k]) for k in first if k in second]
    return sorted(both, reverse=True)


def main(first: pathlib.Path, second: pathlib.Path) -> int:
    """Prints the spread; 0 where every ratio agrees within the bar."""
    try:
        a, b = records.read(first), records.read(second)
    except (OSError, ValueError) as error:
        print(f"gpu-report --compare: {error}", file=sys.stderr)
        return 1
    if not (a["real"] and b["real"]):
        print("gpu-report --compare: ranks shared a GPU, so there is no speed to compare")
        return 1
    for key in ("code", "gpus"):
        if a[key] != b[key]:
            print(f"note: {key} differs: {a[key]} and {b[key]}")
    rows = spread(a, b)
    if not rows:
        print("gpu-report --compare: the reports have no fused row in common")
        return 1
    beyond = [row for row in rows if row[0] > BAR]
    width = max(len(name) for _, name, *_ in rows)
    for difference, name, one, other in rows:
        mark = "  beyond the bar" if difference > BAR else ""
        print(f"{name:{width}s}  {one:7.3f}  {other:7.3f}  {difference:6.1%}{mark}")
    middle = statistics.median(row[0] for row in rows)
    print(
        f"{len(rows)} ratios to XLA in both: median difference {middle:.1%}, largest "
        f"{rows[0][0]:.1%}; {len(beyond)} beyond {BAR:.0%}"
    )
    return 1 if beyond else 0
