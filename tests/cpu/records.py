# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The records of benchmarks/results, for the tests that hold something to them."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
LABEL = re.compile(
    r"(?:sm90_)?(?P<dtype>bf16|f16)_(?P<layout>n[nt])_(?P<tile>\d+x\d+)x64_(?:pp|co)_"
    r"c(?P<cluster>\dx\d)_(?:s(?P<split>\d)_(?P<packed>pack)_)?(?P<op>plain|ag|rs)"
    r"(?: W(?P<world>\d))?"
)
NUMBER = re.compile(r"–(?!\d)|[-−]?\d+(?:\.\d+)?")
DTYPES = {"bf16": "bfloat16", "f16": "float16"}


class Kernel(NamedTuple):
    """What an instance's name, or its label in a record, says."""

    label: str
    dtype: str
    layout: str
    tile: tuple[int, int]
    cluster: tuple[int, int]
    split: int
    packed: bool
    op: str  # plain, ag, rs
    world: int  # 0 where the label has none


def _pair(text: str) -> tuple[int, int]:
    first, second = text.split("x")
    return int(first), int(second)


def kernel(label: str) -> Kernel | None:
    """None for cuBLAS."""
    if label.startswith("cublas "):
        return None
    match = LABEL.fullmatch(label)
    assert match is not None, label
    return Kernel(
        label,
        DTYPES[match["dtype"]],
        match["layout"],
        _pair(match["tile"]),
        _pair(match["cluster"]),
        int(match["split"] or 1),
        match["packed"] is not None,
        match["op"],
        int(match["world"] or 0),
    )


def record(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())


def rows(name: str) -> list[dict[str, Any]]:
    return record(name)["rows"]


def timed(name: str):
    """(row, kernel, measured us) of a record of preset mode, without cuBLAS."""
    for row in rows(name):
        for label, us in row["us"].items():
            if (found := kernel(label)) is not None:
                yield row, found, us


class Table(NamedTuple):
    """A Markdown table."""

    where: str
    headers: list[str]
    rows: list[list[str]]


def table(path: str, *headers: str) -> Table:
    """The one table of a document that has all these headers."""
    found = []
    lines = (ROOT / path).read_text().splitlines()
    cells = lambda line: [cell.strip() for cell in line.strip().strip("|").split("|")]
    for number, line in enumerate(lines[1:], 2):
        if re.fullmatch(r"\|[-:| ]+\|", line) and set(headers) <= set(cells(lines[number - 2])):
            body = itertools.takewhile(lambda line: line.startswith("|"), lines[number:])
            rows = [cells(line) for line in body]
            found.append(Table(f"{path}:{number - 1}", cells(lines[number - 2]), rows))
    assert len(found) == 1, f"{path} has {len(found)} tables with the headers {headers}"
    assert all(len(row) == len(found[0].headers) for row in found[0].rows), found[0].where
    return found[0]


def numbers(cell: str) -> list[tuple[float | None, float]]:
    """Each number of a cell with half of its last digit's unit; None for a dash."""
    found = []
    for text in NUMBER.findall(cell):
        digits = len(text.partition(".")[2])
        value = None if text == "–" else float(text.replace("−", "-"))
        found.append((value, 0.5 * 10**-digits))
    return found


def agrees(cell: str, values: list[float | None]) -> bool:
    """Whether a cell's numbers are the values, rounded as it has them."""
    shown = numbers(cell)
    return len(shown) == len(values) and all(
        (value is None) == (told is None)
        and (told is None or abs(told - value) <= half + 1e-6)  # either way at a half
        for (told, half), value in zip(shown, values, strict=True)
    )
