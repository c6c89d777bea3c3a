# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Paths of every command line: ``~`` is the home, and a file that cannot be written is told."""

from __future__ import annotations

import argparse

import pytest

from benchmarks import block
from benchmarks.gpu_report import __main__ as gpu_report
from jax_flux.tools import bench, paths, stress, trace, tune

PARSERS = {
    "bench": bench._parser,
    "trace": trace._parser,
    "stress": stress._parser,
    "tune": tune._parser,
    "block": block.parser,
    "gpu_report": gpu_report._parser,
}


def _flags(parser):
    """Flags that take one path or several, as argparse knows them."""
    return {a.option_strings[0]: a.nargs or 1 for a in parser._actions if a.type is paths.path}


@pytest.mark.parametrize(
    ("tool", "flags"),
    {
        "bench": ["--json", "--plot", "--show"],
        "trace": ["--json", "--plot"],
        "stress": ["--json"],
        "tune": ["--out"],
        "block": ["--json"],
        "gpu_report": ["--work", "--out", "--compare", "--page"],
    }.items(),
)
def test_every_path_of_a_tool_takes_a_tilde(tool, flags, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    parser = PARSERS[tool]()
    assert list(_flags(parser)) == flags
    for flag, count in _flags(parser).items():
        typed = [f"{flag}=~/f.json"] if count == 1 else [flag, *["~/f.json"] * count]
        found = getattr(parser.parse_args(typed), flag.removeprefix("--"))
        assert found == (tmp_path / "f.json" if count == 1 else [tmp_path / "f.json"] * count)


def test_the_examples_paths_take_a_tilde(lm, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert lm.flags.parse(["--out=~/run"], None).out == tmp_path / "run"
    assert lm.infer(["--checkpoint=~/run"]) == 2
    assert f"{tmp_path}/run holds no checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize("parse", ["tool", "example"])
def test_a_home_of_nobody_is_refused_in_words(parse, lm):
    convert = paths.path if parse == "tool" else lm.flags.folder
    with pytest.raises(argparse.ArgumentTypeError, match="~nobody-of-that-name/x"):
        convert("~nobody-of-that-name/x")


@pytest.mark.parametrize(
    "command", ["stress --json", "block --json", "bench --json", "trace --json"]
)
def test_a_record_without_a_folder_is_refused_before_anything_runs(command, tmp_path, capsys):
    tool, flag = command.split()
    main = {"stress": stress, "block": block, "bench": bench, "trace": trace}[tool].main
    with pytest.raises(SystemExit):
        main([f"{flag}={tmp_path / 'none' / 'f.json'}"])
    assert "name a file in a folder that exists" in capsys.readouterr().err
