# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The fused kernels in preset mode under compute-sanitizer: one rank whose flags are all up.

The tool may run one kernel at a time, so only preset mode fits it. What the tool says where it does
not start is the skip's reason.
"""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests.conftest import gpus

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILT = "bazel-bin/benchmarks/native/libpreset.so"
BUILD = "tools/setup/bazel.sh build //benchmarks/native:libpreset.so"


@pytest.fixture(scope="module")
def library():
    """Path of the preset library, from ``JAX_FLUX_PRESET`` or Bazel's output."""
    if not gpus():
        pytest.skip("needs 1 GPU of compute capability 9.0 or newer")
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch, whose matmul preset mode is checked against")
    path = pathlib.Path(os.environ.get("JAX_FLUX_PRESET", ROOT / BUILT))
    if not path.exists():
        pytest.skip(
            f"needs the preset library {path.name}: run {BUILD}, or name it in JAX_FLUX_PRESET"
        )
    return path


@pytest.fixture(scope="module")
def sanitizer(library):
    """The tool, once it has run the smallest program."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not pathlib.Path(tool).exists():
        pytest.skip("needs compute-sanitizer, which comes with the CUDA toolkit")
    program = "import torch; torch.zeros(1, device='cuda').add_(1); torch.cuda.synchronize()"
    command = [tool, "--error-exitcode", "9", sys.executable, "-c", program]
    try:
        trial = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("needs a compute-sanitizer that starts: it hung on one kernel for 120 s")
    if trial.returncode != 0:
        said = " ".join((trial.stdout + trial.stderr).split())[-300:]
        pytest.skip(f"needs a compute-sanitizer that starts; it said: {said}")
    return tool


# What distinguishes the code of kernels; each part runs in every dtype and layout there is of it.
SHAPES = (
    "128x192x64_pp_c2x1",
    "128x192x64_pp_c1x2",
    "128x256x64_co_c2x1",
    "128x128x64_co_c1x1_s2_pack",
    "128x192x64_co_c1x1_s2_pack",
    "128x192x64_co_c2x1_s1_pack",
)
PARTS = (f"{SHAPES[0]}_plain", *(f"{shape}_{op}" for shape in SHAPES for op in ("ag", "rs")))


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("check", ["memcheck", "synccheck"])
def test_preset_kernels_are_clean(sanitizer, library, check, part):
    command = [sanitizer, "--tool", check, "--target-processes", "all", "--error-exitcode", "9"]
    command += [sys.executable, "benchmarks/native/preset.py", str(library), "check", part]
    command += ["--seconds", "240"]
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=550, check=False, cwd=ROOT
    )
    text = run.stdout + run.stderr
    assert run.returncode == 0, text[-3000:]
    assert "failed: []" in text and "ERROR SUMMARY: 0 errors" in text, text[-3000:]
    assert "check: 0 of 0" not in text, text
