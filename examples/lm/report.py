# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the user sees: progress while training, then tables and the picture of the loss."""

import contextlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import matplotlib
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from lm import parity

matplotlib.use("Agg")  # a file, never a window
import matplotlib.pyplot as plt

LOG_LINES = 20
LOG_WIDTH = 120


class OnStep(Protocol):
    """Called after every step (counted from 1)."""

    def __call__(self, step: int, loss: float, tokens_per_s: float, step_ms: float) -> None: ...


def make_console(*, talks: bool = True) -> Console:
    """Returns a console as wide as the terminal; in a log file lines are not folded at 80."""
    return Console(width=None if sys.stdout.isatty() else LOG_WIDTH, quiet=not talks)


def print_plan(console: Console, title: str, rows: Mapping[str, str]) -> None:
    """Prints what is about to run, a line or two per heading."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in rows.items():
        grid.add_row(name, text)
    console.print(Panel(grid, title=f"[bold]{title}[/]", border_style="cyan"), highlight=False)


@contextlib.contextmanager
def progress(console: Console, steps: int, start: int = 0) -> Iterator[OnStep]:
    """Yields the function that shows a step: a bar on a terminal, else about twenty log lines."""
    if console.quiet:
        yield lambda *_: None
        return
    # A dumb terminal cannot redraw: the bar would show nothing until the end.
    if not console.is_terminal or console.is_dumb_terminal:
        yield _log_lines(steps, start)
        return
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(
            "training", total=steps, completed=start, figures="compiling the first step"
        )

        def on_step(step: int, loss: float, tokens_per_s: float, step_ms: float) -> None:
            if step == start + 1:
                bar.console.print(f"first loss {loss:.4f} nats/byte")
            figures = f"loss {loss:.4f}  {tokens_per_s:,.0f} tokens/s  {step_ms:,.0f} ms/step"
            bar.update(task, completed=step, figures=figures)

        yield on_step


def _log_lines(steps: int, start: int) -> OnStep:
    every = max(1, steps // LOG_LINES)

    def on_step(step: int, loss: float, tokens_per_s: float, step_ms: float) -> None:
        if step == start + 1 or step % every == 0 or step == steps:
            print(
                f"step {step:>{len(str(steps))}}/{steps}  loss {loss:.4f} nats/byte"
                f"  {tokens_per_s:,.0f} tokens/s  {step_ms:,.0f} ms/step",
                flush=True,
            )

    return on_step


def print_stats(console: Console, stats: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints which implementation each op took and why, from ``jax_flux.stats()``."""
    table = Table(title="What ran, in call sites traced")
    table.add_column("op")
    table.add_column("fused", justify="right")
    table.add_column("xla", justify="right")
    table.add_column("why", overflow="fold")
    for op, counts in stats.items():
        why = "; ".join(f"{reason} ({count})" for reason, count in counts["reasons"].items())
        table.add_row(op, str(counts["fused"]), str(counts["xla"]), why)
    console.print(table)


def print_parity(console: Console, rows: Sequence[parity.Row]) -> bool:
    """Prints every row and names the worst; returns whether all passed."""
    table = Table(title="Sharded run against one device (relative Frobenius error)")
    for heading in ("dtype", "array"):
        table.add_column(heading)
    for heading in ("error", "limit", "error / limit"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for row in rows:
        figures = (f"{row.error:.2e}", f"{row.limit:.2e}", f"{_ratio(row):.2f}")
        table.add_row(row.dtype, row.name, *figures, "ok" if row.passed else "FAILED")
    console.print(table)
    worst = max(rows, key=_ratio)
    failed = [row for row in rows if not row.passed]
    verdict = f"parity FAILED for {len(failed)} of" if failed else "parity holds for all"
    console.print(
        f"{verdict} {len(rows)} arrays; worst: {worst.name} ({worst.dtype}),"
        f" {worst.error:.2e} of {worst.limit:.2e} allowed"
    )
    return not failed


def _ratio(row: parity.Row) -> float:
    """Error / limit; infinite if there is no number to compare."""
    if row.error == row.limit == 0.0:
        return 0.0
    ratio = row.error / row.limit if row.limit else float("inf")
    return ratio if ratio == ratio else float("inf")


def print_samples(console: Console, samples: Sequence[tuple[bytes, bytes]]) -> None:
    """Prints prompts and what the model made of them."""
    parts: list[RenderableType] = []
    for prompt, new in samples:
        text = Text(_printable(prompt), style="bold")
        text.append(_printable(new).rstrip(), style="cyan")
        parts += [Rule(style="dim"), text] if parts else [text]
    console.print(Panel(Group(*parts), title="Written by the model", border_style="cyan"))


def _printable(text: bytes) -> str:
    """Valid text without what would move a terminal's cursor."""
    odd = "\N{REPLACEMENT CHARACTER}"
    return "".join(
        c if c.isprintable() or c == "\n" else odd for c in text.decode(errors="replace")
    )


def perplexity(loss: float) -> float:
    """e^loss, infinite where that overflows."""
    return math.exp(loss) if loss < 700 else math.inf


def held_out_line(step: int, loss: float) -> str:
    """The loss on held-out text in the three units that people use."""
    return (
        f"held-out loss {loss:.4f} nats/byte after {step} steps: perplexity"
        f" {perplexity(loss):.2f} per byte, {loss / math.log(2):.3f} bits/byte"
    )


def plot_losses(
    path: Path, title: str, train_losses: Mapping[int, float], held_out: Mapping[int, float]
) -> None:
    """Writes the loss curve: every training step, and the held-out loss where it was measured."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(list(train_losses), list(train_losses.values()), linewidth=1, label="training batch")
    axes.plot(list(held_out), list(held_out.values()), "o-", label="held-out files")
    axes.set(xlabel="step", ylabel="loss (nats per byte)", title=title)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)
