# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The documents' shell commands parse, what they start exists, and XLA knows the flags.

Nothing of a document's shell is run but `--help` of our own scripts and tools.
"""

from __future__ import annotations

import functools
import importlib.util
import mmap
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jaxlib
import pytest

from jax_flux.__main__ import TOOLS
from tests.documents import DOCUMENTS, ROOT, Block, all_blocks, ids

SHELL = [block for block in all_blocks() if block.language == "sh" or block.mark == "sh"]
NAMES = [block.where for block in SHELL]
PYTHON = re.compile(r"(.*/)?python(3(\.\d+)?)?")
KEYWORDS = {"if", "then", "else", "fi", "do", "done", "while", "!", "{", "}", "time", "exec"}
# Programs of clusters and profilers, which a machine with these tests need not have.
ELSEWHERE = {"srun", "sbatch", "mpirun", "ssh", "nsys", "nvidia-smi"}
DEADLINE_S = 120


def sides(block: Block) -> list[str]:
    """The block as one or, for a diff, two shell programs."""
    return [block.code] if block.language == "sh" else [block.side("-"), block.side("+")]


def commands(code: str) -> list[list[str]]:
    """The simple commands of a shell program, without assignments in front and redirections."""
    code = re.sub(r"\\\n", " ", code)
    code = re.sub(r"<<-?\s*'?(\w+)'?\n.*?^\1$", "\n", code, flags=re.DOTALL | re.MULTILINE)
    found = []
    for line in code.splitlines():
        reader = shlex.shlex(line, posix=True, punctuation_chars=True)
        reader.whitespace_split = True
        current: list[str] = []
        for word in [*reader, ";"]:
            if set(word) <= set("();&|"):
                found.append(current)
                current = []
            elif current or not (word in KEYWORDS or re.match(r"\w+=", word)):
                current.append(word)
    loops = ("for", "case", "function")
    return [command for command in found if command and command[0] not in loops]


@functools.cache
def help_of(*program: str) -> str:
    """What a program of ours prints for --help."""
    asked = subprocess.run(
        [sys.executable, *program, "--help"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
    )
    assert asked.returncode == 0, asked.stderr
    return asked.stdout


def flags_unknown_to(text: str, arguments: list[str]) -> list[str]:
    flags = [word.split("=")[0] for word in arguments if word.startswith("--")]
    return [flag for flag in flags if not re.search(rf"{re.escape(flag)}\b", text)]


def python_problem(arguments: list[str]) -> str | None:
    """What is wrong with a python command line."""
    match arguments:
        case ["-m", "jax_flux", tool, *rest] if tool not in ("-h", "--help"):
            if tool not in TOOLS:
                return f"no tool {tool}"
            unknown = flags_unknown_to(help_of("-m", "jax_flux", tool), rest)
            return f"{tool} has no {unknown}" if unknown else None
        case ["-m", module, *_]:
            return None if importlib.util.find_spec(module) else f"no module {module}"
        case ["-c", code, *_]:
            compile(code, "-c", "exec")
            return None
        case [script, *rest] if script.split("/")[0] in ("examples", "benchmarks", "tools"):
            if not (ROOT / script).is_file():
                return f"no file {script}"
            unknown = flags_unknown_to(help_of(script), rest)
            return f"{script} has no {unknown}" if unknown else None
    return None  # the reader's own script


def make_problem(arguments: list[str]) -> str | None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wanted = {word for word in arguments if "=" not in word and not word.startswith("-")}
    return f"no targets {wanted - targets}" if wanted - targets else None


def problem(command: list[str]) -> str | None:
    """Why a simple command cannot be what the document means; None if it can."""
    program, *arguments = command
    if PYTHON.fullmatch(program):
        return python_problem(arguments)
    if program == "make":
        return make_problem(arguments)
    if program in ELSEWHERE or shutil.which(program):
        return None
    known = subprocess.run(["bash", "-c", f"type -t {shlex.quote(program)}"], capture_output=True)
    return None if known.stdout else f"no program {program}"


@pytest.mark.parametrize("block", SHELL, ids=NAMES)
def test_shell_of_a_document_parses(block):
    for code in sides(block):
        parsed = subprocess.run(["bash", "-n"], input=code, capture_output=True, text=True)
        assert (parsed.returncode, parsed.stderr) == (0, "")


@pytest.mark.parametrize("block", SHELL, ids=NAMES)
def test_what_a_document_starts_in_the_shell_exists(block):
    every = [command for code in sides(block) for command in commands(code)]
    assert [f"{' '.join(c)}: {why}" for c in every if (why := problem(c))] == []


@functools.cache
def xla_knows(flag: str) -> bool:
    """Whether the pinned jaxlib holds a flag of this name."""
    for library in Path(jaxlib.__file__).parent.glob("*.so*"):
        with library.open("rb") as handle:
            with mmap.mmap(handle.fileno(), 0, prot=mmap.PROT_READ) as text:
                if text.find(b"\0" + flag.encode() + b"\0") >= 0:
                    return True
    return False


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids(DOCUMENTS))
def test_xla_flags_that_a_document_names_exist(path):
    flags = sorted(set(re.findall(r"\bxla_(?:cpu|gpu|force|dump)\w*\w", path.read_text())))
    assert [flag for flag in flags if not xla_knows(flag)] == []


@pytest.mark.parametrize(
    "line, complaint",
    [
        ("make nonsense", "no targets {'nonsense'}"),
        ("A=1 python -m jax_flux nonsense", "no tool nonsense"),
        ("python -m jax_flux doctor --nonsense", "doctor has no ['--nonsense']"),
        ("python examples/nonsense.py", "no file examples/nonsense.py"),
        ("cd docs && nonsense-program | cat", "no program nonsense-program"),
        ("python train.py --anything", None),
        ("make PYTHON=/path OFFLINE=1 test-cpu  # a remark", None),
    ],
)
def test_a_wrong_command_would_be_noticed(line, complaint):
    found = [why for command in commands(line) if (why := problem(command))]
    assert found == ([complaint] if complaint else [])


def test_an_unknown_xla_flag_would_be_noticed():
    assert xla_knows("xla_gpu_enable_latency_hiding_scheduler")
    assert not xla_knows("xla_gpu_nonsense")
