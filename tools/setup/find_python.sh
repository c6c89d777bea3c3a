#!/bin/sh
# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

# Prints the path of a Python that can carry the environment: CPython 3.12 to 3.14 with venv and
# pip's bootstrap. Looks at $1 alone if given, else on PATH, in pyenv's versions and among uv's
# Pythons. When there is none it says where it looked and what to install.
set -u
looked=""

# Answers "ok", or why this interpreter will not do. A pyenv shim of an unset version fails here.
judge() {
  "$1" -I -c '
import sys, sysconfig
if not (3, 12) <= sys.version_info[:2] <= (3, 14):
    print("Python %d.%d, need 3.12 to 3.14" % sys.version_info[:2])
elif sys.implementation.name != "cpython":
    print("not CPython")
elif sysconfig.get_config_var("Py_GIL_DISABLED"):
    print("free-threaded build, which the limited API does not serve")
else:
    try:
        import ensurepip, venv
    except ImportError:
        print("has no ensurepip (Debian and Ubuntu: apt-get install python%d.%d-venv)" % sys.version_info[:2])
    else:
        print("ok")
' 2>/dev/null </dev/null || echo "does not start"
}

try() {
  [ -x "$1" ] || return 0
  verdict=$(judge "$1")
  if [ "$verdict" = ok ]; then
    # The real file, not a shim: a virtual environment keeps this path for ever.
    "$1" -I -c 'import sys; print(sys.executable)'
    exit 0
  fi
  looked="$looked
  $1: $verdict"
}

if [ $# -gt 0 ] && [ -n "$1" ]; then
  given=$(command -v "$1" 2>/dev/null) || given=$1
  [ -e "$given" ] || looked="
  $1: no such file"
  try "$given"
  echo "PYTHON=$1 cannot be used:$looked" >&2
  exit 1
fi

for name in python3.12 python3.13 python3.14 python3 python; do
  old_ifs=$IFS IFS=:
  for folder in $PATH; do
    IFS=$old_ifs
    try "$folder/$name"
  done
  IFS=$old_ifs
done

# HOME may be empty or another user's: the password database knows the home of this user.
home=$(getent passwd "$(id -u)" 2>/dev/null | cut -d: -f6)
roots=""
for root in "${PYENV_ROOT:-}" "${HOME:+$HOME/.pyenv}" "${home:+$home/.pyenv}" /opt/pyenv; do
  case "$root" in /?*) roots="$roots $root" ;; esac
done
for minor in 12 13 14; do
  for root in $roots; do
    for python in "$root"/versions/3.$minor*/bin/python3; do try "$python"; done
  done
done

uv=$(command -v uv 2>/dev/null) || uv=""
for candidate in "${HOME:+$HOME/.local/bin/uv}" "${home:+$home/.local/bin/uv}"; do
  [ -z "$uv" ] && [ -x "$candidate" ] && uv=$candidate
done
if [ -n "$uv" ]; then
  python=$("$uv" python find --offline --no-project '>=3.12,<3.15' 2>/dev/null) && try "$python"
fi
for root in "${UV_PYTHON_INSTALL_DIR:-}" "${XDG_DATA_HOME:+$XDG_DATA_HOME/uv/python}" \
  "${HOME:+$HOME/.local/share/uv/python}" "${home:+$home/.local/share/uv/python}"; do
  case "$root" in /?*) ;; *) continue ;; esac
  roots="$roots $root"
  for minor in 12 13 14; do
    for python in "$root"/cpython-3.$minor*/bin/python3; do try "$python"; done
  done
done

cat >&2 <<END
No CPython 3.12 to 3.14 found; jax 0.11 needs one.
Looked on PATH ($PATH)
for python3.12, python3.13, python3.14, python3 and python, in these folders of pyenv and uv:
 $roots
and asked ${uv:-for uv (not installed)}. What was there:${looked:- nothing}
Install one of:
  Debian and Ubuntu   apt-get install python3.12 python3.12-venv python3.12-dev
  pyenv               pyenv install 3.12
  uv                  uv python install 3.12
or name one: make PYTHON=/path/to/python3.12 ...
END
exit 1
