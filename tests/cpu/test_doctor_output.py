# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What ``python -m jax_flux doctor`` prints, its exit status, and the list of tools."""

from __future__ import annotations

import builtins
import io
import subprocess
import sys

from jax_flux import __main__ as cli
from jax_flux.tools import doctor, findings
from tests.cpu.machines import given, missing

# ---- what is printed -----------------------------------------------------------------------------


def test_text_holds_every_finding_and_both_tables():
    report = doctor.examine(given())
    text = findings.as_text("title", (*report.findings, report.verdict), report.machine)
    words = " ".join(text.split())
    for finding in (*report.findings, report.verdict):
        assert " ".join(finding.sentence().split()) in words
    assert "0    NVIDIA H200  9.0         132  140.4 GiB  345 MHz   1980 MHz  18" in text
    assert "0          -       NVLink" in text
    assert max(map(len, text.splitlines())) <= 100


def test_main_plain_text_off_a_terminal_and_exit_status(monkeypatch, capsys):
    good, bad = doctor.examine(given()), doctor.examine(given(ffi=dict(load_native=missing)))
    for report, status in ((good, 0), (bad, 1)):
        monkeypatch.setattr(doctor, "examine", lambda report=report: report)
        assert doctor.main([]) == status
        printed = capsys.readouterr().out
        assert "verdict" in printed
        assert "\x1b" not in printed


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_main_on_a_terminal_draws_tables(monkeypatch):
    report = doctor.examine(given())
    monkeypatch.setattr(sys, "stdout", _Terminal())
    findings.show("title", report.findings, report.machine, plain=False)
    assert "┃" in sys.stdout.getvalue()


def test_main_on_a_terminal_without_rich_is_plain(monkeypatch):
    report = doctor.examine(given())
    real = builtins.__import__

    def without_rich(name, *args, **kwargs):
        if name.split(".")[0] == "rich":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_rich)
    monkeypatch.setattr(sys, "stdout", _Terminal())
    findings.show("title", report.findings, report.machine, plain=False)
    assert sys.stdout.getvalue().startswith("title\n")


# ---- the command line ----------------------------------------------------------------------------


def test_command_without_a_tool_lists_tools(capsys):
    assert cli.main([]) == 0
    assert "doctor" in capsys.readouterr().out


def test_command_unknown_tool_says_which_there_are(capsys):
    assert cli.main(["benchmark"]) == 2
    text = capsys.readouterr().err
    assert "no tool 'benchmark'" in text
    assert "doctor" in text


def test_command_doctor_runs_as_a_module():
    command = [sys.executable, "-m", "jax_flux", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout.startswith("jax_flux 0.1.0 on this machine")
    assert "verdict" in done.stdout
