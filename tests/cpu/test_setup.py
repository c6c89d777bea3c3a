# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Set-up scripts: what is missing gets a sentence that says what to install."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETUP = ROOT / "tools" / "setup"
CONFTEST = ROOT / "tests" / "conftest.py"


def script(path: Path, text: str) -> Path:
    """An executable shell script."""
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def run(*command, env=None, cwd=ROOT) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=env,
        cwd=cwd,
    )


def bare_path(folder: Path, *programs: str) -> dict[str, str]:
    """An environment whose PATH holds nothing but the named programs and a home without Pythons."""
    folder.mkdir(exist_ok=True)
    for name in programs:
        (folder / name).symlink_to(shutil.which(name))
    # The password database would name the real home, with its pyenv.
    script(folder / "getent", "exit 1\n")
    return {"PATH": str(folder), "HOME": str(folder / "home")}


def test_find_python_takes_an_interpreter_from_pyenv_when_path_has_none(tmp_path):
    env = bare_path(tmp_path / "bin", "sh", "id", "cut", "dirname", "cat")
    versions = tmp_path / "pyenv" / "versions" / "3.12.99" / "bin"
    versions.mkdir(parents=True)
    script(versions / "python3", f'exec "{sys.executable}" "$@"\n')
    found = run(SETUP / "find_python.sh", env=env | {"PYENV_ROOT": str(tmp_path / "pyenv")})
    assert found.returncode == 0, found.stderr
    assert Path(found.stdout.strip()).exists()


def test_find_python_says_where_it_looked_and_what_to_install(tmp_path):
    env = bare_path(tmp_path / "bin", "sh", "id", "cut", "dirname", "cat")
    script(tmp_path / "bin" / "python3", 'echo "Python 3.9, need 3.12 to 3.14"\n')
    found = run(SETUP / "find_python.sh", env=env)
    assert found.returncode == 1
    assert f"{tmp_path}/bin/python3: Python 3.9, need 3.12 to 3.14" in found.stderr
    assert f"{tmp_path}/bin/home/.pyenv" in found.stderr
    for remedy in ("apt-get install python3.12", "pyenv install 3.12", "uv python install 3.12"):
        assert remedy in found.stderr


def test_find_python_refuses_a_named_interpreter_with_the_reason(tmp_path):
    old = script(tmp_path / "old", 'echo "Python 3.9, need 3.12 to 3.14"\n')
    found = run(SETUP / "find_python.sh", old)
    assert found.returncode == 1
    assert f"PYTHON={old} cannot be used" in found.stderr
    assert "need 3.12 to 3.14" in found.stderr


def test_check_environment_lists_what_the_interpreter_lacks():
    checked = run(sys.executable, SETUP / "check_environment.py", "jax", "no-such-package")
    assert checked.returncode == 1
    assert "no-such-package" in checked.stderr
    assert "\n  jax" not in checked.stderr
    assert "leave OFFLINE away" in checked.stderr


def test_make_offline_without_interpreter_asks_for_one():
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHON", "MAKEFLAGS")}
    made = run("make", "OFFLINE=1", "native", env=env)
    assert made.returncode != 0
    assert "make PYTHON=/path/to/python OFFLINE=1" in made.stderr


def offline_checkout(folder: Path) -> Path:
    """A checkout with set-up scripts and an empty package, nothing built."""
    shutil.copytree(SETUP, folder / "tools" / "setup")
    (folder / "jax_flux").mkdir()
    return folder


def offline_native(folder: Path, python: object) -> subprocess.CompletedProcess:
    env = {**os.environ, "OFFLINE": "1", "PY": str(python)}
    return run(folder / "tools" / "setup" / "native.sh", env=env, cwd=folder)


def test_offline_native_keeps_the_library_that_is_there(tmp_path):
    library = offline_checkout(tmp_path) / "jax_flux" / "_native.abi3.so"
    library.write_bytes(b"carried")
    done = offline_native(tmp_path, "/no/python/is/asked")
    assert (done.returncode, library.read_bytes()) == (0, b"carried"), done.stderr
    assert "using the native library that is here" in done.stdout


def test_offline_native_comes_out_of_the_wheel_in_dist(tmp_path):
    library = offline_checkout(tmp_path) / "jax_flux" / "_native.abi3.so"
    (tmp_path / "dist").mkdir()
    with zipfile.ZipFile(tmp_path / "dist" / "jax_flux-1-cp312-abi3-any.whl", "w") as wheel:
        wheel.writestr("jax_flux/_native.abi3.so", b"from dist")
    done = offline_native(tmp_path, sys.executable)
    assert (done.returncode, library.read_bytes()) == (0, b"from dist"), done.stderr


def test_offline_native_comes_from_an_installed_wheel(tmp_path):
    library = offline_checkout(tmp_path) / "jax_flux" / "_native.abi3.so"
    venv.create(tmp_path / "venv", symlinks=True)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "jax_flux").mkdir()
    (site / "jax_flux" / "__init__.py").touch()
    (site / "jax_flux" / "_native.abi3.so").write_bytes(b"installed")
    done = offline_native(tmp_path, tmp_path / "venv" / "bin" / "python")
    assert (done.returncode, library.read_bytes()) == (0, b"installed"), done.stderr
    assert "of the installed wheel" in done.stdout


