# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The native library: load, check versions, register targets once, say why it cannot run.

Nothing here runs at import or on a CPU: the first plan for a CUDA mesh (or `register`) does. What
the machine answers comes from _probes.py.
Route: _primitives.py (CUDA lowering) -> here -> the handlers in cuda/ffi.
"""

from __future__ import annotations

import threading
from typing import Any

from jax_flux import _version, errors
from jax_flux._plan import Installed, Instance
from jax_flux._probes import Probes

MIN_JAXLIB = (0, 11, 2)
MIN_FFI_API = (0, 4)
NCCL_TRIED = ((2, 28, 0), (2, 30, 7))
PLATFORM = "CUDA"
REAL = Probes()

_lock = threading.RLock()
_state: dict[str, Any] = {"registered": None, "installed": None}


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
    if not all(hasattr(native, name) for name in ("registrations", "instances", "last_failure")):
        raise _error(
            "the native library lists no kernels",
            "It was built before they were",
            "Rebuild with `make native`, or reinstall the wheel",
        )
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
    return native


def _check_nccl(probes: Probes) -> None:
    version = probes.nccl_version()
    oldest, newest = NCCL_TRIED
    if version is None:
        raise _error(
            "no libnccl.so.2 is loaded and no NCCL wheel is installed",
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


def problems(probes: Probes = REAL) -> dict[str, str | None]:
    """Every check of `register` by name with its complaint, None where it passes; for `doctor`."""
    answers: dict[str, str | None] = {}
    for name, check in (
        ("jaxlib", _check_jaxlib),
        ("native", _check_native),
        ("nccl", _check_nccl),
        ("peers", _check_peers),
    ):
        try:
            check(probes)
            answers[name] = None
        except errors.NativeError as error:
            answers[name] = str(error)
    return answers


# ---- registration ----------------------------------------------------------------------------


def register(probes: Probes = REAL) -> None:
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
    """The library's kernels. Row: name, op, dtype, layout, tile, cluster, transports, ..."""
    rows = []
    for row in native.instances():
        tile, cluster = tuple(row["tile"])[:2], tuple(row["cluster"])[:2]
        rows.append(
            Instance(
                name=row["name"],
                op=row["op"],
                dtype={"bf16": "bfloat16", "f16": "float16"}.get(row["dtype"], row["dtype"]),
                layout=row["layout"],
                tile=(int(tile[0]), int(tile[1])),
                cluster=(int(cluster[0]), int(cluster[1])),
                transports=tuple(row.get("transports", ("tma",))),
                split=int(row.get("split", 1)),
                packed=bool(row.get("packed", False)),
            )
        )
    return tuple(rows)


def installed(probes: Probes = REAL) -> Installed:
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


def compiled(probes: Probes = REAL) -> Installed:
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
