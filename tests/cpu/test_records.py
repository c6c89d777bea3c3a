# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The documents' tables of measured times against the records that they are taken from."""

from __future__ import annotations

import re

import pytest

from tests.cpu import records

WORLDS = (2, 4, 8)
KERNELS = "docs/kernels.md"


def sizes(cell):
    """m, n, k of "1024, 6144, 12288" or "1024 × 6144 × 12288"."""
    return tuple(int(number) for number, _ in records.numbers(cell.replace("×", ",")))


def hold(table, expected, rows):
    """Every cell against `expected(cells, header, column)`: its values, or None for words."""
    wrong, compared = [], 0
    for cells in table.rows:
        for column, (header, cell) in enumerate(zip(table.headers, cells, strict=True)):
            values = expected(cells, header, column)
            if values is None:
                continue
            compared += 1
            if not records.agrees(cell, values):
                exact = " / ".join("–" if v is None else f"{v:.4g}" for v in values)
                wrong.append(f"{' | '.join(cells[:2])}: {header} is {cell}, in the record {exact}")
    assert not wrong, "\n".join([table.where, *wrong])
    assert len(table.rows) == rows, f"{table.where}: {len(table.rows)} rows, the record has {rows}"
    assert compared > rows, table.where


def fastest(name):
    """Of a record of preset mode: (m, n, k) -> layout and op (of cuBLAS too), W -> least us."""
    found = {}
    for row in records.rows(name):
        best = found[row["m"], row["n"], row["k"]] = {}
        for label, us in row["us"].items():
            kernel = records.kernel(label)
            layout = kernel.layout if kernel else label.rsplit("_", 1)[1]
            key = (layout, kernel.op, kernel.world) if kernel else (layout, "cublas", 1)
            best[key] = min(us, best.get(key, us))
    return found


def unlinked(name, table, packed):
    """Columns of a table of preset mode; those after "cuBLAS nt" are of that layout."""
    best = fastest(name)

    def expected(cells, header, column):
        op = {"plain": "plain", "AG": "ag", "RS": "rs", "cuBLAS": "cublas"}.get(header.split()[0])
        if op is None:
            return None
        before = [h for h in table.headers[: column + 1] if h.startswith("cuBLAS")]
        layout = "nn" if packed else before[-1].removeprefix("cuBLAS ")
        times = best[sizes(cells[0])]
        return [times.get((layout, op, w)) for w in (WORLDS if "W" in header else (1,))]

    return expected


def test_the_table_of_preset_mode():
    table = records.table(KERNELS, "m, n, k", "cuBLAS nn", "cuBLAS nt")
    hold(table, unlinked("preset_h200", table, False), len(records.rows("preset_h200")))


def test_the_table_of_few_rows():
    table = records.table(KERNELS, "m, n, k", "cuBLAS", "AG W 2 / 4 / 8", "RS W 2 / 4 / 8")
    hold(table, unlinked("packed_h200", table, True), len(records.rows("packed_h200")))


def paced():
    """(op, m, n, k) -> the record's rows of W = 2, 4, 8, each with its fastest instance."""
    found = {}
    for row in records.rows("paced_h200"):
        best = min(row["instances"], key=lambda name: row["instances"][name]["paced_us"])
        entry = {**row, **row["instances"][best], "instance": best}
        found.setdefault((row["op"], row["m"], row["n"], row["k"]), {})[row["world"]] = entry
    assert all(tuple(sorted(rows)) == WORLDS for rows in found.values())
    return {key: [rows[world] for world in WORLDS] for key, rows in found.items()}


PACED = {
    "cuBLAS": "cublas_us",
    "plain": "plain_us",
    "flags up": "up_us",
    "paced": "paced_us",
    "wire": "wire_us",
    "E_wire W 2 / 4 / 8": "e_wire",
    "of limit": "of_limit",
}


def paced_table():
    return records.table(KERNELS, "op", "m, n, k", *PACED)


def test_the_table_over_an_emulated_link():
    rows = paced()

    def expected(cells, header, column):
        if header not in PACED:
            return None
        return [row[PACED[header]] for row in rows[cells[0], *sizes(cells[1])]]

    hold(paced_table(), expected, len(rows))


