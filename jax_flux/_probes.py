# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the checks of _ffi.py ask the machine. Nothing here runs at import or on a CPU.

Each probe is a field of `Probes`, so that tests inject answers this hardware cannot give.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.metadata
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any

import jax

from jax_flux import errors


def _load_native() -> Any:
    from jax_flux import _native

    return _native


def _jaxlib_version() -> tuple[int, ...]:
    import jaxlib

    return tuple(int(part) for part in re.findall(r"\d+", jaxlib.__version__)[:3])


def _ffi_api() -> tuple[int, int]:
    """FFI API version of the installed jaxlib, read from the headers that it ships."""
    header = pathlib.Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    text = header.read_text()
    found = [re.search(rf"#define XLA_FFI_API_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR")]
    if found[0] is None or found[1] is None:
        raise errors.NativeError(f"{header} does not state the FFI API version.")
    return int(found[0].group(1)), int(found[1].group(1))


def _nccl_version() -> tuple[int, int, int] | None:
    """Version of the NCCL that JAX has loaded, or will load; None where there is none.

    Never loads one itself: two NCCLs can meet in one process. Before the first collective JAX may
    not have loaded it yet; then the version is that of the installed wheel.
    """
    try:
        library = ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        version = ctypes.c_int(0)
        if library.ncclGetVersion(ctypes.byref(version)) == 0:
            code = version.value
            return code // 10000, code % 10000 // 100, code % 100
    except OSError:
        pass
    for wheel in ("nvidia-nccl-cu13", "nvidia-nccl-cu12"):
        try:
            numbers = [int(v) for v in re.findall(r"\d+", importlib.metadata.version(wheel))[:3]]
        except importlib.metadata.PackageNotFoundError:
            continue
        return numbers[0], numbers[1], numbers[2]
    return None


def _pairs_without_peer_access() -> list[tuple[int, int]]:
    """Pairs of this process's GPUs that cannot read each other's memory.

    Returns [] where cuda.bindings or the driver is missing: the runtime asks NCCL again.
    """
    try:
        from cuda.bindings import runtime

        ordinals = sorted({d.local_hardware_id for d in jax.local_devices(backend="cuda")})
        bad = []
        for a in ordinals:
            for b in ordinals:
                if a != b:
                    error, possible = runtime.cudaDeviceCanAccessPeer(a, b)
                    if int(error) == 0 and not possible:
                        bad.append((a, b))
        return bad
    except (ImportError, RuntimeError):
        return []


@dataclasses.dataclass(frozen=True)
class Probes:
    """What the checks ask the machine; a test replaces a field to inject an answer."""

    load_native: Callable[[], Any] = _load_native
    jaxlib_version: Callable[[], tuple[int, ...]] = _jaxlib_version
    ffi_api: Callable[[], tuple[int, int]] = _ffi_api
    nccl_version: Callable[[], tuple[int, int, int] | None] = _nccl_version
    pairs_without_peer_access: Callable[[], list[tuple[int, int]]] = _pairs_without_peer_access
    register_target: Callable[..., None] = jax.ffi.register_ffi_target
