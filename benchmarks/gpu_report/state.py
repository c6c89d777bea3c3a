# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What of a report is done, in a folder named by what would change it: code, machine, set-up.

A part is "held" or "failed" once it has ended by itself; then it is not run again. One that was
"killed" (its limit, or the run's) or was "running" when everything died is run again, after those
that never had their turn.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.gpu_report.parts import Part

DONE = ("held", "failed")
CODE = ("jax_flux", "benchmarks", "tests")
SUFFIXES = (".py", ".so", ".json", ".cc", ".h", ".cuh", ".cu", ".bzl")


def digest(root: pathlib.Path, folders: Iterable[str] = CODE) -> str:
    """Of the code, the native library and the recorded plans; results do not count."""
    found = hashlib.blake2b(digest_size=8)
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            inside = path.relative_to(root)
            if path.suffix not in SUFFIXES or "results" in inside.parts:
                continue
            found.update(f"{inside}\0".encode() + path.read_bytes())
    return found.hexdigest()


class State:
    """The state file of one folder; every change is on disk before it is used."""

    def __init__(self, folder: pathlib.Path, code: str) -> None:
        self.code, self.folder = code, folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path = self.folder / "state.json"
        self.parts: dict[str, dict[str, Any]] = {}
        if self._path.exists():
            self.parts = json.loads(self._path.read_text())["parts"]
        for entry in self.parts.values():
            if entry["status"] == "running":
                entry |= dict(status="killed", note="the run that it belonged to ended")

    def note(self, part: Part, **what: Any) -> None:
        """Changes what is known of a part."""
        entry = self.parts.setdefault(part.name, dict(title=part.title, kind=part.kind, attempts=0))
        entry |= what
        partial = self._path.with_suffix(".part")
        partial.write_text(json.dumps(dict(code=self.code, parts=self.parts), indent=1))
        partial.replace(self._path)

    def output(self, part: Part) -> pathlib.Path:
        """Where the part's process 0 writes."""
        suffix = ".xml" if part.kind == "tests" else ".json"
        return self.folder / f"{part.name}{suffix}"

    def due(self, parts: Sequence[Part]) -> list[Part]:
        """Parts still to run: those never tried, then those that were killed."""
        status = lambda part: self.parts.get(part.name, {}).get("status")
        left = [part for part in parts if status(part) not in DONE]
        return sorted(left, key=lambda part: self.parts.get(part.name, {}).get("attempts", 0))
