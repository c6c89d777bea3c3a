#!/bin/sh
# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

# Writes requirements/*.lock from requirements/*.in: every version and hash, for Python 3.12 and
# newer, and no index address. Order matters: each lock constrains the ones after it.
#   lock.sh UV [--upgrade]
set -eu
uv=$1
shift
cd "$(dirname "$0")/../../requirements"
for name in cpu build dev docs cuda13; do
  echo "locking $name"
  "$uv" pip compile --quiet --universal --python-version 3.12 --generate-hashes --no-strip-extras \
    --no-emit-index-url --no-emit-find-links --no-annotate --no-header \
    --output-file "$name.lock" "$name.in" "$@"
done
