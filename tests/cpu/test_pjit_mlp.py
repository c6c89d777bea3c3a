# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""examples/pjit_mlp.py: both versions run and agree, and differ in the lines that the docs show."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path

import numpy as np
import pytest

import jax_flux
from tests import documents
from tests.cpu import programs

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "pjit_mlp.py"
PAGES = [ROOT / "README.md", ROOT / "docs" / "pjit.md"]


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("pjit_mlp", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def losses(example):
    """Losses of 15 steps of both versions on dp = 2 x tp = 4."""
    mesh = programs.make_mesh((2, 4), ("dp", "tp"))
    flags = example.parse(["--steps", "15"])
    return {
        version: example.train(flags, getattr(example, f"{version}_mlp"), mesh)
        for version in ("pjit", "flux")
    }


def test_both_versions_agree_at_every_step(losses):
    np.testing.assert_allclose(losses["flux"], losses["pjit"], rtol=1e-4)


def test_the_student_learns(losses):
    assert losses["flux"][-1] < 0.5 * losses["flux"][0]


@pytest.mark.parametrize(
    "flags, op_counts", [([], set()), (["--jax-flux"], {"ag_matmul", "matmul_rs"})], ids=str
)
def test_the_flag_decides_which_version_runs(flags, op_counts, example, capsys):
    sizes = ["--steps", "1", "--batch", "2", "--seq", "8", "--width", "8", "--hidden", "16"]
    assert example.main([*sizes, *flags]) == 0
    assert "{'dp': 2, 'tp': 4}" in capsys.readouterr().out
    used = {op for op, ways in jax_flux.stats().items() if any(ways.values())}
    assert op_counts == used - {f"{op}_backward" for op in op_counts}


def test_bf16_runs(example, capsys):
    sizes = ["--steps", "2", "--batch", "4", "--seq", "8", "--width", "8", "--hidden", "16"]
    assert example.main([*sizes, "--jax-flux", "--dtype", "bfloat16", "--tp", "2"]) == 0
    assert "'tp': 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flags, text",
    [
        (["--tp", "3"], "--tp 3 does not divide the 8 devices"),
        (["--batch", "3"], "--batch 3 does not split into 2 parts"),
        (["--seq", "6"], "--seq 6 does not split into 4 parts"),
        (["--hidden", "18"], "--hidden 18 does not split into 4 parts"),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_are_said_in_words(flags, text, example, capsys):
    assert example.main(flags) == 2
    assert text in capsys.readouterr().err


def diffs(page):
    """The diff blocks of a page that are about this example."""
    mark = f"file={SCRIPT.relative_to(ROOT)}"
    return [block.code for block in documents.blocks(page) if block.mark == mark]


def test_the_diff_in_the_docs_is_that_of_the_script(example):
    body = lambda version: [
        line.strip() for line in inspect.getsource(getattr(example, f"{version}_mlp")).splitlines()
    ]
    before, after = body("pjit"), body("flux")
    script = SCRIPT.read_text().splitlines()
    assert diffs(ROOT / "docs" / "pjit.md")
    for page in PAGES:
        for block in diffs(page):
            lines = block.splitlines()
            removed = {line[1:].strip() for line in lines if line.startswith("-")}
            added = {line[1:].strip() for line in lines if line.startswith("+")}
            assert removed and removed <= set(before) - set(after)
            assert {line for line in added if not line.startswith("import")} == {
                line for line in set(after) - set(before) if line.startswith(("h =", "y ="))
            }
            assert {line for line in added if line.startswith("import")} <= set(script)
            assert len(added) == 3
