# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Files on the command line: ``~`` as in ``--json=~/f.json``, which no shell expands; where to.

A run's file is tried with `complaint` before anything is measured, and written with `write`; what
goes wrong later all the same, such as a full disk, is told with `told` and ends no run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping

_OPEN = re.compile(r"/dev/(stdin|stdout|stderr|fd/.*)|/proc/(self|\d+)/fd/.*")


def path(text: str) -> pathlib.Path:
    """argparse's type of a file or folder; ``~`` and ``~user`` at its start are homes."""
    try:
        return pathlib.Path(text).expanduser()
    except RuntimeError as error:  # no such user
        raise argparse.ArgumentTypeError(f"{text}: {error}") from error


def complaint(
    flag: str, file: pathlib.Path | None, *, writes: bool = True, makes_folders: bool = False
) -> str | None:
    """Why nothing can be written to ``file``, in words; None where something can.

    Args:
      flag: the flag that names the file.
      file: None where the flag is left out.
      writes: whether this process will write; only then a file beside it is made, and removed.
      makes_folders: whether its folder will be made where it is missing.
    """
    if file is None:
        return None
    given = f"{flag} {file}"
    try:
        if _OPEN.match(str(file.absolute())):
            return f"{given}: that is what is open already, name a file"
        folder = file.absolute().parent
        while makes_folders and not folder.exists():
            folder = folder.parent
        if not folder.is_dir():
            return f"{given}: {folder} is no folder, so name a file in a folder that exists"
        if file.is_dir():
            return f"{given}: that is a folder, name a file"
        if file.exists() and not file.is_file():
            return f"{given}: that is a device or a pipe, which the file would replace; name a file"
        if writes:
            with _beside((folder / file.name).resolve()) as trial:
                trial.write_bytes(b"\n")  # a full disk takes the name and refuses the byte
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a link to itself
        return (
            f"{given}: nothing can be written there ({_why(error)}); "
            "name a file in a folder that takes new files"
        )
    return None


def write(file: pathlib.Path, put: Callable[[pathlib.Path], object]) -> None:
    """Replaces ``file`` in one step by what ``put`` writes: a reader sees the old or the new.

    A link stays one; the file that it points to is replaced.

    Raises:
      OSError: it cannot be written; an old file stays as it is.
    """
    target = file.resolve()
    with _beside(target) as part:
        put(part)
        part.replace(target)


def write_text(file: pathlib.Path, text: str) -> None:
    """`write` of a text."""
    write(file, lambda part: part.write_text(text, encoding="utf-8"))


def told(tool: str, outputs: Mapping[str, Callable[[], object]]) -> bool:
    """Writes each output, whatever becomes of the others; whether all were written.

    An OSError is told on stderr, and the run goes on.
    """
    good = True
    for what, put in outputs.items():
        try:
            put()
        except OSError as error:
            good = False
            print(
                f"jax_flux {tool}: {what} could not be written: {_why(error)}. "
                "Make room, or name another place.",
                file=sys.stderr,
                flush=True,
            )
    return good


@contextlib.contextmanager
def _beside(file: pathlib.Path) -> Iterator[pathlib.Path]:
    """The file through which this process writes ``file``; afterwards it is gone."""
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        yield part
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
