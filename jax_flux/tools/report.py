# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What `bench` leaves behind: a table (rich on a terminal, else text), JSON, a picture.

`record` is the JSON; table and picture are drawn from it alone, so an old record draws again.
"""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from jax_flux.tools import paths

Record = Mapping[str, Any]
COLUMNS = (
    "row",
    "matmul",
    "xla (exposed)",
    "jax_flux (exposed)",
    "ran",
    "speed-up",
    "E",
    "of limit",
)
RIVALS = ("xla-lhs", "pallas")  # each has a column where it was asked for
GOALS = "goals met"
COLOURS = {
    "gemm": "#8a97a6",
    "xla": "#d9822b",
    "xla-lhs": "#b85c38",
    "pallas": "#7a5bb5",
    "jax_flux": "#1f8a70",
}


def columns(record: Record) -> tuple[str, ...]:
    """The table's head; the goals have a column where rows were judged."""
    rivals = tuple(f"{name} (exposed)" for name in rivals_of(record))
    goals = (GOALS,) if any("goals" in row for row in record["rows"]) else ()
    return (*COLUMNS[:3], *rivals, *COLUMNS[3:], *goals)


def rivals_of(record: Record) -> list[str]:
    """Contenders besides XLA that the run was asked to measure."""
    return [name for name in RIVALS if name in record["settings"]["against"]]


def goals_met(row: Record) -> str:
    """Such as "2/2", or "1/2: E >= 0.95 missed"; "-" where nothing was judged."""
    judged = [goal for goal in row.get("goals", ()) if goal["met"] is not None]
    missed = ", ".join(goal["goal"] for goal in judged if not goal["met"])
    if not judged:
        return "-"
    text = f"{sum(goal['met'] for goal in judged)}/{len(judged)}"
    return f"{text}: {missed} missed" if missed else text


def cells(row: Record, record: Record) -> tuple[str, ...]:
    """One measured row in words; times in us."""
    entries = row["implementations"]
    head = columns(record)
    if "skipped" in row:
        return (row["name"], "skipped", *("-",) * (len(head) - 2))
    ours = entries.get("jax_flux", {})
    return (
        row["name"],
        _time(entries.get("gemm")),
        *(_time(entries.get(name)) for name in ("xla", *rivals_of(record))),
        _time(ours),
        "WRONG RESULT" if ours.get("wrong") else str(ours.get("ran", "-")),
        _number(ours.get("speed_up"), "{:.2f}"),
        _number(ours.get("E"), "{:.2f}"),
        _number(ours.get("fraction_of_limit"), "{:.0%}"),
        *((goals_met(row),) if GOALS in head else ()),
    )


def _time(entry: Record | None) -> str:
    if entry is None or "median_s" not in entry:
        return "-"
    text = f"{1e6 * entry['median_s']:.1f}"
    return f"{text} ({1e6 * entry['ect_s']:.1f})" if "ect_s" in entry else text


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def heading(record: Record) -> str:
    """Machine, group and what its times are worth."""
    group, machine = record["group"], record["machine"]
    axes = group.get("mesh", {})
    mesh = (
        ", mesh " + " x ".join(f"{n} {size}" for n, size in axes.items()) if len(axes) > 1 else ""
    )
    devices = math.prod(axes.values()) if axes else group["world"]
    text = f"{devices} x {machine['device_kind']}{mesh}, {record['settings']['dtype']}, us per op"
    return f"{text} ({group['label']}{': ' + group['note'] if group['note'] else ''})"


def footnotes(record: Record) -> list[str]:
    """Ceilings, and a sentence for everything that did not run as asked, equal ones joined."""
    lines = []
    top = record["ceilings"]
    if top:
        rate = top["link_bytes_per_s"]
        link = f", link {rate / 1e9:.3g} GB/s each way" if rate else ""
        lines.append(f"limit of a row: peak {top['peak_flops'] / 1e12:.3g} TFLOP/s{link}, measured")
    said: dict[str, list[str]] = {}
    for row in record["rows"]:
        if "skipped" in row:
            said.setdefault(f"skipped: {row['skipped']}", []).append(row["name"])
        for name, entry in row["implementations"].items():
            if "error" in entry:
                said.setdefault(f"{name} did not run: {entry['error']}", []).append(row["name"])
            if entry.get("wrong"):
                text = f"{name} is {entry['error_to_xla']:.2g} away from XLA's result"
                said.setdefault(text, []).append(row["name"])
            elif entry.get("ran") == "xla" and name == "jax_flux":
                said.setdefault(f"took XLA: {entry['reason']}", []).append(row["name"])
            elif entry.get("ran") == "fused" and entry.get("plan"):
                plan = entry["plan"]
                text = f"ran {plan['instance']}, expected {plan['expected_ns'] / 1e3:.1f} us"
                said.setdefault(text, []).append(row["name"])
            if "config" in entry:
                said.setdefault(f"{name}'s tiles {entry['config']}", []).append(row["name"])
    lines += [f"{', '.join(names)}: {text}" for text, names in said.items()]
    if record.get("stopped"):
        lines.append(f"STOPPED: {record['stopped']}")
    return lines


