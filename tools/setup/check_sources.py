# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checks every source file that git knows: licence header, line endings, no tabs; for `make lint`.

With ``--clang-format PROGRAM`` it also checks (or with ``--fix`` rewrites) the C++ files' format.
"""

import argparse
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NOTICE = ("Copyright 2026 The jax_flux Authors.", "SPDX-License-Identifier: Apache-2.0")
CPP = (".h", ".cc", ".cu", ".cuh")
SOURCES = (*CPP, ".py", ".bzl", ".sh", ".lds")
NAMES = ("BUILD", "WORKSPACE", "Makefile", "pyproject.toml", ".bazelrc", ".ruff.toml")


def tracked():
    """Paths that git tracks or would track; without git, every file outside ignored folders."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
        return sorted({path for path in listing.split("\0") if path})
    except (OSError, subprocess.CalledProcessError):
        paths = []
        for folder, folders, names in os.walk(ROOT):
            folders[:] = [
                f
                for f in folders
                if not f.startswith((".", "bazel-")) and f not in ("build", "dist")
            ]
            paths += [os.path.relpath(os.path.join(folder, name), ROOT) for name in names]
        return sorted(paths)


def complaints(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as handle:
        text = handle.read()
    head = text.splitlines()[:5]
    for line in NOTICE:
        if not any(line in have for have in head):
            yield "%s:1: the licence header lacks %r" % (path, line)
    if text and not text.endswith("\n"):
        yield "%s: no newline at the end" % path
    for number, line in enumerate(text.splitlines(), 1):
        if line != line.rstrip():
            yield "%s:%d: trailing blanks" % (path, number)
        if "\t" in line and os.path.basename(path) != "Makefile":
            yield "%s:%d: tab" % (path, number)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clang-format", metavar="PROGRAM")
    parser.add_argument("--fix", action="store_true")
    options = parser.parse_args()
    paths = [path for path in tracked() if os.path.isfile(os.path.join(ROOT, path))]
    sources = [path for path in paths if path.endswith(SOURCES) or os.path.basename(path) in NAMES]
    problems = [problem for path in sources for problem in complaints(path)]
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    failed = bool(problems)
    cpp = [path for path in sources if path.endswith(CPP)]
    if options.clang_format and cpp:
        mode = ["-i"] if options.fix else ["--dry-run", "--Werror"]
        failed |= (
            subprocess.run([options.clang_format, "--style=file", *mode, *cpp], cwd=ROOT).returncode
            != 0
        )
    if failed:
        sys.exit("make lint: see above; `make format` mends the format.")
    print("%d source files: licence and format are in order" % len(sources))


if __name__ == "__main__":
    main()
