# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The NCCL with which several ranks can share one GPU."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pathlib

OLDEST_NCCL = (2, 30)
VARIABLE = "JAX_FLUX_TEST_NCCL"


def nccl() -> str | None:
    """Path of its library: ``JAX_FLUX_TEST_NCCL``, else the installed wheel's; None without."""
    given = os.environ.get(VARIABLE)
    if given:
        return given
    try:
        version = importlib.metadata.version("nvidia-nccl-cu13")
        wheel = importlib.util.find_spec("nvidia.nccl")
    except (importlib.metadata.PackageNotFoundError, ModuleNotFoundError):
        return None
    new_enough = tuple(int(part) for part in version.split(".")[:2]) >= OLDEST_NCCL
    if not new_enough or wheel is None or not wheel.submodule_search_locations:
        return None
    library = pathlib.Path(next(iter(wheel.submodule_search_locations))) / "lib" / "libnccl.so.2"
    return str(library) if library.exists() else None