def test_find_wheels_refuses_a_version_that_is_not_the_pinned_one(tmp_path):
    (tmp_path / "build.lock").write_text("jaxlib==0.0.1 \\\n")
    found = run(sys.executable, ROOT / "bazel" / "find_wheels.py", "jaxlib", tmp_path)
    assert found.returncode == 1
    assert "pinned to 0.0.1" in found.stderr
    assert "make native" in found.stderr


def test_find_wheels_without_nanobind_names_the_wheel_and_where_it_looked(tmp_path):
    (tmp_path / "build.lock").write_text("nanobind==3.1.0\n")
    script = ROOT / "bazel" / "find_wheels.py"
    found = run(sys.executable, "-I", "-S", script, "nanobind", tmp_path)
    assert found.returncode == 1
    assert "The Python package nanobind not found" in found.stderr
    assert "looked at: " in found.stderr
    assert "nanobind==3.1.0" in found.stderr


CLEAN = """\
ptxas info    : Compiling entry function 'gemm' for 'sm_90a'
ptxas info    : Function properties for gemm
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 3 barriers
"""
SPILLED = CLEAN.replace(
    "0 bytes stack frame, 0 bytes spill", "64 bytes stack frame, 60 bytes spill"
)
SERIALISED = CLEAN + "ptxas info    : (C7510) Potential Performance Loss: wgmma serialized\n"


@pytest.mark.parametrize(
    ("output", "no_spills", "complaint"),
    [
        pytest.param(CLEAN, "1", None, id="clean"),
        pytest.param(SPILLED, "0", None, id="spill-allowed"),
        pytest.param(SPILLED, "1", "gemm: 64 bytes stack frame", id="spill"),
        pytest.param(SERIALISED, "0", "C7510", id="serialised-wgmma"),
    ],
)
def test_nvcc_wrapper_judges_what_ptxas_says(tmp_path, output, no_spills, complaint):
    (tmp_path / "said").write_text(output)
    nvcc = script(tmp_path / "nvcc", f'cat "{tmp_path}/said" >&2\n')
    done = run(ROOT / "bazel" / "nvcc.sh", tmp_path / "report", no_spills, nvcc)
    assert (done.returncode == 0) == (complaint is None), done.stderr
    assert complaint is None or complaint in " ".join(done.stderr.split())
    assert (tmp_path / "report").read_text() == output


def run_pytest(folder: Path, body: str, gpus: int) -> subprocess.CompletedProcess:
    """A pytest run under tests/conftest.py on a machine with so many GPUs."""
    (folder / "bin").mkdir()
    script(
        folder / "bin" / "nvidia-smi", 'echo "NVIDIA H200, 9.0"\n' * gpus + f"exit {gpus == 0:d}\n"
    )
    shutil.copy(CONFTEST, folder / "conftest.py")
    (folder / "test_it.py").write_text("import pytest\n" + body)
    (folder / "pytest.ini").write_text("[pytest]\n")
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    env.pop("CUDA_VISIBLE_DEVICES", None)
    env["PATH"] = f"{folder / 'bin'}:{env['PATH']}"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "."]
    return run(*command, env=env, cwd=folder)


def test_ledger_counts_skips_by_the_hardware_they_want(tmp_path):
    done = run_pytest(tmp_path, "@pytest.mark.gpus(2)\ndef test_two(): pass\n", gpus=1)
    assert done.returncode == 0, done.stdout
    assert "skipped for want of hardware" in done.stdout
    assert "1  2 GPUs of compute capability 9.0 or newer" in done.stdout


def test_ledger_runs_the_test_when_the_hardware_is_there(tmp_path):
    done = run_pytest(tmp_path, "@pytest.mark.gpus(2)\ndef test_two(): pass\n", gpus=2)
    assert "1 passed" in done.stdout


@pytest.mark.parametrize(
    ("body", "gpus", "complaint"),
    [
        pytest.param(
            "@pytest.mark.gpus(1)\ndef test_one(): pytest.skip('needs luck')\n",
            1,
            "the machine has 1 GPU",
            id="hardware-present",
        ),
        pytest.param(
            "def test_one(): pytest.skip('because')\n", 0, "must name the hardware", id="no-reason"
        ),
        pytest.param(
            "pytest.skip('all', allow_module_level=True)\ndef test_one(): pass\n",
            0,
            "whole file was skipped",
            id="whole-file",
        ),
    ],
)
def test_ledger_fails_the_run_for_a_skip_that_should_not_be(tmp_path, body, gpus, complaint):
    done = run_pytest(tmp_path, body + "def test_other(): pass\n", gpus)
    assert done.returncode != 0, done.stdout
    assert complaint in done.stdout


def test_every_requirements_file_is_locked_with_hashes_and_renewed_by_make_lock():
    renewed = (SETUP / "lock.sh").read_text()
    inputs = sorted(path.stem for path in (ROOT / "requirements").glob("*.in"))
    for name in inputs:
        lock = (ROOT / "requirements" / f"{name}.lock").read_text()
        pins = [line for line in lock.splitlines() if "==" in line and not line.startswith(" ")]
        assert pins and lock.count("--hash=sha256:") >= len(pins), name
    assert sorted(renewed.split("for name in ")[1].split(";")[0].split()) == inputs
