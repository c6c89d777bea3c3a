# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The environment variables that change what an op does, and what a value of each means.

The deadlines are read by cuda/runtime/options.cc, the tuning file's by jax_flux/_tuning.py, the
others by JAX, XLA and NCCL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jax_flux import _tuning, errors
from jax_flux.tools.findings import NOTE, OK, STOP, Finding

WARN_S, TIMEOUT_S = ("JAX_FLUX_WARN_S", 30.0), ("JAX_FLUX_TIMEOUT_S", 600.0)
QUEUE_S, GRACE_S = ("JAX_FLUX_QUEUE_S", 86400.0), ("JAX_FLUX_GRACE_S", 30.0)
# NCCL without any one of these has no symmetric windows, which the kernels' workspace is made of.
WINDOW_SWITCHES = {"NCCL_CUMEM_ENABLE": "0", "NCCL_WIN_ENABLE": "0", "NCCL_P2P_DISABLE": "1"}
SHOWN = ("CUDA_VISIBLE_DEVICES", "XLA_PYTHON_CLIENT_MEM_FRACTION", "LD_PRELOAD")


def judge(environ: Mapping[str, str], *, has_gpus: bool) -> list[Finding]:
    """One finding for the deadlines, NVLS and XLA_FLAGS each, and one per other variable set."""
    found = [_deadlines(environ), _multicast(environ), _xla_flags(environ)]
    for name, off in WINDOW_SWITCHES.items():
        if environ.get(name) == off:
            text = f"{name}={off} takes NCCL's symmetric windows away"
            found.append(Finding(STOP, "environment", text, f"Unset {name}"))
    platforms = environ.get("JAX_PLATFORMS", "")
    if platforms:
        hides = has_gpus and not {"cuda", "gpu"} & set(platforms.replace(" ", "").split(","))
        text = f"JAX_PLATFORMS={platforms}"
        remedy = "It hides the GPUs from JAX: unset it, or add cuda" if hides else ""
        found.append(Finding(STOP if hides else OK, "environment", text, remedy))
    shown = [f"{name}={environ[name]}" for name in SHOWN if environ.get(name)]
    if shown:
        found.append(Finding(OK, "environment", ", ".join(shown)))
    return found


def tuning(read: Callable[[], _tuning.Tuning]) -> Finding:
    """What recorded measurements there are; a file that is refused stops every call on a GPU."""
    try:
        records = read()
    except errors.TuningError as error:
        _tuning.use(_tuning.NONE)  # so that the verdict can be asked for all the same
        given, _, rest = str(error).removeprefix("jax_flux: ").partition(". ")
        return Finding(STOP, "tuning", given[:1].upper() + given[1:], rest)
    if records.source:
        count = len(records.records)
        plural = "record" if count == 1 else "records"
        return Finding(OK, "tuning", f"{count} tuning {plural} of {records.source}")
    where = _tuning.user_file() or "switched off"
    return Finding(OK, "tuning", f"No tuning file ({where}): the cost model decides")


def seconds(environ: Mapping[str, str], variable: tuple[str, float]) -> tuple[float, str | None]:
    """(what holds, complaint) by the rule of options.cc: a number of seconds in (0, 1e9]."""
    name, otherwise = variable
    text = environ.get(name, "")
    if not text:
        return otherwise, None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if 0 < value <= 1e9:
        return value, None
    return otherwise, f"{name}={text!r} is not a number of seconds between 0 and 1e9"


def _deadlines(environ: Mapping[str, str]) -> Finding:
    every = [seconds(environ, variable) for variable in (WARN_S, TIMEOUT_S, QUEUE_S, GRACE_S)]
    (warn, _), (fail, _), *_ = every
    text = (
        f"A wait for a peer is reported after {warn:g} s ({WARN_S[0]}) "
        f"and fails after {fail:g} s ({TIMEOUT_S[0]})"
    )
    complaints = [bad for _, bad in every if bad]
    if complaints:
        remedy = f"{'; '.join(complaints)}: the default is used"
        return Finding(NOTE, "environment", text, remedy)
    if warn >= fail:
        return Finding(NOTE, "environment", text, "It fails before it warns: lower the former")
    return Finding(OK, "environment", text)


def _multicast(environ: Mapping[str, str]) -> Finding:
    value = environ.get("NCCL_NVLS_ENABLE")
    text = "NCCL_NVLS_ENABLE not set" if value is None else f"NCCL_NVLS_ENABLE={value}"
    remedy = "It concerns NCCL's own collectives: the kernels use no multicast"
    return Finding(OK, "environment", text, remedy)


def _xla_flags(environ: Mapping[str, str]) -> Finding:
    value = environ.get("XLA_FLAGS", "").strip()
    return Finding(OK, "environment", f"XLA_FLAGS={value}" if value else "XLA_FLAGS not set")
