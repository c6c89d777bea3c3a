#!/bin/sh
# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

# Makes .venv and brings the named parts into it: environment.sh PART... (see environment.py).
# PYTHON names the interpreter to make it from; an existing .venv is kept.
set -eu
here=$(dirname "$0")
python=.venv/bin/python
if ! "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1; then
  python=$("$here/find_python.sh" "${PYTHON:-}")
fi
exec "$python" -I "$here/environment.py" "$@" </dev/null
