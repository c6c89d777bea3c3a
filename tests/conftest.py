# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Eight host devices, the hardware marker, and the ledger of skips.

``@pytest.mark.gpus(n, capability=(9, 0))`` names the hardware a test wants. Where it is absent the
test is skipped and the ledger counts it; where it is present a skip fails the run. Any other skip
must say what hardware it wants, ``pytest.skip("needs ...")``, or it fails the run as well.
"""

import os

# Before anything imports jax: the host platform's device count is read once.
_FLAG = "--xla_force_host_platform_device_count"
if _FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}=8".strip()
# No test depends on what was tuned on this machine; those of tuning name their own files.
os.environ["JAX_FLUX_TUNING"] = "off"
# pytest-timeout reads it; every wait has a deadline, a test's too.
os.environ.setdefault("PYTEST_TIMEOUT", "600")

import collections
import functools
import shutil
import subprocess

import pytest


@functools.cache
def gpus() -> tuple[tuple[str, tuple[int, int]], ...]:
    """(name, compute capability) of each NVIDIA GPU this process may use; asks no CUDA library."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    query = [program, "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=120, check=False)
    if answer.returncode != 0:
        return ()
    found = []
    for line in answer.stdout.splitlines():
        name, _, capability = line.rpartition(",")
        major, _, minor = capability.strip().partition(".")
        found.append((name.strip(), (int(major), int(minor or 0))))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        found = found[
            : len([part for part in visible.split(",") if part.strip() not in ("", "-1")])
        ]
    return tuple(found)


if not gpus():
    os.environ.setdefault("JAX_PLATFORMS", "cpu")


def _wanted(count: int = 1, capability: tuple[int, int] = (9, 0)) -> tuple[str, bool]:
    """The hardware of a gpus marker in words, and whether this machine has it."""
    fitting = [gpu for gpu in gpus() if gpu[1] >= capability]
    noun = "GPU" if count == 1 else "GPUs"
    text = f"{count} {noun} of compute capability {capability[0]}.{capability[1]} or newer"
    return text, len(fitting) >= count


def pytest_configure(config):
    config.addinivalue_line("markers", "gpus(n, capability=(9, 0)): needs n physical GPUs")
    config.addinivalue_line("markers", "timeout(seconds): deadline of one test (pytest-timeout)")


def pytest_runtest_setup(item):
    marker = item.get_closest_marker("gpus")
    if marker is not None:
        text, present = _wanted(*marker.args, **marker.kwargs)
        if not present:
            pytest.skip(f"needs {text}; this machine has {len(gpus())}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    marker = item.get_closest_marker("gpus")
    if report.skipped and marker is not None:
        # Travels with the report, from a worker of pytest-xdist too.
        text, present = _wanted(*marker.args, **marker.kwargs)
        report.user_properties.append(("hardware", [text, present]))
    return report


class _Ledger:
    """Counts skips by the hardware they want and judges the ones that should have run."""

    def __init__(self):
        self.absent = collections.Counter()
        self.wrong = []

    def note(self, report):
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        hardware = dict(report.user_properties).get("hardware")
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if hardware is not None and hardware[1]:
            self.wrong.append(f"{report.nodeid}: the machine has {hardware[0]}, yet: {reason}")
        elif hardware is not None:
            self.absent[hardware[0]] += 1
        elif reason.startswith("needs "):
            self.absent[reason.removeprefix("needs ")] += 1
        else:
            self.wrong.append(f"{report.nodeid}: a skip must name the hardware it needs: {reason}")


_LEDGER = _Ledger()


def pytest_runtest_logreport(report):
    _LEDGER.note(report)


def pytest_collectreport(report):
    if report.skipped:
        _LEDGER.wrong.append(f"{report.nodeid}: the whole file was skipped: {report.longrepr}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    if _LEDGER.wrong and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter):
    if _LEDGER.absent:
        terminalreporter.section("skipped for want of hardware")
        for hardware, count in sorted(_LEDGER.absent.items()):
            terminalreporter.write_line(f"{count:5d}  {hardware}")
    if _LEDGER.wrong:
        terminalreporter.section("skips that fail this run", red=True)
        for line in _LEDGER.wrong:
            terminalreporter.write_line(line)
