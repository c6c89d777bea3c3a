# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""SIGTERM, the notice of schedulers before they take a machine away: one step at which all stop."""

import contextlib
import signal
from collections.abc import Callable, Iterator

import jax
from jax.experimental import multihost_utils

STATUS = 128 + signal.SIGTERM  # 143, the exit status that a shell gives to a process ended so


@contextlib.contextmanager
def notice() -> Iterator[Callable[[int], bool]]:
    """Yields step -> whether to stop after it, because SIGTERM has come to some process.

    Every process must ask after every step. All get the same answer: of several, the step is one
    that none had passed when the signal came (``jax.distributed`` listens for it and agrees on it).
    Outside SIGTERM ends the process at once.
    """
    if jax.distributed.is_initialized():
        try:
            yield multihost_utils.reached_preemption_sync_point
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        yield lambda _: bool(came)
    finally:
        signal.signal(signal.SIGTERM, before)
