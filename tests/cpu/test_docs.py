# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The documents do what they say: their Python runs, and the files and names they name exist.

How a block is marked: tests/documents.py.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jax_flux
from tests.documents import DOCUMENTS, MARKS, ROOT, all_blocks, blocks, ids, prose
from tests.processes import free_port

ROOMS = ("jax_flux", "cuda", "bazel", "tests", "examples", "benchmarks", "docs", "tools")
SOURCES = (".py", ".cc", ".h", ".cu", ".cuh", ".bzl", ".sh")
DEADLINE_S = 180
SCRIPTS = [block for block in all_blocks() if block.processes]
QUOTES = [block for block in all_blocks() if block.mark.startswith("file=")]


def _runs(block) -> bool:
    return (block.language == "python" and not block.processes) or block.mark == "runs"


WITH_PYTHON = [path for path in DOCUMENTS if any(_runs(block) for block in blocks(path))]


def test_every_fence_is_of_a_kind_that_is_checked():
    unknown = [
        f"{block.where}: ```{block.language} {block.mark}"
        for block in all_blocks()
        if re.fullmatch(MARKS.get(block.language, "never"), block.mark) is None
    ]
    assert unknown == []


@pytest.mark.parametrize("path", WITH_PYTHON, ids=ids(WITH_PYTHON))
def test_python_of_a_document_runs(path):
    namespace: dict[str, object] = {"__name__": "document"}
    for block in blocks(path):
        if _runs(block):
            # Blank lines in front: a traceback then points into the document.
            above = "\n" * (block.line - 1)
            code = block.code
            if block.mark == "runs":
                compile(above + block.side("-"), str(path), "exec")
                code = block.side("+")
            exec(compile(above + code, str(path), "exec"), namespace)


@pytest.mark.parametrize("block", SCRIPTS, ids=[block.where for block in SCRIPTS])
def test_script_of_a_document_runs_in_several_processes(block, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(block.code)
    coordinator = f"127.0.0.1:{free_port()}"
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


@pytest.mark.parametrize("block", QUOTES, ids=[block.where for block in QUOTES])
def test_lines_that_a_document_quotes_stand_in_the_file(block):
    source = (ROOT / block.mark.removeprefix("file=")).read_text()
    lines = {line.strip() for line in source.splitlines()}
    quoted = [line[1:].strip() for line in block.code.splitlines() if line[:1] in "+-"]
    assert quoted
    assert [line for line in quoted if line not in lines] == []


def _names_a_file(word: str) -> bool:
    """Whether a word in backticks is meant as a path of this repository."""
    return re.fullmatch(rf"({'|'.join(ROOMS)})(/[\w.+-]+)*/?", word) is not None and "/" in word


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids(DOCUMENTS))
def test_files_that_a_document_names_exist(path):
    words = re.findall(r"`([^`\s]+)`", prose(path))
    built = ("jax_flux/_native.abi3.so",)
    missing = [w for w in words if _names_a_file(w) and w not in built and not (ROOT / w).exists()]
    assert missing == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids(DOCUMENTS))
def test_public_names_that_a_document_uses_exist(path):
    names = set(re.findall(r"`jax_flux\.([A-Za-z]\w*)", prose(path)))
    unknown = [name for name in sorted(names) if not hasattr(jax_flux, name)]
    assert [name for name in unknown if importlib.util.find_spec(f"jax_flux.{name}") is None] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids(DOCUMENTS))
def test_our_environment_variables_that_a_document_names_exist(path):
    code = [ROOT / "Makefile"]
    for room in ROOMS:
        code += [file for file in (ROOT / room).rglob("*") if file.suffix in SOURCES]
    known = set()
    for file in code:
        if file != Path(__file__):
            known |= set(re.findall(r"JAX_FLUX_[A-Z_]+", file.read_text()))
    assert set(re.findall(r"JAX_FLUX_[A-Z_]+", path.read_text())) <= known


def test_documents_that_the_sources_name_exist():
    missing = []
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*")):
            if file.suffix in SOURCES:
                named = set(re.findall(r"\bdocs/[\w/]+\.(?:md|rst)\b", file.read_text()))
                missing += [f"{file}: {page}" for page in named if not (ROOT / page).exists()]
    assert missing == []
