# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the user sees: progress while training, then tables and the picture of the loss."""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import matplotlib
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from lm import parity

matplotlib.use("Agg")  # a file, never a window
import matplotlib.pyplot as plt

LOG_LINES = 20
LOG_WIDTH = 120


class OnStep(Protocol):
    """Called after every step (counted from 1)."""

    def __call__(self, step: int, loss: float, tokens_per_s: float, step_ms: float) -> None: ...


def make_console() -> Console:
    """Returns a console as wide as the terminal; in a log file lines are not folded at 80."""
    return Console(width=None if sys.stdout.isatty() else LOG_WIDTH)


@contextlib.contextmanager
def progress(console: Console, steps: int) -> Iterator[OnStep]:
    """Yields the function that shows a step: a bar on a terminal, else about twenty log lines."""
    # A dumb terminal cannot redraw: the bar would show nothing until the end.
    if not console.is_terminal or console.is_dumb_terminal:
        yield _log_lines(steps)
        return
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("training", total=steps, figures="compiling the first step")

        def on_step(step: int, loss: float, tokens_per_s: float, step_ms: float) -> None:
            if step == 1:
                bar.console.print(f"first loss {loss:.4f} nats/byte")
            figures = f"loss {loss:.4f}  {tokens_per_s:,.0f} tokens/s  {step_ms:,.0f} ms/step"
            bar.update(task, completed=step, figures=figures)

        yield on_step


def _log_lines(steps: int) -> OnStep:
    every = max(1, steps // LOG_LINES)

    def on_step(step: int, loss: float, tokens_per_s: float, step_ms: float) -> None:
        if step == 1 or step % every == 0 or step == steps:
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


def write_results(
    console: Console,
    folder: Path,
    title: str,
    train_losses: Sequence[float],
    held_out: Mapping[int, float],
    rows: Sequence[parity.Row],
) -> None:
    """Writes ``loss.png`` and ``metrics.json`` into the folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    plot_losses(folder / "loss.png", title, train_losses, held_out)
    metrics = {
        "train_loss": train_losses,
        "held_out_loss": held_out,
        "parity": [row._asdict() | {"passed": row.passed} for row in rows],
    }
    (folder / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")
    console.print(f"wrote {folder / 'loss.png'} and {folder / 'metrics.json'}", soft_wrap=True)


def plot_losses(
    path: Path, title: str, train_losses: Sequence[float], held_out: Mapping[int, float]
) -> None:
    """Writes the loss curve: every training step, and the held-out loss where it was measured."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(range(1, len(train_losses) + 1), train_losses, linewidth=1, label="training batch")
    axes.plot(list(held_out), list(held_out.values()), "o-", label="held-out files")
    axes.set(xlabel="step", ylabel="loss (nats per byte)", title=title)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)
