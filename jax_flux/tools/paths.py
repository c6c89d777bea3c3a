# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Files on the command line: ``~`` as in ``--json=~/f.json``, which no shell expands; where to."""

from __future__ import annotations

import argparse
import pathlib


def path(text: str) -> pathlib.Path:
    """argparse's type of a file or folder; ``~`` and ``~user`` at its start are homes."""
    try:
        return pathlib.Path(text).expanduser()
    except RuntimeError as error:  # no such user
        raise argparse.ArgumentTypeError(f"{text}: {error}") from error


def complaint(flag: str, file: pathlib.Path | None) -> str | None:
    """Why nothing can be written to ``file``, in words; None where something can."""
    if file is None or (file.absolute().parent.is_dir() and not file.is_dir()):
        return None
    return f"{flag} {file}: name a file in a folder that exists"
