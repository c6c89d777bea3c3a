# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs the processes of one part and leaves none behind, whatever happens.

Each process leads a session of its own. This process adopts orphans (Linux's child subreaper), so
that ranks which a test put into sessions of their own are found as well; and each process is told
by the kernel to end when this one dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence

GRACE_S = 20.0  # for the other ranks once one has failed
TERM_S = 5.0  # between SIGTERM and SIGKILL
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True)


class Stopped(BaseException):
    """The whole run was told to end (SIGTERM, SIGINT)."""


def adopt_orphans() -> None:
    """From now on processes whose parents died become this one's children."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def stop_on_signals() -> None:
    """SIGTERM and SIGINT raise Stopped in the main thread, so that what runs is ended."""

    def stop(number: int, _: object) -> None:
        raise Stopped(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(
    commands: Sequence[Sequence[str]],
    environment: Mapping[str, str],
    folder: pathlib.Path,
    root: pathlib.Path,
    limit_s: float,
) -> tuple[str, int | None]:
    """Runs the commands at once; ("held" | "failed" | "killed", first bad exit status).

    Output goes to ``folder / "<process>.log"``. "killed": the limit was reached. Once one process
    has failed the others have a grace to say so themselves.
    """
    folder.mkdir(parents=True, exist_ok=True)
    running: list[subprocess.Popen[bytes]] = []
    end, reached = time.monotonic() + limit_s, False
    try:
        for process, command in enumerate(commands):
            with (folder / f"{process}.log").open("wb") as log:
                running.append(
                    subprocess.Popen(
                        command,
                        cwd=root,
                        env={**os.environ, **environment},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                        preexec_fn=_die_with_parent,
                    )
                )
        failed = False
        while any(child.poll() is None for child in running):
            if not failed and any(child.poll() not in (None, 0) for child in running):
                failed, end = True, min(end, time.monotonic() + GRACE_S)
            if time.monotonic() > end:
                reached = not failed
                break
            time.sleep(0.1)
        codes = [child.poll() for child in running]
    finally:
        end_all()
    bad = next((code for code in codes if code), None)
    if reached:
        return "killed", None
    if bad is None and None not in codes:
        return "held", 0
    return "failed", bad


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def end_all() -> None:
    """Ends every descendant of this process: SIGTERM, then SIGKILL until none is left."""
    left = descendants()
    for pid in left:
        _kill(pid, signal.SIGTERM)
    end = time.monotonic() + TERM_S
    while descendants() and time.monotonic() < end:
        time.sleep(0.05)
    # A process in the driver may take a while to go; it cannot be waited for without an end.
    end = time.monotonic() + 30
    while (left := descendants()) and time.monotonic() < end:
        for pid in left:
            _kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def descendants() -> list[int]:
    """Live processes below this one; reaps the dead."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    parents: dict[int, list[int]] = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents.setdefault(int(parent), []).append(int(entry.name))
    found, queue = [], [os.getpid()]
    while queue:
        below = parents.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
