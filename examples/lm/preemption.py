# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""SIGTERM, the notice of schedulers before they take a machine away: one step at which all stop."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

import jax
from jax.experimental import multihost_utils

STATUS = 128 + signal.SIGTERM  # 143, the exit status that a shell gives to a process ended so


@contextlib.contextmanager
def notice(start: int) -> Iterator[Callable[[int], bool]]:
    """Yields step -> whether to stop after it, because SIGTERM has come to some process.

    Every process must ask after every step from ``start`` + 1 on. All get the same answer: of
    several, the step is one that none had passed when the signal came (``jax.distributed`` listens
    for it, from its initialisation on, and agrees on it). After the last question SIGTERM ends the
    process at once, one that came in between too.
    """
    if jax.distributed.is_initialized():
        reached = multihost_utils.reached_preemption_sync_point
        # They agree on the step after the last that any has asked for. A signal that came earlier,
        # while a resumed run restored its state, was agreed on one of these; all of them are
        # asked, by every process alike, and the first step then ends the run.
        early = [step for step in range(start + 1) if reached(step)]
        try:
            yield lambda step: reached(step) or bool(early)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return
    came: list[int] = []
    told = False

    def stop(_: int) -> bool:
        nonlocal told
        told = told or bool(came)
        return told

    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)
        if came and not told:
            os.kill(os.getpid(), signal.SIGTERM)