def reached(row):
    """The goal that the table's bold figures are within."""
    if row["wire_us"] > row["cublas_us"]:
        return row["of_wire"] <= 1.08
    small, large = (0.75, 0.93) if row["op"] == "ag" else (0.65, 0.90)
    return row["e_wire"] >= (small if row["m"] == 1024 else large)


def test_bold_figures_are_those_within_the_goal():
    table, rows = paced_table(), paced()
    column = table.headers.index("E_wire W 2 / 4 / 8")
    bold = {(*cells[:2], world): shown.startswith("**")
            for cells in table.rows
            for world, shown in zip(WORLDS, cells[column].split(" / "), strict=True)}  # fmt: skip
    goal = {(op, f"{m}, {n}, {k}", row["world"]): reached(row)
            for (op, m, n, k), group in rows.items() for row in group}  # fmt: skip
    assert bold == goal


MISSED = {
    "flags up − cuBLAS": ("up_us", "cublas_us"),
    "of which plain": ("plain_us", "cublas_us"),
    "paced − flags up": ("paced_us", "up_us"),
}


def missed():
    """The table, and the record's rows of each of its rows."""
    table, every = records.table(KERNELS, *MISSED), paced()
    picked, shape = [], None
    for cells in table.rows:
        name, worlds = cells[0].split(", ", 1)
        if name != "the same":
            op, _, text = name.partition(" ")
            shape = (op, *sizes(text))
        worlds = [world for world, _ in records.numbers(worlds)]
        picked.append([row for row in every[shape] if row["world"] in worlds])
        assert len(picked[-1]) == len(worlds), cells[0]
    return table, picked


def test_the_table_of_missed_rows():
    table, picked = missed()
    group = {id(cells): rows for cells, rows in zip(table.rows, picked, strict=True)}

    def expected(cells, header, column):
        if header not in MISSED:
            return None
        if header == "of which plain" and cells[column] == "–":  # no plain kernel has that tile
            return None
        more, less = MISSED[header]
        return [row[more] - row[less] for row in group[id(cells)]]

    hold(table, expected, len(picked))


def test_every_missed_row_has_a_cause():
    name = lambda row: (row["op"], row["m"], row["n"], row["k"], row["world"])
    told = sorted(name(row) for group in missed()[1] for row in group)
    every = (row for rows in paced().values() for row in rows)
    assert told == sorted(name(row) for row in every if not reached(row))


BASELINES = {
    "XLA matmul alone": ("xla_mm",),
    "XLA all_gather + matmul": ("xla_ag_mm", "xla_ag_exposed"),
    "XLA matmul + psum_scatter": ("xla_mm_rs", "xla_rs_exposed"),
    "Pallas all_gather + matmul": ("pallas_ag_mm",),
    "PyTorch async-TP gather": ("torch_async_ag", "torch_async_ag_exposed"),
    "PyTorch async-TP scatter": ("torch_async_rs", "torch_async_rs_exposed"),
}


def test_the_front_pages_table():
    rows = {row["m"]: row for row in records.rows("baselines_2xh200")}

    def expected(cells, header, column):
        return [rows[int(cells[0])][key] for key in BASELINES[header]] if column in kept else None

    table = records.table("README.md", "m", *BASELINES)
    kept = [column for column, header in enumerate(table.headers) if header in BASELINES]
    hold(table, expected, len(rows))


@pytest.mark.parametrize(
    "cell, values, same",
    [
        ("231 / **232** / –", [230.5, 232.4, None], True),
        ("231 / 232 / 245", [231, 232], False),
        ("231", [231.6], False),
        ("0.93", [0.9251], True),
        ("0.93", [0.936], False),
        ("297 (81)", [297, 80], False),
        ("−2, 3", [-1.6, 3.2], True),
        ("–", [4.0], False),
    ],
)
def test_a_cell_agrees_within_its_own_rounding(cell, values, same):
    assert records.agrees(cell, values) is same


def test_a_wrong_cell_is_told_with_its_row_and_both_numbers():
    table = records.Table("page:1", ["m", "us", "of"], [["16", "41", "0.9"]])
    with pytest.raises(AssertionError, match=re.escape("16 | 41: us is 41, in the record 40.1")):
        hold(table, lambda cells, header, column: {"us": [40.1], "of": [0.9]}.get(header), 1)
