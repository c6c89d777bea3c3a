# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What tests of examples/train_lm.py share: its modules, the flags of a tiny run, processes."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import jax
from jax.sharding import AxisType

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPT = EXAMPLES / "train_lm.py"
MODULES = (
    *("checkpoints", "data", "decode", "flags", "metrics", "model", "optimizer", "parity"),
    *("preemption", "processes", "ranks", "report", "rules", "training"),
)
SIZES = {"steps": 24, "batch": 8, "seq": 64, "layers": 2, "d_model": 64, "heads": 4, "lr": 1e-2}
TINY = [f"--{name.replace('_', '-')}={value}" for name, value in SIZES.items()] + ["--sample=16"]


def load() -> SimpleNamespace:
    """The example's modules; its folder is on the path only as long as they are imported."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        modules = {name: importlib.import_module(f"lm.{name}") for name in MODULES}
        script = importlib.import_module("train_lm")
        inference = importlib.import_module("tensor_parallel_inference")
        return SimpleNamespace(main=script.main, infer=inference.main, **modules)
    finally:
        sys.path.remove(str(EXAMPLES))


def environment(**values: str) -> dict[str, str]:
    """Of a process that runs the script on CPU devices which it chooses itself."""
    inherited = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    path = os.pathsep.join(sys.path)
    return inherited | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": path} | values


QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


@contextlib.contextmanager
def quick_compiler() -> Iterator[None]:
    """Without LLVM's optimisations, which would only take time; `QUICK` does it for a process."""
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", False)


def mesh(dp: int, tp: int) -> jax.sharding.Mesh:
    devices = jax.devices()[: dp * tp]
    return jax.make_mesh((dp, tp), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2, devices=devices)


def series(records: list[dict], name: str) -> dict[int, object]:
    """Values of that name by step."""
    return {record["step"]: record[name] for record in records if name in record}
