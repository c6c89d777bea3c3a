#!/bin/sh
# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

# Puts the native library into jax_flux/. Normally Bazel builds it. With OFFLINE=1 the library that
# was carried here wins, then the one in a wheel under dist/, then that of an installed wheel, and
# only then is it built.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
library=jax_flux/_native.abi3.so

if [ "${OFFLINE:-}" = 1 ]; then
  if [ -e "$library" ]; then
    echo "OFFLINE=1: using the native library that is here ($library)"
    exit 0
  fi
  for wheel in dist/jax_flux-*.whl; do
    [ -e "$wheel" ] || continue
    echo "OFFLINE=1: taking the native library from $wheel"
    exec "$PY" -c '
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel, open(sys.argv[2], "wb") as out:
    out.write(wheel.read(sys.argv[2]))
' "$wheel" "$library"
  done
  # -I: what is installed, not this checkout. Another version is refused when it is loaded.
  installed=$("$PY" -I -c '
import importlib.util, os, sys
spec = importlib.util.find_spec("jax_flux")
for folder in spec.submodule_search_locations if spec else ():
    path = os.path.join(folder, os.path.basename(sys.argv[1]))
    if os.path.exists(path):
        print(path)
        break
' "$library")
  if [ -n "$installed" ]; then
    echo "OFFLINE=1: taking the native library of the installed wheel ($installed)"
    cp -f "$installed" "$library"
    exit 0
  fi
  echo "OFFLINE=1: no $library, no dist/jax_flux-*.whl and no installed wheel, so it is built here"
  "$PY" tools/setup/check_environment.py build || {
    echo "Or build it elsewhere (make wheel) and copy dist/jax_flux-*.whl into dist/ here." >&2
    exit 1
  }
else
  tools/setup/environment.sh build
fi

tools/setup/bazel.sh build //cuda/ffi:_native.abi3.so
built=bazel-bin/cuda/ffi/_native.abi3.so
# A copy only where it changed, and by rename: a running Python keeps the file it has mapped.
if ! cmp -s "$built" "$library"; then
  cp -f "$built" "$library.new"
  chmod 755 "$library.new"
  mv -f "$library.new" "$library"
  echo "built $library"
fi
