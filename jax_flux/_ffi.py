# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The native library: load, check versions, register targets once, say why it cannot run.

Nothing here runs at import or on a CPU: the first CUDA lowering (or `register`) does. Each probe is
a field of `Probes`, so that tests inject answers this hardware cannot give.
Route: _primitives.py (CUDA lowering) -> here -> the handlers in cuda/ffi.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import pathlib
import re
import threading
from collections.abc import Callable
from typing import Any

import jax

from jax_flux import _version, errors
from jax_flux._plan import Installed, Instance

MIN_JAXLIB = (0, 11, 2)
MIN_FFI_API = (0, 4)
NCCL_TRIED = ((2, 28, 0), (2, 30, 7))
PLATFORM = "CUDA"

_lock = threading.RLock()
_state: dict[str, Any] = {"registered": None, "installed": None}


# ---- probes ----------------------------------------------------------------------------------


def _load_native() -> Any:
    from jax_flux import _native  # type: ignore[attr-defined]

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
    """Version of the NCCL that JAX already loaded; None where none is loaded. Never loads one."""
    try:
        library = ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None
    version = ctypes.c_int(0)
    if library.ncclGetVersion(ctypes.byref(version)) != 0:
        return None
    code = version.value
    return code // 10000, code % 10000 // 100, code % 100


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


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _error(given: str, rule: str, remedy: str) -> errors.NativeError:
    return errors.NativeError(errors.message("jax_flux", given, rule, remedy))


def _check_jaxlib(probes: Probes) -> None:
    jaxlib, api = probes.jaxlib_version(), probes.ffi_api()
    if jaxlib < MIN_JAXLIB or api < MIN_FFI_API:
        raise _error(
            f"jaxlib {_dotted(jaxlib)} has FFI API {_dotted(api)}",
            f"The kernels need FFI API {_dotted(MIN_FFI_API)} and its collectives extension, "
            f"which jaxlib has since {_dotted(MIN_JAXLIB)}",
            f"Install jaxlib>={_dotted(MIN_JAXLIB)},<0.13",
        )


def _check_native(probes: Probes) -> Any:
    try:
        native = probes.load_native()
    except ImportError as error:
        raise _error(
            f"the native library jax_flux/_native.abi3.so is missing or does not load ({error})",
            "The fused kernels live in it",
            "Build it with `make native`, or install a wheel made by `make wheel`",
        ) from error
    versions = native.versions()
    if versions["library"] != _version.__version__:
        raise _error(
            f"the native library is version {versions['library']}, "
            f"the Python package {_version.__version__}",
            "They exchange attributes whose meaning belongs to one version",
            "Rebuild with `make native`, or reinstall the wheel",
        )
    built, api = (versions["ffi_api_major"], versions["ffi_api_minor"]), probes.ffi_api()
    if built[0] != api[0] or built[1] > api[1]:
        raise _error(
            f"the native library was built for FFI API {_dotted(built)}, jaxlib has {_dotted(api)}",
            "XLA rejects a handler of a newer FFI API and may take the whole backend down with it",
            "Rebuild with `make native` in this environment, or install a newer jaxlib",
        )
    if not all(hasattr(native, name) for name in ("registrations", "instances", "last_failure")):
        raise _error(
            "the native library lists no kernels",
            "It was built before they were",
            "Rebuild with `make native`, or reinstall the wheel",
        )
    return native


def _check_nccl(probes: Probes) -> None:
    version = probes.nccl_version()
    oldest, newest = NCCL_TRIED
    if version is None:
        raise _error(
            "no libnccl.so.2 is loaded in this process",
            "The kernels reach their peers through the NCCL that JAX itself uses, and never load "
            "a second one",
            f"Install nvidia-nccl-cu13 ({_dotted(oldest)} to {_dotted(newest)}) beside "
            "jax[cuda13] and initialise JAX's CUDA backend first",
        )
    if not oldest <= version <= newest:
        raise _error(
            f"NCCL {_dotted(version)} is loaded",
            f"The kernels were tried with NCCL {_dotted(oldest)} to {_dotted(newest)} and rely on "
            "its symmetric windows",
            f"Install nvidia-nccl-cu13 within {_dotted(oldest)} to {_dotted(newest)}",
        )


def _check_peers(probes: Probes) -> None:
    bad = probes.pairs_without_peer_access()
    if bad:
        raise _error(
            f"GPUs without peer access to each other: {bad}",
            "The kernels store straight into their peers' memory",
            "Run on GPUs joined by NVLink (see `nvidia-smi topo -p2p r`), or pass "
            'implementation="xla"',
        )


# ---- registration ----------------------------------------------------------------------------


def register(probes: Probes = Probes()) -> None:
    """Checks versions and registers the native library's FFI targets; again is a no-op.

    The first CUDA lowering does this by itself. Call it to see early, and in words, what is
    missing. It touches no GPU by itself but asks JAX for its CUDA devices.

    Raises:
      NativeError: jaxlib's FFI API is too old, the native library is missing or of another
        version, NCCL is missing or outside the tried range, or GPUs lack peer access.
    """
    with _lock:
        if _state["registered"] is not None:
            return
        _check_jaxlib(probes)
        native = _check_native(probes)
        _check_nccl(probes)
        _check_peers(probes)
        for target, stages in native.registrations().items():
            probes.register_target(target, stages, platform=PLATFORM)
        _state["registered"] = native


def _read_instances(native: Any) -> tuple[Instance, ...]:
    """The library's kernels. Row: name, op, dtype, layout, tile (m, n), cluster, transport."""
    rows = []
    for row in native.instances():
        tile, cluster = tuple(row["tile"])[:2], tuple(row["cluster"])[:2]
        rows.append(
            Instance(
                name=row["name"],
                op=row["op"],
                dtype=row["dtype"],
                layout=row["layout"],
                tile=(int(tile[0]), int(tile[1])),
                cluster=(int(cluster[0]), int(cluster[1])),
                transport=row.get("transport", "tma"),
            )
        )
    return tuple(rows)


def installed(probes: Probes = Probes()) -> Installed:
    """The kernels that can run in this process, or why none can; decided once per process."""
    with _lock:
        if _state["installed"] is None:
            try:
                register(probes)
                _state["installed"] = Installed(_read_instances(_state["registered"]))
            except errors.NativeError as error:
                _state["installed"] = Installed(problem=str(error).rstrip("."))
        answer: Installed = _state["installed"]
        return answer


def compiled(probes: Probes = Probes()) -> Installed:
    """The kernels that the native library was compiled with, without asking for GPUs or NCCL."""
    try:
        return Installed(_read_instances(_check_native(probes)))
    except errors.NativeError as error:
        return Installed(problem=str(error).rstrip("."))


def targets() -> tuple[str, ...]:
    """Names of every FFI target that a program of this version may call, for `jax.export`."""
    return tuple(f"jax_flux_{op}_v1" for op in ("ag_matmul", "matmul_rs", "all_gather_copy"))


def last_failure() -> str | None:
    """The record of the last missed deadline in this process, as a sentence; None where none.

    A kernel that waits longer than ``JAX_FLUX_TIMEOUT_S`` (default 600 s) for a peer stops with
    XLA's own error; this says which op, rank, peer and chunk it was waiting for.

    Example:
      >>> print(last_failure())
      None
    """
    native = _state["registered"]
    return None if native is None else native.last_failure()


def reset_for_tests() -> None:
    """Forgets what was decided (registered targets stay registered in XLA)."""
    with _lock:
        _state.update(registered=None, installed=None)
