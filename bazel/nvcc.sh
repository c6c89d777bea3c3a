#!/bin/sh
# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

# Runs one nvcc compilation and judges what ptxas said about it.
#   nvcc.sh REPORT NO_SPILLS nvcc arguments...
# REPORT gets ptxas's resource lines. NO_SPILLS=1 fails the build when a kernel spills registers or
# keeps a stack frame in local memory; serialised wgmma (C7510) always fails it, because the
# result is right and several times slower.
set -u
report=$1 no_spills=$2
shift 2

"$@" >"$report" 2>&1
status=$?
if [ "$status" -ne 0 ]; then
  grep -v '^ptxas info' "$report" >&2
  echo "nvcc failed (exit $status): $*" >&2
  exit "$status"
fi
# Anything that is not a resource line is news: show it.
grep -v -e '^ptxas info' -e '^ *[0-9]* bytes stack frame' -e '^$' "$report" >&2

if grep -q 'C7510' "$report"; then
  echo "error: ptxas serialised wgmma (C7510). Look for calls or divergent control flow between wgmma" \
    "fence and wait, and keep -DNDEBUG." >&2
  exit 1
fi
if [ "$no_spills" = 1 ]; then
  awk '
    /Compiling entry function|Function properties for/ {
      match($0, /.*(for|function) /); kernel = substr($0, RLENGTH + 1)
    }
    /bytes stack frame/ && !/^ *0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads/ {
      print "error: " kernel ":" $0; bad = 1
    }
    END {
      if (bad) print "This unit is marked no_spills: use fewer live registers, or a smaller tile."
      exit bad
    }' "$report" >&2 || exit 1
fi
