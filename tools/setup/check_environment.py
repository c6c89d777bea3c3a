# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checks that this interpreter can run a make target as it is (OFFLINE=1), and says what it lacks.

Usage: check_environment.py NEED..., each the name of a requirements/*.in or of one distribution.
Standard library only, and runs under Python 3.8 so that a wrong interpreter gets a sentence.
"""

import importlib.metadata
import importlib.util
import os
import re
import sys

REQUIREMENTS = os.path.join(
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "requirements"
)
# Distribution -> module, where the two differ.
MODULES = {
    "orbax-checkpoint": "orbax.checkpoint",
    "cuda-python": "cuda.bindings",
    "pytest-timeout": "pytest_timeout",
    "pytest-xdist": "xdist",
    "nvidia-cutlass": "cutlass_library",
}
# Needed only to make the environment or the locks, or replaceable by a system toolkit.
SKIPPED = ("hatchling", "uv", "clang-format")
# Without these a target runs, with less.
OPTIONAL = ("cuda-python", "pytest-timeout", "pytest-xdist")


def wanted(part):
    """(distribution, exact version or None) of the plain lines of an input file."""
    if not os.path.exists(os.path.join(REQUIREMENTS, part + ".in")):
        yield part, None
        return
    with open(os.path.join(REQUIREMENTS, part + ".in"), encoding="utf-8") as lines:
        for line in lines:
            line = line.split("#")[0].strip()
            if not line or line.startswith("-"):
                continue
            name = re.match(r"[A-Za-z0-9._-]+", line).group(0)
            version = re.search(r"==([0-9.]+)$", line)
            if name.startswith("nvidia-") and name != "nvidia-cutlass":
                continue  # the compiler and the CUDA libraries may come from the system
            yield name, version.group(1) if version and name != "jax" else None


def present(module):
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def version_of(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def main():
    if sys.version_info < (3, 12):
        sys.exit(
            "%s is Python %s; jax_flux needs Python >= 3.12."
            % (sys.executable, sys.version.split()[0])
        )
    missing, absent = [], []
    for part in sys.argv[1:]:
        for name, version in wanted(part):
            if name in SKIPPED and name != part:
                continue
            if not present(MODULES.get(name, name.replace("-", "_"))):
                (absent if name in OPTIONAL else missing).append(name)
            elif part == "build" and version and version_of(name) != version:
                missing.append("%s==%s (here: %s)" % (name, version, version_of(name)))
    if absent:
        print("OFFLINE=1: going on without %s." % ", ".join(absent))
    if missing:
        sys.exit(
            "OFFLINE=1 uses %s as it is, and it lacks:\n  %s\nInstall these into it, name another "
            "interpreter with PYTHON=, or leave OFFLINE away to make .venv from the lock files."
            % (sys.executable, "\n  ".join(missing))
        )


if __name__ == "__main__":
    main()