def as_text(record: Record) -> str:
    """The table without colours."""
    head = columns(record)
    body = [cells(row, record) for row in record["rows"]]
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    lines = [heading(record), ""]
    for name, *rest in (head, *body):
        cells_right = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        lines.append("  ".join([name.ljust(widths[0]), *cells_right]))
    return "\n".join([*lines, "", *footnotes(record)])


def show_rich(record: Record) -> None:
    """The table on a terminal. Raises ImportError where rich is missing."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    head = columns(record)
    table = Table(title=heading(record))
    for at, name in enumerate(head):
        table.add_column(name, justify="left" if at == 0 else "right")
    for row in record["rows"]:
        ours = row["implementations"].get("jax_flux", {})
        speed = ours.get("speed_up")
        won = ours.get("ran") == "fused" and speed is not None and speed > 1.02
        style = "red" if ours.get("wrong") else "green" if won else ""
        table.add_row(*(Text(cell) for cell in cells(row, record)), style=style)
    console = Console()
    console.print(table)
    for line in footnotes(record):
        console.print(Text(line))


def write_json(record: Record, path: pathlib.Path) -> None:
    """The whole record, every repetition included; never half of it, whenever it is killed."""
    paths.write_text(path, json.dumps(record, indent=1) + "\n")


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """A record that `write_json` wrote. Raises ValueError for anything else."""
    record = json.loads(path.read_text(encoding="utf-8"))
    wanted = {"group", "machine", "settings", "ceilings", "rows"}
    if not isinstance(record, dict) or not wanted <= set(record):
        raise ValueError(f"a record has the keys {', '.join(sorted(wanted))}")
    return record


def bars(rows: Sequence[Record]) -> list[tuple[str, str, float, float]]:
    """(row, implementation, matmul us, exposed us) of each bar; a bar ends at the op's time.

    An op faster than the bare matmul is a shorter matmul part and nothing exposed.
    """
    found = []
    for row in rows:
        base = row["implementations"].get("gemm", {}).get("median_s")
        for name, entry in row["implementations"].items():
            t = entry.get("median_s")
            if t is None or base is None:
                continue
            part = min(t, base)
            found.append((row["name"], name, 1e6 * part, 1e6 * (t - part)))
    return found


def draw(record: Record, path: pathlib.Path) -> None:
    """Stacked bars per row and implementation: matmul below, exposed communication above it.

    Raises ImportError where matplotlib is missing.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    drawn = bars(record["rows"])
    found = {name for _, name, *_ in drawn}
    names = [name for name in COLOURS if name in found]
    rows = list(dict.fromkeys(name for name, *_ in drawn))
    figure, axes = plt.subplots(
        figsize=(min(18.0, max(8.0, 0.9 * len(rows) + 4)), 6), layout="constrained"
    )
    width = 0.8 / max(1, len(names))
    for row, name, base, exposed in drawn:
        x = rows.index(row) + (names.index(name) - (len(names) - 1) / 2) * width
        axes.bar(x, base, width * 0.92, color=COLOURS[name])
        if exposed:
            axes.bar(
                x,
                exposed,
                width * 0.92,
                bottom=base,
                color=COLOURS[name],
                alpha=0.5,
                hatch="///",
                edgecolor="white",
            )
    limits = {row["name"]: 1e6 * row["limit_s"] for row in record["rows"] if "limit_s" in row}
    for at, name in enumerate(rows):
        if name in limits:
            axes.hlines(limits[name], at - 0.42, at + 0.42, colors="black", linewidth=1)
    axes.set_xticks(range(len(rows)), rows, rotation=40, ha="right", fontsize=8)
    axes.set_ylabel("time per op, µs (median)")
    axes.set_title(heading(record).replace(" (", "\n("), fontsize=9)
    keys = [Patch(color=COLOURS[name], label=name) for name in names]
    keys.append(
        Patch(
            facecolor="grey",
            alpha=0.5,
            hatch="///",
            edgecolor="white",
            label="exposed communication",
        )
    )
    keys.append(Patch(color="black", label="limit (line)"))
    figure.legend(handles=keys, fontsize=8, loc="outside right upper")
    kind = path.suffix.removeprefix(".") or "png"  # the file beside it has another suffix
    paths.write(path, lambda part: figure.savefig(part, dpi=150, format=kind))
    plt.close(figure)
