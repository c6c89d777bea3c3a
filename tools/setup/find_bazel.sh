#!/bin/sh
# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

# Prints the command of a Bazel that reads this WORKSPACE: $BAZEL, else bazel or bazelisk on PATH,
# else Debian's package when root, else the npm package with the self-contained binary, unpacked
# under build/. The answer is kept in build/bazel.command, so a second run asks nobody.
# Never asks a Bazel for its version: Debian's prints none. A trial tells what is needed.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
kept=$root/build/bazel.command
npm_package=@bazel/bazel-linux_x64@2.1.0
npm_binary=$root/build/bazel-npm/package/bazel-2.1.0-linux-x86_64
looked=""
mkdir -p "$root/build"
cd "$root" || exit 1

# Reading one of our stand-in repositories shows that WORKSPACE is in force and needs no network.
works() {
  trial=$(timeout 300 env $1 --output_user_root="$root/build/bazel" query --noshow_progress \
    @remote_coverage_tools//:coverage_report_generator 2>&1 </dev/null) &&
    case $trial in *coverage_report_generator*) return 0 ;; esac
  looked="$looked
  $1: does not read this WORKSPACE ($(printf %s "$trial" | tail -n 1 | cut -c1-160))"
  return 1
}

found() {
  printf '%s\n' "$1" >"$kept"
  printf '%s\n' "$1"
  exit 0
}

if [ -n "${BAZEL:-}" ]; then
  works "$BAZEL" && { printf '%s\n' "$BAZEL"; exit 0; }
  echo "BAZEL=$BAZEL cannot be used:$looked" >&2
  exit 1
fi
if [ -r "$kept" ]; then
  command=$(cat "$kept")
  command -v "${command##* }" >/dev/null 2>&1 && { printf '%s\n' "$command"; exit 0; }
fi

bazel=$(command -v bazel 2>/dev/null) && works "$bazel" && found "$bazel"
[ -n "$bazel" ] || looked="$looked
  bazel: not on PATH"
# A bazelisk without a pin fetches the newest Bazel, which knows no WORKSPACE.
bazelisk=$(command -v bazelisk 2>/dev/null) && works "USE_BAZEL_VERSION=4.2.3 $bazelisk" &&
  found "USE_BAZEL_VERSION=4.2.3 $bazelisk"
[ -n "$bazelisk" ] || looked="$looked
  bazelisk: not on PATH"

log=$root/build/bazel-install.log
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 && [ -z "$bazel" ]; then
  echo "installing Debian's bazel-bootstrap (log: build/bazel-install.log)" >&2
  if { DEBIAN_FRONTEND=noninteractive timeout 300 apt-get -q update &&
    DEBIAN_FRONTEND=noninteractive timeout 900 apt-get -q -y --no-install-recommends install bazel-bootstrap; } \
    >"$log" 2>&1 </dev/null; then
    bazel=$(command -v bazel) && works "$bazel" && found "$bazel"
  else
    looked="$looked
  apt-get install bazel-bootstrap: $(tail -n 1 "$log")"
  fi
else
  looked="$looked
  apt-get install bazel-bootstrap: not tried (needs root and apt-get, and no other bazel on PATH)"
fi

if [ ! -x "$npm_binary" ] && command -v npm >/dev/null 2>&1; then
  echo "fetching the npm package $npm_package (log: build/bazel-install.log)" >&2
  mkdir -p "$root/build/bazel-npm"
  (cd "$root/build/bazel-npm" && npm_config_cache=$root/build/npm-cache timeout 600 npm pack --silent "$npm_package" >archive 2>"$log" </dev/null &&
    tar xzf "$(tail -n 1 archive)" && rm -f ./*.tgz archive && chmod +x "$npm_binary") ||
    looked="$looked
  npm pack $npm_package: $(tail -n 1 "$log")"
fi
if [ -x "$npm_binary" ]; then
  works "$npm_binary" && found "$npm_binary"
else
  command -v npm >/dev/null 2>&1 || looked="$looked
  npm pack $npm_package: npm is not on PATH"
fi

cat >&2 <<END
No Bazel that can build the native library. Looked for:$looked
Install one of (tested: 4.2.3 and 2.1.0; Bazel 8 and newer read no WORKSPACE):
  Debian and Ubuntu   apt-get install bazel-bootstrap
  any x86-64 Linux    npm pack $npm_package, and unpack it to build/bazel-npm
or name one: make BAZEL=/path/to/bazel ...
END
exit 1
