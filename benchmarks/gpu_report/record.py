# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The report as one JSON: how every part ended, and what its process 0 wrote."""

from __future__ import annotations

import datetime
import json
import pathlib
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu_report import parts
from benchmarks.gpu_report.state import State

Record = Mapping[str, Any]
ROOT = pathlib.Path(__file__).resolve().parents[2]
KINDS = ("bench", "stress", "block", "tests")


def build(
    known: State, machine: parts.Machine, wanted: Sequence[parts.Part], quick: bool
) -> dict[str, Any]:
    """Everything that is known; a part that has not run has the status "missing"."""
    made: dict[str, Any] = dict(
        what="one machine's report of one state of the code; benchmarks/gpu_report",
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        code=known.code,
        commit=_commit(),
        stem=machine.stem,
        gpus=list(machine.gpus),
        real=machine.real,
        quick=quick,
        parts=[],
        **{kind: {} for kind in KINDS},
    )
    for part in wanted:
        entry = known.parts.get(part.name, dict(status="missing"))
        told = dict(name=part.name, title=part.title, kind=part.kind, model=part.model)
        for key in ("status", "code", "seconds", "note", "attempts"):
            told[key] = entry.get(key)
        made["parts"].append(told)
        output = known.output(part)
        if entry["status"] in ("missing", "running") or not output.exists():
            continue
        try:
            read_part = tests if part.kind == "tests" else _json
            made[part.kind][part.name] = read_part(output)
        except (ValueError, ET.ParseError) as error:
            told["note"] = f"{output.name} cannot be read: {error}"
    return made


def complete(record: Record) -> bool:
    """Whether every part has held."""
    return all(part["status"] == "held" for part in record["parts"])


def read(path: pathlib.Path) -> dict[str, Any]:
    """A report that was written before. Raises ValueError for anything else."""
    record = _json(path)
    if not isinstance(record, dict) or not {"parts", "code", *KINDS} <= set(record):
        raise ValueError(f"{path} is no report of make gpu-report")
    return record


def tests(path: pathlib.Path) -> dict[str, Any]:
    """Counts of a JUnit file, and the tests that failed."""
    suites = list(ET.parse(path).getroot().iter("testsuite"))
    count = lambda name: sum(int(suite.get(name, 0)) for suite in suites)
    bad = [
        f"{case.get('classname')}.{case.get('name')}"
        for suite in suites
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    failed, skipped = count("failures") + count("errors"), count("skipped")
    passed = count("tests") - failed - skipped
    return dict(passed=passed, failed=failed, skipped=skipped, failures=bad)


def benches(record: Record) -> list[tuple[Record, Record]]:
    """(part, bench record) of each bench part that has left one."""
    named = {part["name"]: part for part in record["parts"]}
    return [(named[name], bench) for name, bench in record["bench"].items() if name in named]


def rows(record: Record, model: str, mesh: str | None = None) -> list[Record]:
    """Measured rows of one process model on the mesh so told (None: all GPUs), each once."""
    found: dict[str, Record] = {}
    for part, bench in benches(record):
        if part["model"] == model and mesh_words(bench) == mesh:
            for row in bench["rows"]:
                found.setdefault(row["name"], row)
    return list(found.values())


def mesh_words(bench: Record) -> str | None:
    """Such as "dp 2 x tp 4"; None where the ops run over all GPUs."""
    mesh = bench["group"].get("mesh", {})
    return " x ".join(f"{n} {s}" for n, s in mesh.items()) if len(mesh) > 1 else None


def meshes(record: Record) -> list[str]:
    """The meshes of parts of the GPUs, in order."""
    told = [mesh_words(bench) for _, bench in benches(record)]
    return list(dict.fromkeys(mesh for mesh in told if mesh))


def tail(path: pathlib.Path, lines: int) -> str:
    """The end of a log, without what XLA and CUDA say of themselves."""
    if not path.exists():
        return ""
    kept = [
        line[:300]
        for line in path.read_text(errors="replace").splitlines()
        if line.strip() and not (line[:1] in "WIE" and line[1:5].isdecimal())
    ]
    return "\n".join(f"      {line}" for line in kept[-lines:])


def _json(path: pathlib.Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _commit() -> str | None:
    """Of the checkout; None where there is no git or nothing to ask."""
    try:
        asked = subprocess.run(
            ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except OSError:
        return None
    return asked.stdout.strip() or None if asked.returncode == 0 else None
