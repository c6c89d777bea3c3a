# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The report as Markdown, drawn from its JSON alone; and the table for the front page."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.gpu_report import record as records
from benchmarks.gpu_report.parts import MODELS
from jax_flux.tools import report, targets

Record = Mapping[str, Any]
RIVALS = {"xla": "XLA", "xla-lhs": "XLA, latency-hiding", "pallas": "Pallas"}


def write(record: Record, folder: pathlib.Path, stem: str, pictures: Sequence[str]) -> list[Any]:
    """Writes ``stem``.json and ``stem``.md; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    data, text = folder / f"{stem}.json", folder / f"{stem}.md"
    report.write_json(record, data)
    text.write_text(markdown(record, pictures), encoding="utf-8")
    return [data, text]


def markdown(record: Record, pictures: Sequence[str] = ()) -> str:
    """The whole page."""
    blocks = [f"# {_title(record)}", _about(record), summary(record)]
    if record["real"]:
        blocks += _speed(record)
    else:
        blocks += _right(record)
    blocks += _block(record) + _stress(record) + _tests(record) + _parts(record)
    blocks += [f"![{name.removesuffix('.png')}]({name})" for name in pictures]
    return "\n\n".join(block for block in blocks if block) + "\n"


def summary(record: Record) -> str:
    """How many parts held, and how many goals were met."""
    count = lambda status: sum(part["status"] == status for part in record["parts"])
    told = [f"{count(s)} {s}" for s in ("held", "failed", "killed", "missing") if count(s)]
    text = f"Parts: {', '.join(told) or 'none'}."
    judged = [goal for row in _every_row(record) for goal in row.get("goals", ())]
    judged = [goal for goal in judged if goal["met"] is not None]
    if judged:
        text += f" Goals: {sum(goal['met'] for goal in judged)} of {len(judged)} met."
    return text


def front_page(record: Record) -> str:
    """A table of GPT-3's rows in one process: every implementation, exposed time, E; losses too.

    Raises:
      ValueError: ranks shared a GPU, or no such row was measured.
    """
    if not record["real"]:
        raise ValueError("ranks shared one GPU: its times say nothing about speed")
    rows = [row for row in records.rows(record, "one") if "gpt3" in row["tags"]]
    rows = [row for row in rows if "median_s" in row["implementations"].get("jax_flux", {})]
    if not rows:
        raise ValueError("no row of GPT-3 was measured in one process")
    rows.sort(key=lambda row: (["ag", "rs", "ar"].index(row["name"][:2]), row["m"]))
    ops = {"ag": "all_gather + matmul", "rs": "matmul + psum_scatter", "ar": "matmul + psum"}
    head = ["op", "m", "matmul alone", *RIVALS.values(), "jax_flux", "speed", "E", "of limit"]
    body = []
    for row in rows:
        entries = row["implementations"]
        ours = entries["jax_flux"]
        best = targets.fastest_xla(entries)
        speed = None if best is None else best / ours["median_s"]
        body.append(
            [
                ops[row["name"][:2]],
                str(row["m"]),
                _time(entries.get("gemm")),
                *(_time(entries.get(name)) for name in RIVALS),
                _time(ours) + ("" if ours.get("ran") == "fused" else " by XLA"),
                "–" if speed is None else f"{speed:.2f} ×" + (" (slower)" if speed < 1 else ""),
                _number(ours.get("E"), "{:.2f}"),
                _number(ours.get("fraction_of_limit"), "{:.0%}"),
            ]
        )
    return table(head, body)


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A Markdown table, all columns but the first right-aligned."""
    lines = [head, [":--", *["--:"] * (len(head) - 1)], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _title(record: Record) -> str:
    gpus = record["gpus"]
    text = f"{len(gpus)} × {gpus[0]}, {record['date']}"
    if not record["real"]:
        text += ": ranks sharing the GPU, no figures of speed"
    return text + (" (a quick trial)" if record["quick"] else "")


def _about(record: Record) -> str:
    lines = [f"Code {record['code']}" + (f" ({record['commit']})" if record["commit"] else "")]
    for _, bench in records.benches(record):
        versions = {k: v for k, v in bench["versions"].items() if v}
        lines.append(", ".join(f"{name} {v}" for name, v in versions.items()))
        lines.append(f"driver {bench['machine'].get('driver')}")
        top = [b["ceilings"] for _, b in records.benches(record) if b.get("ceilings")]
        if top and record["real"]:
            peaks = [c["peak_flops"] / 1e12 for c in top]
            links = [c["link_bytes_per_s"] / 1e9 for c in top if c["link_bytes_per_s"]]
            lines.append(f"measured peak {min(peaks):.0f} to {max(peaks):.0f} TFLOP/s")
            if links:
                lines.append(f"link {min(links):.0f} to {max(links):.0f} GB/s each way")
        break
    return "; ".join(lines) + "."


def _every_row(record: Record) -> list[Record]:
    return [row for _, bench in records.benches(record) for row in bench["rows"]]


def _speed(record: Record) -> list[str]:
    blocks = [_LEGEND]
    for model, words in MODELS.items():
        for mesh in (None, *records.meshes(record)):
            rows = records.rows(record, model, mesh)
            if not rows:
                continue
            blocks.append(f"## {words[0].upper()}{words[1:]}" + (f", mesh {mesh}" if mesh else ""))
            blocks.append(_rows(rows))
            slower = [row["name"] for row in rows if _is_slower(row)]
            blocks.append(f"Slower than XLA: {', '.join(slower) or 'no row'}.")
    return blocks + _models(record)


def _models(record: Record) -> list[str]:
    """jax_flux's times of the rows that both process models have."""
    times = {}
    for model in MODELS:
        rows = {row["name"]: row["implementations"] for row in records.rows(record, model)}
        ours = {name: entries.get("jax_flux", {}) for name, entries in rows.items()}
        times[model] = {name: e["median_s"] for name, e in ours.items() if "median_s" in e}
    one, each = times["one"], times["each"]
    body = [
        [name, f"{1e6 * one[name]:.0f}", f"{1e6 * each[name]:.0f}", f"{each[name] / one[name]:.3f}"]
        for name in one
        if name in each
    ]
    if not body:
        return []
    head = ["row", MODELS["one"], MODELS["each"], "ratio"]
    return ["## jax_flux in both process models", table(head, body)]


def _is_slower(row: Record) -> bool:
    entries = row["implementations"]
    best, ours = targets.fastest_xla(entries), entries.get("jax_flux", {}).get("median_s")
    ran = entries.get("jax_flux", {}).get("ran")
    return best is not None and ours is not None and ran != "xla" and ours > best


def _rows(rows: Sequence[Record]) -> str:
    rivals = [n for n in RIVALS if any("median_s" in r["implementations"].get(n, {}) for r in rows)]
    head = ["row", "matmul", *(RIVALS[n] for n in rivals), "jax_flux", "ran", "× XLA", "E"]
    head += ["of limit", "goals"]
    body = []
    for row in rows:
        entries = row["implementations"]
        ours = entries.get("jax_flux", {})
        plan = ours.get("plan") or {}
        ran = ours.get("ran", row.get("skipped") or ours.get("error", "–"))
        ran = plan.get("instance", ran) if ran == "fused" else str(ran)
        body.append(
            [
                row["name"],
                _time(entries.get("gemm")),
                *(_time(entries.get(name)) for name in rivals),
                _time(ours),
                f"**wrong**, {ran}" if ours.get("wrong") else ran.replace("|", "/"),
                _number(ours.get("speed_up"), "{:.2f}"),
                _number(ours.get("E"), "{:.2f}"),
                _number(ours.get("fraction_of_limit"), "{:.0%}"),
                report.goals_met(row),
            ]
        )
    return table(head, body)


def _right(record: Record) -> list[str]:
    """What a shared GPU shows of a bench: that it ran, fused, with the right results."""
    rows = _every_row(record)
    if not rows:
        return []
    body = []
    for row in rows:
        ours = row["implementations"].get("jax_flux", {})
        error = ours.get("error_to_xla")
        told = "–" if error is None else f"{error:.1e}"
        body.append([row["name"], str(ours.get("ran", ours.get("error", "–"))), told])
    return ["## Ops, against XLA's results", table(["row", "ran", "away from XLA's"], body)]


def _block(record: Record) -> list[str]:
    if not record["block"]:
        return []
    blocks = ["## A transformer block, forward and backward"]
    for name, one in record["block"].items():
        sizes = ", ".join(f"{key} {value}" for key, value in one["sizes"].items())
        head = ["", "ms", "× faster XLA", "fused call sites", "gradients away from XLA's"]
        body = []
        for contender, entry in one["contenders"].items():
            ms = f"{1e3 * entry['median_s']:.3f}" if record["real"] else "–"
            speed = _number(entry.get("speed_up"), "{:.3f}") if record["real"] else "–"
            away = _number(entry.get("gradient_to_xla"), "{:.1e}")
            away += ", **wrong**" if entry.get("wrong") else ""
            body.append([contender, ms, speed, str(entry["fused_call_sites"]), away])
        blocks += [f"{name}: {sizes}.", table(head, body)]
    return blocks


def _stress(record: Record) -> list[str]:
    if not record["stress"]:
        return []
    head = ["loop", "seed", "programs", "results judged", "executions", "fused call sites", "held"]
    body, failures = [], []
    for name, one in record["stress"].items():
        c = one["counts"]
        values = [c.get(key, 0) for key in ("rounds", "judged", "executions")]
        sites = f"{c.get('fused call sites', 0)} of {c.get('call sites', 0)}"
        held = "yes" if one["done"] else "**no**" if one["failure"] else "not to its end"
        body.append([name, str(one["seed"]), *map(str, values), sites, held])
        if one["failure"]:
            failures.append(f"{name}: `{one['failure'][:1000]}`")
    return ["## Randomly mixed calls, each result checked", table(head, body), *failures]


def _tests(record: Record) -> list[str]:
    if not record["tests"]:
        return []
    head = ["tests", "passed", "failed", "skipped for want of hardware"]
    body = [
        [name, *(str(one[key]) for key in ("passed", "failed", "skipped"))]
        for name, one in record["tests"].items()
    ]
    failed = [f"`{test}`" for one in record["tests"].values() for test in one["failures"]]
    return ["## Tests", table(head, body), "Failed: " + ", ".join(failed) if failed else ""]


def _parts(record: Record) -> list[str]:
    body = []
    for part in record["parts"]:
        note = part.get("note") or ""
        if part["status"] == "failed":
            note = f"exit status {part.get('code')}"
        body.append([part["name"], part["status"], _number(part["seconds"], "{:.0f}"), note])
    return ["## Parts", table(["part", "ended", "s", "note"], body)]


def _time(entry: Record | None) -> str:
    """Microseconds, with the exposed part in parentheses."""
    if entry is None or "median_s" not in entry:
        return "–"
    text = f"{1e6 * entry['median_s']:.0f}"
    return f"{text} ({1e6 * entry['ect_s']:.0f})" if "ect_s" in entry else text


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


_LEGEND = (
    "Times in µs per op, medians, contenders in turns in one run; in parentheses the exposed "
    "communication, the time less the bare matmul's. m counts the rows of all ranks, n and k are "
    "a GPU's. × XLA and E are against XLA with default flags; goals (jax_flux/tools/targets.py) "
    "count the faster of XLA's two programs. How times are taken: benchmarks/README.md."
)
