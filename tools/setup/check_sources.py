# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checks every file that git knows, for `make lint`: licence headers, blanks, links in documents.

With ``--clang-format PROGRAM`` it also checks (or with ``--fix`` rewrites) the C++ files' format.
"""

import argparse
import os
import re
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


def dead_ends(path):
    """Links to files that are not there, and make targets that the Makefile does not have."""
    with open(os.path.join(ROOT, "Makefile"), encoding="utf-8") as handle:
        targets = set(re.findall(r"^([a-z0-9-]+):", handle.read(), re.MULTILINE))
    with open(os.path.join(ROOT, path), encoding="utf-8") as handle:
        lines = handle.read().splitlines()
    for number, line in enumerate(lines, 1):
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", line):
            beside = os.path.join(ROOT, os.path.dirname(path), link)
            if "://" not in link and not link.startswith("mailto:") and not os.path.exists(beside):
                yield "%s:%d: links to %s, which does not exist" % (path, number, link)
        for target in re.findall(r"`make ([a-z][a-z0-9-]*)`", line):
            if target not in targets:
                yield "%s:%d: the Makefile has no target %s" % (path, number, target)


def clang_format(program, mode, paths):
    """True if every file has the house format."""
    try:
        return subprocess.run([program, "--style=file", *mode, *paths], cwd=ROOT).returncode == 0
    except FileNotFoundError:
        print("%s is not installed: pip install clang-format==14.0.6" % program, file=sys.stderr)
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clang-format", metavar="PROGRAM")
    parser.add_argument("--fix", action="store_true")
    options = parser.parse_args()
    paths = [path for path in tracked() if os.path.isfile(os.path.join(ROOT, path))]
    sources = [path for path in paths if path.endswith(SOURCES) or os.path.basename(path) in NAMES]
    problems = [problem for path in sources for problem in complaints(path)]
    problems += [problem for path in paths if path.endswith(".md") for problem in dead_ends(path)]
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    failed = bool(problems)
    cpp = [path for path in sources if path.endswith(CPP)]
    if options.clang_format and cpp:
        mode = ["-i"] if options.fix else ["--dry-run", "--Werror"]
        failed |= not clang_format(options.clang_format, mode, cpp)
    if failed:
        sys.exit("make lint: see above; `make format` mends the format.")
    print("%d source files: licence and format are in order" % len(sources))


if __name__ == "__main__":
    main()
