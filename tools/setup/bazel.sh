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
# Bazel's client reaches its server over the loopback device, which a network jail may lack.
batch=""
"$python" -I -c '
import socket
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname(), timeout=5)
' >/dev/null 2>&1 || batch=--batch
# The deadline is generous: a cold build compiles every kernel.
exec timeout "${BAZEL_TIMEOUT_S:-3600}" env $bazel --output_user_root="$root/build/bazel" $batch "$command" \
  --repo_env=JAX_FLUX_PYTHON="$python" --color=no --curses=no --noshow_progress "$@" </dev/null
