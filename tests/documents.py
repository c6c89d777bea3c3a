# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The Markdown documents and their fenced blocks, for the tests that run them.

A fence's first word is its language, the rest its mark:

    ```python               runs, with the document's other blocks, in order, in one namespace
    ```python processes=2   a script of its own, run by that many processes
    ```diff runs            the new side runs like a python block, the old side is valid Python
    ```diff file=PATH       every line of both sides stands in that file
    ```diff sh              both sides are shell commands
    ```sh                   shell commands: they parse, and what they start exists
    ```text                 output, trees, figures; so does a fence without a language
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *(ROOT / "docs").glob("*.md")]
)
FENCE = re.compile(r"^( *)```(\S*)[ ]*(.*)\n((?:.*\n)*?)^\1```[ ]*$", re.MULTILINE)
MARKS = {
    "python": r"|processes=\d+",
    "diff": r"runs|sh|file=\S+",
    "sh": "",
    "text": "",
    "": "",
}


class Block(NamedTuple):
    """One fenced block; ``line`` is that of its first line of code."""

    path: Path
    line: int
    language: str
    mark: str
    code: str

    @property
    def where(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"

    @property
    def processes(self) -> int:
        """Of a script; 0 for everything else."""
        return int(self.mark.removeprefix("processes=")) if "processes=" in self.mark else 0

    def side(self, sign: str) -> str:
        """A diff's new ("+") or old ("-") side; the other's lines become blank."""
        lines = self.code.splitlines()
        return "\n".join(line[1:] if line[:1] in (" ", sign) else "" for line in lines) + "\n"


def blocks(path: Path) -> list[Block]:
    """The document's fenced blocks, in order."""
    text = path.read_text()
    found = []
    for match in FENCE.finditer(text):
        indent, language, mark, code = match.groups()
        line = text.count("\n", 0, match.start()) + 2
        code = re.sub(f"^{indent}", "", code, flags=re.MULTILINE)
        found.append(Block(path, line, language, mark, code))
    return found


def all_blocks() -> list[Block]:
    return [block for path in DOCUMENTS for block in blocks(path)]


def prose(path: Path) -> str:
    """The document without its fenced blocks."""
    return FENCE.sub("", path.read_text())


def ids(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]
