# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Bars of every op, implementation and process model of a report."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.gpu_report import record as records
from benchmarks.gpu_report.parts import MODELS
from jax_flux.tools import report

MOST = 12  # rows in one picture


def write(record: Mapping[str, Any], folder: pathlib.Path, stem: str) -> list[str]:
    """Draws one picture per op and process model of real GPUs; their names."""
    if not record["real"] or not record["bench"]:
        return []
    if importlib.util.find_spec("matplotlib") is None:
        print("gpu-report: no pictures, matplotlib is missing", file=sys.stderr)
        return []
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for model in MODELS:
        rows = records.rows(record, model)
        for kind in ("ag", "rs", "ar"):
            own = [row for row in rows if row["name"].startswith(kind)]
            own = sorted(own, key=lambda row: row["flops"])[-MOST:]
            if not report.bars(own):
                continue
            like = next(b for part, b in records.benches(record) if part["model"] == model)
            name = f"{stem}_{model}_{kind}.png"
            report.draw({**like, "rows": own}, folder / name)
            names.append(name)
    return names
