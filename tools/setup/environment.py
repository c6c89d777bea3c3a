# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes .venv and installs parts: the names of lock files, or "package" for jax_flux itself.

A part is done when .venv/.stamps/PART holds the hash of what it was installed from, so a second
run starts nothing and needs no network. Standard library only.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
import venv

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
VENV = os.path.join(ROOT, ".venv")
STAMPS = os.path.join(VENV, ".stamps")
PYTHON = os.path.join(VENV, "bin", "python")
LOCK_DEADLINE_S = 3600
INSTALL_DEADLINE_S = 3600

NETWORK_HELP = """\
The pinned packages could not be installed. If the message above speaks of connections, this step
needs the package index once; afterwards it does not. Behind a mirror, set PIP_INDEX_URL. On a
machine without any network, use an interpreter that has the packages:
  make PYTHON=/path/to/python OFFLINE=1 <target>"""

PACKAGE_HELP = """\
jax_flux itself could not be installed into .venv; the message above comes from hatchling, which
reads pyproject.toml. `make clean` removes a damaged .venv."""


@contextlib.contextmanager
def exclusive():
    """Two makes at once install one after the other."""
    os.makedirs(os.path.join(ROOT, "build"), exist_ok=True)
    with open(os.path.join(ROOT, "build", "setup.lock"), "w") as handle:
        deadline = time.monotonic() + LOCK_DEADLINE_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    sys.exit("Another make has been installing for an hour; end it and try again.")
                time.sleep(0.5)
        yield


def sources(part):
    """Files whose content decides whether a part is up to date."""
    if part == "package":
        return [os.path.join(ROOT, "pyproject.toml"), os.path.join(ROOT, "jax_flux", "_version.py")]
    return [os.path.join(ROOT, "requirements", part + ".lock")]


def digest(part):
    total = hashlib.sha256()
    for path in sources(part):
        with open(path, "rb") as handle:
            total.update(handle.read())
    return total.hexdigest()


def stamped(part):
    try:
        with open(os.path.join(STAMPS, part)) as handle:
            return handle.read()
    except FileNotFoundError:
        return None


def pip(*arguments):
    command = [PYTHON, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    environment = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")
    }
    environment["PIP_NO_WARN_SCRIPT_LOCATION"] = "1"
    environment["PIP_ROOT_USER_ACTION"] = "ignore"
    try:
        return subprocess.run(
            command, env=environment, cwd=ROOT, timeout=INSTALL_DEADLINE_S
        ).returncode
    except subprocess.TimeoutExpired:
        print("pip did not finish within %d s." % INSTALL_DEADLINE_S, file=sys.stderr)
        return 1


def make_venv():
    # The stamp is the path: an environment whose checkout was moved is made again.
    if os.path.exists(PYTHON) and stamped("venv") == VENV:
        return
    print("making .venv with %s (Python %s)" % (sys.executable, sys.version.split()[0]), flush=True)
    shutil.rmtree(VENV, ignore_errors=True)
    venv.create(VENV, with_pip=True, symlinks=True)
    os.makedirs(STAMPS)
    mark("venv", VENV)


def mark(part, text):
    with open(os.path.join(STAMPS, part), "w") as handle:
        handle.write(text)


def install(part):
    wanted = digest(part)
    if stamped(part) == wanted:
        return
    start = time.monotonic()
    if part == "package":
        print("installing jax_flux (editable)", flush=True)
        # No isolation: hatchling comes from the lock, so this step needs no network.
        status = pip(
            "install", "-qq", "--no-deps", "--no-index", "--no-build-isolation", "--editable", ROOT
        )
    else:
        print("installing requirements/%s.lock" % part, flush=True)
        status = pip(
            "install", "-qq", "--progress-bar=off", "--only-binary=:all:", "-r", sources(part)[0]
        )
    if status != 0:
        sys.exit(PACKAGE_HELP if part == "package" else NETWORK_HELP)
    mark(part, wanted)
    print("  done in %.0f s" % (time.monotonic() - start), flush=True)


def main():
    with exclusive():
        make_venv()
        for part in sys.argv[1:]:
            install(part)


if __name__ == "__main__":
    main()
