# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What tests share that start several processes: a port, a launch, what they said themselves."""

from __future__ import annotations

import itertools
import random
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence

# Below the ports that systems hand out by themselves, so none of those lands on a chosen one
# between the choice and its use; an order of its own keeps each process from others' choices.
_PORTS = range(12_000, 28_000)
_turn = itertools.cycle(random.SystemRandom().sample(_PORTS, len(_PORTS)))

# Gloo writes this line in pieces, and from several threads: pieces of two lines may be mixed.
_GREETING = re.compile(
    r"\[Gloo\] Rank | is connected to | peer ranks\. Expected number of connected peer ranks is : "
)


def free_port(first: int | None = None) -> int:
    """A free TCP port of this machine, another one each time; from ``first`` on where given."""
    ports = itertools.islice(_turn, len(_PORTS)) if first is None else range(first, 65536)
    for port in ports:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no free port from {first or _PORTS[0]} on")


def told_by_two(
    command: Sequence[str], env: Mapping[str, str], timeout_s: float
) -> list[tuple[str, str]]:
    """(output, errors) of both processes of a tool's command; fails where one ends badly."""
    own = [*command, "--coordinator", f"127.0.0.1:{free_port()}", "--processes", "2", "--process"]
    pipe = subprocess.PIPE
    running = [
        subprocess.Popen([*own, str(i)], env=env, stdout=pipe, stderr=pipe, text=True)
        for i in range(2)
    ]
    try:
        told = [process.communicate(timeout=timeout_s) for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], told
    return told


def own_words(log: str) -> str:
    """A process's output but for Gloo's greetings, whole or in pieces, and lines of digits."""
    lines = [_GREETING.sub("", line) for line in log.splitlines()]
    return "\n".join(line for line in lines if not re.fullmatch(r"[\d\s]*", line))
