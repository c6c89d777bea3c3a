# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What `doctor` prints: findings as sentences, GPUs and links as tables."""

from __future__ import annotations

import dataclasses
import sys
import textwrap
from collections.abc import Sequence

from jax_flux.tools.machine import Machine

OK, NOTE, STOP = "ok", "note", "STOP"
_COLOURS = {OK: "green", NOTE: "yellow", STOP: "bold red"}
_PLAIN_WIDTH = 100


@dataclasses.dataclass(frozen=True)
class Finding:
    """One sentence: ``level`` is OK, NOTE, or STOP (no fused kernel before it is mended)."""

    level: str
    topic: str
    text: str
    remedy: str = ""

    def sentence(self) -> str:
        """Text and remedy with their full stops."""
        parts = [part.rstrip(".") for part in (self.text, self.remedy) if part]
        return ". ".join(parts) + "."


def gpu_rows(machine: Machine) -> list[tuple[str, ...]]:
    """One row of words per GPU, under `GPU_COLUMNS`."""
    return [
        (
            str(gpu.ordinal),
            gpu.name,
            ".".join(map(str, gpu.capability)),
            str(gpu.num_sms),
            f"{gpu.memory_bytes / 2**30:.1f} GiB",
            _or_dash(gpu.clock_now_mhz, "{} MHz"),
            _or_dash(gpu.clock_mhz, "{} MHz"),
            _or_dash(gpu.nvlinks, "{}"),
        )
        for gpu in machine.gpus
    ]


GPU_COLUMNS = ("GPU", "name", "capability", "SMs", "memory", "SM clock", "max", "NVLinks")


def link_rows(machine: Machine) -> list[tuple[str, ...]]:
    """One row per GPU: how it reaches each other one."""
    ordinals = [gpu.ordinal for gpu in machine.gpus]
    return [
        (str(a), *("-" if a == b else machine.links.get((a, b)) or "none" for b in ordinals))
        for a in ordinals
    ]


def _or_dash(value: int | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _tables(machine: Machine) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    tables: list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]] = []
    if machine.gpus:
        tables.append(("GPUs", GPU_COLUMNS, gpu_rows(machine)))
    if len(machine.gpus) > 1:
        columns = ("from \\ to", *(str(gpu.ordinal) for gpu in machine.gpus))
        tables.append(("How a GPU reaches a peer's memory", columns, link_rows(machine)))
    return tables


def as_text(title: str, findings: Sequence[Finding], machine: Machine) -> str:
    """The report as text without colours: one paragraph per finding, aligned tables."""
    lines = [title, ""]
    for finding in findings:
        head = f"{finding.level:<5} {finding.topic:<12} "
        body = textwrap.wrap(finding.sentence(), _PLAIN_WIDTH - len(head), break_on_hyphens=False)
        lines += [head + body[0], *(" " * len(head) + line for line in body[1:])]
    for name, columns, rows in _tables(machine):
        widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
        lines += ["", name]
        for row in (columns, *rows):
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)


def show(title: str, findings: Sequence[Finding], machine: Machine, *, plain: bool) -> None:
    """Prints the report: tables where a terminal and rich are there, else plain text."""
    if not plain and sys.stdout.isatty():
        try:
            return _show_rich(title, findings, machine)
        except ImportError:
            pass
    print(as_text(title, findings, machine))


def _show_rich(title: str, findings: Sequence[Finding], machine: Machine) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(title=title, show_header=False)
    for finding in findings:
        level = Text(finding.level, style=_COLOURS.get(finding.level, ""))
        table.add_row(level, finding.topic, Text(finding.sentence()))
    console.print(table)
    for name, columns, rows in _tables(machine):
        grid = Table(*columns, title=name)
        for row in rows:
            grid.add_row(*row)
        console.print(grid)
