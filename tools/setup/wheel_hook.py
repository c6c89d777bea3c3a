# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hatchling hook: puts the native library into the wheel and tags the wheel by what it needs.

The library is built against CPython's limited API of 3.12 (tag cp312-abi3). The platform tag is
the newest glibc symbol version that the library names. Without a library the wheel is pure Python:
every op then runs through its reference.
"""

import os
import re

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = "jax_flux/_native.abi3.so"


def glibc_minor(path):
    """Newest 2.x among the GLIBC_2.x version names in the library's string table."""
    with open(path, "rb") as handle:
        minors = [int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)", handle.read())]
    if not minors:
        raise RuntimeError(
            "%s names no glibc symbol version: is it an x86-64 Linux library?" % path
        )
    return max(minors)


class NativeLibraryHook(BuildHookInterface):
    """Called by hatchling for every wheel; an editable install takes the library in place."""

    def initialize(self, version, build_data):
        path = os.path.join(self.root, LIBRARY)
        if version == "editable" or not os.path.exists(path):
            return
        build_data["pure_python"] = False
        build_data["tag"] = "cp312-abi3-manylinux_2_%d_x86_64" % glibc_minor(path)
        build_data["force_include"][path] = LIBRARY
