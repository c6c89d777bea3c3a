# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What ran: counts per op, implementation and reason, and warnings once per call site.

A count is one *traced call site*: a call inside ``jit`` counts once per trace (not per execution),
a scan's body once, an eager call every time. Backward passes count under ``<op>_backward``.
"""

from __future__ import annotations

import collections
import contextlib
import os
import sys
import threading
import warnings
from typing import Any

import jax

from jax_flux import errors

_lock = threading.Lock()
_counts: collections.Counter[tuple[str, str, str]] = collections.Counter()
_warned: set[tuple[str, int, str, str]] = set()
# Frames that are no call site: ours, and JAX's between a wrapper or a backward pass and its caller.
_INSIDE = (
    os.path.dirname(os.path.abspath(__file__)) + os.sep,
    os.path.dirname(os.path.abspath(jax.__file__)) + os.sep,
    contextlib.__file__,
)


def record(op: str, implementation: str, reason: str) -> None:
    """Counts one traced call site of ``op`` that took ``implementation`` because of ``reason``."""
    with _lock:
        _counts[(op, implementation, reason)] += 1


def amend(op: str, reason: str) -> None:
    """Moves the newest fused count of ``op`` to XLA: a transform took the kernel away again."""
    with _lock:
        for key in reversed(list(_counts)):
            if key[:2] == (op, "fused") and _counts[key] > 0:
                _counts[key] -= 1
                _counts[(op, "xla", reason)] += 1
                return


def stats() -> dict[str, dict[str, Any]]:
    """Counts the traced call sites of every op by the implementation they took.

    Returns:
      ``{op: {"fused": int, "xla": int, "reasons": {reason: int}}}`` for each op traced since the
      start of the process or the last :func:`stats_reset`. One call inside ``jit`` counts once
      per trace, whatever the number of executions; a backward pass counts under
      ``"<op>_backward"`` (not that of ``implementation="xla"``, which is JAX's own). Where a
      program is lowered for another platform than that of its mesh, the counts speak of the mesh.

    Example:
      >>> stats_reset()
      >>> stats()
      {}
    """
    table: dict[str, dict[str, Any]] = {}
    with _lock:
        for (op, implementation, reason), count in sorted((+_counts).items()):
            row = table.setdefault(op, {"fused": 0, "xla": 0, "reasons": {}})
            row[implementation] += count
            row["reasons"][reason] = row["reasons"].get(reason, 0) + count
    return table


def stats_reset() -> None:
    """Sets every count of :func:`stats` to zero and lets each call site warn again.

    Example:
      >>> stats_reset()
    """
    with _lock:
        _counts.clear()
        _warned.clear()


def warn_once(op: str, reason: str) -> None:
    """Warns that ``op`` fell back to XLA, once per call site (file and line of the user's code).

    Why by hand: Python's own once-per-location registry is emptied whenever any filter changes,
    as every ``catch_warnings`` block does.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    site = (frame.f_code.co_filename, frame.f_lineno, op, reason)
    with _lock:
        if site in _warned:
            return
        _warned.add(site)
    text = errors.message(
        op,
        f"the fused kernel cannot run here ({reason})",
        "implementation=None then takes the XLA reference: same result, communication exposed",
        'Pass implementation="xla" to silence this, or see jax_flux.explain for what is supported',
    )
    warnings.warn(text, errors.FallbackWarning, stacklevel=level)
