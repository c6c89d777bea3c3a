# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The documents do what they say: their Python runs, and the files and names they name exist.

The ```` ```python ```` blocks of one document share a namespace and run in order. A block marked
```` ```python processes=2 ```` is a script of its own, run by that many processes with the number
of each and the coordinator's address as arguments.
"""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import jax_flux

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
ROOMS = ("jax_flux", "cuda", "bazel", "tests", "examples", "benchmarks", "docs", "tools")
SOURCES = (".py", ".cc", ".h", ".cu", ".cuh", ".bzl", ".sh")
FENCE = re.compile(r"^```(\S*)[ ]*(.*)\n((?:.*\n)*?)^```[ ]*$", re.MULTILINE)
DEADLINE_S = 180


class Block(NamedTuple):
    path: Path
    line: int
    code: str
    processes: int  # 0: runs here, with the document's other blocks

    @property
    def where(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def blocks(path: Path) -> list[Block]:
    """The document's Python, in order."""
    text = path.read_text()
    found = []
    for match in FENCE.finditer(text):
        language, options, code = match.groups()
        if language != "python":
            continue
        line = text.count("\n", 0, match.start()) + 2
        count = re.fullmatch(r"processes=(\d+)", options)
        assert count or not options, f"{path}:{line}: unknown mark {options!r}"
        found.append(Block(path, line, code, int(count.group(1)) if count else 0))
    return found


def prose(path: Path) -> str:
    """The document without its fenced blocks."""
    return FENCE.sub("", path.read_text())


def _ids(paths):
    return [str(path.relative_to(ROOT)) for path in paths]


WITH_PYTHON = [path for path in DOCUMENTS if any(not b.processes for b in blocks(path))]
SCRIPTS = [block for path in DOCUMENTS for block in blocks(path) if block.processes]


@pytest.mark.parametrize("path", WITH_PYTHON, ids=_ids(WITH_PYTHON))
def test_python_of_a_document_runs(path):
    namespace: dict[str, object] = {"__name__": "document"}
    for block in blocks(path):
        if not block.processes:
            # Blank lines in front: a traceback then points into the document.
            code = compile("\n" * (block.line - 1) + block.code, str(path), "exec")
            exec(code, namespace)


@pytest.mark.parametrize("block", SCRIPTS, ids=[block.where for block in SCRIPTS])
def test_script_of_a_document_runs_in_several_processes(block, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(block.code)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
    env = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    env |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    running = [
        subprocess.Popen(
            [sys.executable, str(script), str(process), str(block.processes), coordinator],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for process in range(block.processes)
    ]
    try:
        outputs = [process.communicate(timeout=DEADLINE_S)[0] for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
            process.stdout.close()
    assert [process.returncode for process in running] == [0] * block.processes, outputs


def _names_a_file(word: str) -> bool:
    """Whether a word in backticks is meant as a path of this repository."""
    return re.fullmatch(rf"({'|'.join(ROOMS)})(/[\w.+-]+)*/?", word) is not None and "/" in word


@pytest.mark.parametrize("path", DOCUMENTS, ids=_ids(DOCUMENTS))
def test_files_that_a_document_names_exist(path):
    words = re.findall(r"`([^`\s]+)`", prose(path))
    built = ("jax_flux/_native.abi3.so",)
    missing = [w for w in words if _names_a_file(w) and w not in built and not (ROOT / w).exists()]
    assert missing == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=_ids(DOCUMENTS))
def test_public_names_that_a_document_uses_exist(path):
    names = set(re.findall(r"`jax_flux\.([A-Za-z]\w*)", prose(path)))
    unknown = [name for name in sorted(names) if not hasattr(jax_flux, name)]
    assert [name for name in unknown if importlib.util.find_spec(f"jax_flux.{name}") is None] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=_ids(DOCUMENTS))
def test_our_environment_variables_that_a_document_names_exist(path):
    code = [ROOT / "Makefile"]
    for room in ROOMS:
        code += [file for file in (ROOT / room).rglob("*") if file.suffix in SOURCES]
    known = set()
    for file in code:
        if file != Path(__file__):
            known |= set(re.findall(r"JAX_FLUX_[A-Z_]+", file.read_text()))
    assert set(re.findall(r"JAX_FLUX_[A-Z_]+", path.read_text())) <= known
