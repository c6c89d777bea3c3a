# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The flags of the group, which `bench`, `tune`, `trace` and `stress` share: what is refused."""

from __future__ import annotations

import argparse

import jax
import pytest

from jax_flux import _records, _tuning
from jax_flux.tools import bench, group, stress, trace, tune

TOOLS = {"bench": bench, "tune": tune, "trace": trace, "stress": stress}
ADDRESS = "is no HOST:PORT: give the address of process 0 with a port from 1 to 65535"


@pytest.fixture(autouse=True)
def _users_file(monkeypatch, tmp_path):
    monkeypatch.setenv(_records.VARIABLE, str(tmp_path / "t.json"))
    yield
    _tuning.use(None)


def _options(*flags):
    parser = argparse.ArgumentParser()
    group.add_flags(parser)
    return parser.parse_args(flags)


def _process(address, processes=2, process=1):
    flags = ("--coordinator", address, "--processes", str(processes), "--process", str(process))
    return _options(*flags)


@pytest.mark.parametrize("tool", TOOLS)
def test_an_address_without_a_port_is_refused_by_every_tool(tool, capsys):
    with pytest.raises(SystemExit) as left:
        TOOLS[tool].main(["--coordinator", "nohost", "--processes", "2", "--process", "1"])
    assert left.value.code == 2
    assert f"--coordinator 'nohost' {ADDRESS}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    ["", ":", ":1234", "host:", "host:0", "host:65536", "host:-1", "host:1e3", "host:12 ", "a b:1"]
    + ["::1:1234", "[::1]", "[]:1", "http://host:1234", "host:1234/x", "host:\u0661"],
)
def test_what_is_no_address_is_refused(text):
    assert group.complaint(_process(text)).startswith(f"--coordinator {text!r} {ADDRESS}")


@pytest.mark.parametrize("text", ["localhost:1", "10.0.0.1:65535", "[::1]:1234", "node-1.x_y:80"])
def test_an_address_is_taken(text):
    assert group.complaint(_process(text)) is None


@pytest.mark.parametrize(
    ("processes", "process", "words"),
    [
        (2, 2, "--process 2 is not in 0 .. 1: processes count from 0"),
        (2, -1, "--process -1 is not in 0 .. 1: processes count from 0"),
        (0, 0, "--processes 0: give their number, 1 or more"),
    ],
)
def test_a_process_out_of_their_number_is_refused(processes, process, words):
    assert group.complaint(_process("a:1", processes, process)) == words


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ["--axis-size", "3"],
            "--axis-size 3 does not divide 8 devices, and every one of them belongs to a group of "
            "W: give 2 or 4 or 8.",
        ),
        (
            ["--mesh", "dp=3,tp=5"],
            "--mesh dp=3,tp=5 does not take 8 devices: its sizes have to multiply to their number, "
            "as those of tp=8 do.",
        ),
    ],
)
def test_a_group_that_the_devices_do_not_fit_is_a_bad_flag(tool, flags, words, capsys):
    assert TOOLS[tool].main(flags) == 2
    assert capsys.readouterr().err == f"jax_flux {tool}: {words}\n"


def _raises(error):
    def call(*_, **__):
        raise error

    return call


@pytest.mark.parametrize("error", [IndexError("a list"), RuntimeError("no answer."), KeyError("N")])
def test_a_start_that_fails_is_told_in_words(error, monkeypatch):
    monkeypatch.setattr(jax.distributed, "initialize", _raises(error))
    kind = type(error).__name__
    with pytest.raises(group.GroupError, match=f"did not start: {kind}: .*same command") as told:
        group.join(_process("localhost:1"))
    assert told.value.status == 1


def test_a_machine_without_devices_is_told_in_words(monkeypatch, capsys):
    monkeypatch.setattr(jax, "devices", _raises(AssertionError()))
    assert bench.main(["--rows", "smoke"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("jax_flux bench: JAX has no devices: AssertionError. `python -m")
