#!/bin/sh
# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

# Python's view of the native library, jax_flux/_native.pyi: stub.sh write | check
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
kept=jax_flux/_native.pyi
made=build/_native.pyi
mkdir -p build
{
  printf '# Copyright 2026 The jax_flux Authors.\n# SPDX-License-Identifier: Apache-2.0\n'
  printf '# Generated from the native library by `make stub`.\n'
} >"$made"
"${PY:-.venv/bin/python}" -c '
import importlib.machinery, importlib.util, sys
from nanobind.stubgen import StubGen
path, out = sys.argv[1:]
loader = importlib.machinery.ExtensionFileLoader("_native", path)
module = importlib.util.module_from_spec(importlib.util.spec_from_file_location("_native", path, loader=loader))
loader.exec_module(module)
stub = StubGen(module)
stub.put(module)
with open(out, "a") as handle:
    handle.write(stub.get().rstrip() + "\n")
' jax_flux/_native.abi3.so "$made"
case "$1" in
  write) cp "$made" "$kept" ;;
  check)
    diff -u "$kept" "$made" >&2 || {
      echo "$kept is not what the native library offers: run \`make stub\` and commit it." >&2
      exit 1
    }
    ;;
esac
