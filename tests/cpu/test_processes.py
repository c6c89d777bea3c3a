# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The helpers of tests that start several processes."""

from __future__ import annotations

import random
import socket

from tests.processes import free_port, own_words

TO, OF = " is connected to ", " peer ranks. Expected number of connected peer ranks is : "
PIECES = ["[Gloo] Rank ", "1", TO, "1", OF, "1", "\n"]  # as Gloo writes them


def test_greetings_are_not_a_processs_own_words_even_in_pieces():
    greeting = "".join(PIECES)
    for seed in range(100):
        turns = random.Random(seed).sample([0, 1] * len(PIECES), 2 * len(PIECES))
        threads = [iter(PIECES), iter(PIECES)]
        mixed = "".join(next(threads[turn]) for turn in turns)
        assert own_words(f"{greeting}step 1: loss 2\n{mixed}") == "step 1: loss 2", mixed
    assert own_words("Traceback\n  line 1\n") == "Traceback\n  line 1"


def test_no_port_is_given_twice_nor_one_in_use():
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        port = busy.getsockname()[1]
        assert free_port(port) != port
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == len(ports) and max(ports) < 28_000
