# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Finds what the native build takes from the Python environment, for bazel/deps.bzl.

Run as ``find_wheels.py WHAT REQUIREMENTS_DIR`` with the interpreter of the build environment.
Prints ``key=value`` lines with absolute paths; on failure says where it looked and what to install.
Standard library only, and runs under Python 3.8 so that a wrong interpreter gets a sentence.
"""

import glob
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig

REMEDY = (
    "Run `make native`, which installs the pinned wheels into .venv first, or point "
    "JAX_FLUX_PYTHON at an environment that has "
)


def fail(what, looked, remedy):
    places = "\n".join("  looked at: " + place for place in looked)
    sys.exit("%s not found.\n%s\n%s" % (what, places, remedy))


def pinned(package, requirements):
    """Version of a package in the lock files: the lock is the only home of a pin."""
    for lock in sorted(glob.glob(os.path.join(requirements, "*.lock"))):
        with open(lock, encoding="utf-8") as lines:
            for line in lines:
                match = re.match(re.escape(package) + r"==([^\s;\\]+)", line)
                if match:
                    return match.group(1)
    return None


def package_dir(module, distribution, requirements):
    """Folder of an importable package whose version is the pinned one; imports nothing."""
    spec = importlib.util.find_spec(module)
    want = pinned(distribution, requirements)
    wanted = "%s%s" % (distribution, "==" + want if want else "")
    if spec is None or not spec.submodule_search_locations:
        fail("The Python package %s" % distribution, sys.path, REMEDY + wanted + ".")
    have = importlib.metadata.version(distribution)
    if want and have != want:
        sys.exit(
            "%s has %s %s, but the build is pinned to %s.\n%s"
            % (sys.executable, distribution, have, want, REMEDY + wanted + ".")
        )
    return next(iter(spec.submodule_search_locations))


def existing(path, what, remedy):
    if not os.path.exists(path):
        fail(what, [path], remedy)
    return path


def find_python(requirements):
    del requirements
    if sys.version_info < (3, 12):
        sys.exit(
            "%s is Python %s; the build needs Python >= 3.12."
            % (sys.executable, sys.version.split()[0])
        )
    paths = sysconfig.get_paths()
    looked = [paths["include"], paths["platinclude"]]
    for include in looked:
        if os.path.exists(os.path.join(include, "Python.h")):
            return {"include": include}
    fail(
        "Python.h",
        looked,
        "Install this Python's headers (Debian and Ubuntu: apt-get install python3-dev), or use a "
        "Python from uv or pyenv.",
    )


def find_jaxlib(requirements):
    root = package_dir("jaxlib", "jaxlib", requirements)
    header = os.path.join(root, "include", "xla", "ffi", "api", "collectives_api.h")
    existing(header, "XLA's FFI headers", "They are part of jaxlib >= 0.11.2.")
    return {"include": os.path.join(root, "include")}


def find_nanobind(requirements):
    root = package_dir("nanobind", "nanobind", requirements)
    existing(
        os.path.join(root, "src", "nb_combined.cpp"), "nanobind's source", "Reinstall nanobind."
    )
    return {"root": root}


def find_cutlass(requirements):
    root = os.path.join(package_dir("cutlass_library", "nvidia-cutlass", requirements), "source")
    header = os.path.join(root, "include", "cutlass", "cutlass.h")
    existing(header, "CUTLASS's headers", "Reinstall nvidia-cutlass.")
    return {
        "include": os.path.join(root, "include"),
        "util": os.path.join(root, "tools", "util", "include"),
    }


def nvcc_release(nvcc):
    try:
        text = subprocess.run(
            [nvcc, "--version"], stdout=subprocess.PIPE, timeout=60, check=True
        ).stdout.decode()
    except (OSError, subprocess.SubprocessError) as error:
        return "not runnable: %s" % error
    match = re.search(r"release (\d+\.\d+), V([\d.]+)", text)
    return match.group(2) if match else "unknown"


def cuda_candidates():
    """(nvcc, include, folders of static cudart): the pinned wheels first, then a system toolkit."""
    for entry in sys.path:
        root = os.path.join(entry, "nvidia", "cu13")
        yield (
            os.path.join(root, "bin", "nvcc"),
            os.path.join(root, "include"),
            [os.path.join(root, "lib")],
        )
    on_path = shutil.which("nvcc")
    homes = [os.path.dirname(os.path.dirname(os.path.realpath(on_path)))] if on_path else []
    homes += [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    homes += ["/usr/local/cuda-13.0", "/usr/local/cuda-13", "/usr/local/cuda"]
    for home in homes:
        libs = [os.path.join(home, "lib64"), os.path.join(home, "targets", "x86_64-linux", "lib")]
        yield os.path.join(home, "bin", "nvcc"), os.path.join(home, "include"), libs


def host_compiler():
    looked = [os.environ.get("CXX") or "g++", "g++", "c++", "clang++"]
    for name in looked:
        path = shutil.which(name)
        if path:
            return path
    fail(
        "A C++ compiler",
        looked,
        "Install g++ (Debian and Ubuntu: apt-get install g++), or set CXX.",
    )


def find_cuda(requirements):
    del requirements
    looked = []
    for nvcc, include, libs in cuda_candidates():
        if not os.path.exists(nvcc):
            looked.append(nvcc)
            continue
        release = nvcc_release(nvcc)
        static = [lib for lib in libs if os.path.exists(os.path.join(lib, "libcudart_static.a"))]
        if not release.startswith("13."):
            looked.append("%s (release %s, not 13.x)" % (nvcc, release))
        elif not os.path.exists(os.path.join(include, "cuda_runtime.h")):
            looked.append("%s (no %s/cuda_runtime.h)" % (nvcc, include))
        elif not static:
            looked.append("%s (no libcudart_static.a in %s)" % (nvcc, ", ".join(libs)))
        else:
            return {
                "nvcc": nvcc,
                "release": release,
                "include": include,
                "lib": static[0],
                "host_compiler": host_compiler(),
            }
    fail(
        "A CUDA 13 compiler",
        looked,
        REMEDY + "the wheels of requirements/build.lock, or install the CUDA 13.0 toolkit and set "
        "CUDA_HOME.",
    )


def main():
    finders = {
        "python": find_python,
        "jaxlib": find_jaxlib,
        "nanobind": find_nanobind,
        "cutlass": find_cutlass,
        "cuda": find_cuda,
    }
    what, requirements = sys.argv[1], sys.argv[2]
    for key, value in finders[what](requirements).items():
        print("%s=%s" % (key, value))


if __name__ == "__main__":
    main()
