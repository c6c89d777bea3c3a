# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Paths of every command line: ``~`` is the home, and a file that cannot be written is told."""

from __future__ import annotations

import argparse
import errno
import os
import pathlib

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


# ---- where nothing can be written ----------------------------------------------------------------

MAINS = {"stress": stress, "block": block, "bench": bench, "trace": trace, "tune": tune}


def _refused(command, capsys):
    """What a command says that is refused before anything runs."""
    tool, *flags = command.split()
    with pytest.raises(SystemExit) as left:
        MAINS[tool].main(flags)
    assert left.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["stress --json", "block --json", "bench --json", "trace --json"]
)
def test_a_record_without_a_folder_is_refused_before_anything_runs(command, tmp_path, capsys):
    told = _refused(f"{command}={tmp_path / 'none' / 'f.json'}", capsys)
    assert f"{tmp_path}/none is no folder, so name a file in a folder that exists" in told


@pytest.mark.parametrize(
    "command",
    [
        "stress --json=/proc/f.json",
        "block --json=/proc/f.json",
        "bench --json=/proc/f.json",
        "bench --plot=/proc/f.png",
        "bench --show=old.json --plot=/proc/f.png",
        "trace --json=/proc/f.json",
        "trace --plot=/proc/f.png",
        "tune --out=/proc/f.json",
        "tune --out=/proc/new/folder/f.json",
    ],
)
def test_a_folder_that_takes_no_file_is_refused_before_anything_runs(command, capsys):
    """Nobody, not even root, makes a file in /proc."""
    flag = command.split()[-1].replace("=", " ")
    told = _refused(command, capsys)
    assert f"{flag}: nothing can be written there (" in told
    assert "name a file in a folder that takes new files" in told


@pytest.mark.parametrize("tool", MAINS)
def test_a_folder_in_the_files_place_is_refused(tool, tmp_path, capsys):
    (tmp_path / "f.json").mkdir()
    flag = "--out" if tool == "tune" else "--json"
    assert "that is a folder, name a file" in _refused(f"{tool} {flag}={tmp_path}/f.json", capsys)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pipe", "that is a device or a pipe, which the file would replace; name a file"),
        ("file/f.json", "file is no folder"),
        ("loop", "nothing can be written there ("),
        ("null\0", "nothing can be written there (embedded null byte)"),
        ("x" * 300, "(File name too long); name a file"),
        ("x" * 254, "(File name too long); name a file"),  # it is written through a longer name
    ],
)
def test_places_that_no_file_goes_to_are_told(name, words, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for more in ({}, {"makes_folders": True}):
        told = paths.complaint("--json", tmp_path / name, **more)
        assert told.startswith(f"--json {tmp_path / name}: ") and words in told
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/proc/12/fd/3"])
def test_what_is_open_already_is_no_file_to_replace(name):
    assert "is open already, name a file" in paths.complaint("--json", paths.path(name))


def test_trying_a_place_leaves_nothing_and_harms_nothing(tmp_path):
    old = tmp_path / "old.json"
    old.write_text("old")
    before = old.stat()
    for file in (old, tmp_path / "new.json"):
        assert paths.complaint("--json", file) is None
    far = tmp_path / "new" / "folder" / "f.json"
    assert paths.complaint("--out", far, makes_folders=True) is None
    assert list(tmp_path.iterdir()) == [old] and old.read_text() == "old"
    assert (old.stat().st_ino, old.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_process_that_writes_nothing_tries_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "_beside", None)
    assert paths.complaint("--json", tmp_path / "f.json", writes=False) is None
    assert "is no folder" in paths.complaint("--json", tmp_path / "no" / "f.json", writes=False)


def _full(file, *_, **__):
    """A disk that takes a name and no byte."""
    file.touch()
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_found_before_and_leaves_the_old_file_after(monkeypatch, tmp_path):
    old = tmp_path / "old.json"
    old.write_text("old")
    monkeypatch.setattr(pathlib.Path, "write_bytes", _full)
    monkeypatch.setattr(pathlib.Path, "write_text", _full)
    told = paths.complaint("--json", old)
    assert "nothing can be written there (No space left on device)" in told
    with pytest.raises(OSError, match="No space left"):
        paths.write_text(old, "new")
    assert list(tmp_path.iterdir()) == [old] and old.read_text() == "old"


def test_one_output_that_fails_does_not_stop_the_next(tmp_path, capsys):
    outputs = {
        "--json a": lambda: paths.write_text(tmp_path / "none" / "a", "a"),
        "--plot b": lambda: paths.write_text(tmp_path / "b", "b"),
    }
    assert not paths.told("bench", outputs)
    assert (tmp_path / "b").read_text() == "b"
    assert capsys.readouterr().err == (
        "jax_flux bench: --json a could not be written: No such file or directory. "
        "Make room, or name another place.\n"
    )


def test_a_linked_file_is_replaced_where_it_lies(tmp_path):
    (tmp_path / "kept").mkdir()
    link = tmp_path / "record.json"
    link.symlink_to(tmp_path / "kept" / "record.json")
    assert paths.complaint("--json", link) is None
    paths.write_text(link, "new")
    assert link.is_symlink() and (tmp_path / "kept" / "record.json").read_text() == "new"
    assert [file.name for file in (tmp_path / "kept").iterdir()] == ["record.json"]
