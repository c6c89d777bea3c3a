# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Real text that every machine has: the source files of the Python standard library."""

import dataclasses
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Text = NDArray[np.uint8]

# Test suites repeat themselves, installed packages differ from machine to machine.
SKIPPED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
)
HELD_OUT_ONE_IN = 16


class NoTextError(Exception):
    """The machine's Python does not have enough source text."""


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Two byte strings with no file in common, and where they are from."""

    train: Text
    held_out: Text
    origin: str


def load_corpus(seq: int, *, max_bytes: int = 8 << 20, folder: Path | None = None) -> Corpus:
    """Reads ``.py`` files in a fixed order until ``max_bytes`` are in hand.

    A file is held out if the CRC-32 of its relative path is a multiple of 16: the split depends on
    names alone, so it is the same on every run and stays put when files are added.

    Args:
        seq: bytes per sequence; both parts hold at least 16 of them.
        max_bytes: where reading stops.
        folder: where to look; None is the standard library of this Python.

    Raises:
        NoTextError: too little source text (a Python shipped as an archive or as bytecode only).
    """
    folder = folder or Path(sysconfig.get_path("stdlib"))
    train, held_out, total_bytes = bytearray(), bytearray(), 0
    files = 0
    for name, text in _source_files(folder):
        part = train if zlib.crc32(name.encode()) % HELD_OUT_ONE_IN else held_out
        part += text[: max_bytes - total_bytes]
        total_bytes, files = len(train) + len(held_out), files + 1
        if total_bytes == max_bytes:
            break
    if min(len(train), len(held_out)) <= 16 * seq:
        raise NoTextError(
            f"{files} source files under {folder} give {len(train)} bytes to train on and"
            f" {len(held_out)} held out; both must exceed 16 sequences of {seq} bytes. Use a"
            " shorter --seq, or a Python that ships its standard library as source files."
        )
    return Corpus(
        train=np.frombuffer(train, np.uint8),
        held_out=np.frombuffer(held_out, np.uint8),
        origin=f"{files} files under {folder}",
    )


def _source_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yields (relative name, content), opening a file only when it is asked for."""
    for parent, folders, files in folder.walk():
        folders[:] = sorted(set(folders) - SKIPPED_FOLDERS)  # walk() descends into these only
        for path in (parent / name for name in sorted(files) if name.endswith(".py")):
            yield path.relative_to(folder).as_posix(), path.read_bytes()


def sample_batch(
    text: Text, batch: int, seq: int, *, seed: int, step: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Cuts ``batch`` windows out of the text; the same (seed, step) gives the same windows.

    Returns:
        (inputs, targets), both [batch, seq]; targets are the inputs one byte later.
    """
    starts = np.random.default_rng([seed, step]).integers(0, len(text) - seq, size=batch)
    windows = text[starts[:, None] + np.arange(seq + 1)].astype(np.int32)
    return windows[:, :-1], windows[:, 1:]
