#!/bin/sh
# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

# Runs Bazel with the build environment's Python: bazel.sh COMMAND ARGUMENTS...
# Bazel keeps its output below build/, so it needs no HOME and `make clean` finds it.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
bazel=$("$root/tools/setup/find_bazel.sh")
case "${PY:-.venv/bin/python}" in
  /*) python=$PY ;;
  */*) python=$root/${PY:-.venv/bin/python} ;;
  *) python=$(command -v "$PY") ;;
esac
command=$1
shift
cd "$root"
# The deadline is generous: a cold build compiles every kernel.
exec timeout "${BAZEL_TIMEOUT_S:-3600}" env $bazel --output_user_root="$root/build/bazel" "$command" \
  --repo_env=JAX_FLUX_PYTHON="$python" --color=no --curses=no --noshow_progress "$@" </dev/null
