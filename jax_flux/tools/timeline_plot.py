# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""A trace in words and as a picture; timeline.py has the numbers."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jax_flux.tools import paths, timeline

Tracks = Sequence[timeline.Track]
HEAD = ("role", "span", "us per CTA", "most", "spans", "what")
COLOURS = {
    "gate": "#d1495b",
    "load": "#c9d6df",
    "turn": "#e8e3d3",
    "mma": "#1f8a70",
    "starve": "#f4a259",
    "add": "#7a5bb5",
    "write": "#4f86c6",
    "store": "#9bc1e6",
    "flag": "#e07a5f",
    "partial": "#d1495b",
    "fetch": "#b8a1d9",
    "push": "#8a97a6",
}


def summary(
    ranks: Mapping[int, Tracks], about: Mapping[str, Any]
) -> tuple[str, list[tuple[str, ...]], list[str]]:
    """(heading, table with a head, notes): spans of rank 0, and every rank's tensor time."""
    first = min(ranks)
    ctas = len({track.cta for track in ranks[first]})
    head = f"{about['row']}, W = {about['world']}, {about['device']}, {ctas} CTAs, rank {first}"
    words = {name: text for name, _, text in timeline.KINDS}
    body: list[tuple[str, ...]] = [HEAD]
    for share in timeline.shares(ranks[first]):
        role_mean = f"{share.mean_ns / 1e3:.1f}"
        most = f"{share.most_ns / 1e3:.1f}"
        body.append(
            (share.role, share.kind, role_mean, most, str(share.spans), words[share.kind])
        )  # fmt: skip
    notes = [f"{about['label']}; times with the clock reads of the traced instance"]
    for rank, tracks in sorted(ranks.items()):
        t = timeline.tensor_time(tracks)
        parts = (("multiplying", t.multiply), ("starved", t.starve), ("before", t.head),
                 ("between tiles", t.between), ("after", t.tail))  # fmt: skip
        said = ", ".join(f"{name} {ns / 1e3:.1f} ({ns / t.total:.1%})" for name, ns in parts)
        notes.append(f"rank {rank}: {t.total / 1e3:.1f} us; tensor cores, mean of CTAs: {said}")
        lost = sum(track.lost for track in tracks)
        if lost:
            notes.append(f"rank {rank}: {lost} spans had no room and are missing")
    return head, body, notes


def pick_ctas(tracks: Tracks, count: int) -> list[int]:
    """CTAs for a picture: those that end last and first, and others evenly between."""
    ends: dict[int, int] = {}
    for track in tracks:
        if len(track.spans):
            end = int((track.spans["begin"] + track.spans["ns"]).max())
            ends[track.cta] = max(ends.get(track.cta, 0), end)
    ranked = sorted(ends, key=lambda cta: -ends[cta])
    places = np.linspace(0, len(ranked) - 1, min(count, len(ranked))).round().astype(int)
    return [ranked[place] for place in dict.fromkeys(places.tolist())]


def draw(
    tracks: Tracks,
    title: str,
    path: pathlib.Path,
    ctas: int = 6,
    notes: Sequence[tuple[float, float, str]] = (),
) -> None:
    """A row per CTA and role, a bar per span; ``notes`` are (us, row from the top, text).

    Raises ImportError where matplotlib is missing.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    zero, picked = timeline.start(tracks), pick_ctas(tracks, ctas)
    rows = {(cta, role): at for at, (cta, role) in
            enumerate((cta, role) for cta in picked for role in timeline.ROLES)}  # fmt: skip
    figure, axes = plt.subplots(figsize=(15, 1.2 + 0.155 * len(rows)), layout="constrained")
    seen: set[str] = set()
    for track in tracks:
        at = rows.get((track.cta, track.role))
        if at is None:
            continue
        # Long spans first, so that the waits inside them stay visible.
        for number in np.argsort(-track.spans["ns"], kind="stable"):
            span = track.spans[number]
            kind = timeline.KINDS[span["kind"]][0]
            seen.add(kind)
            begin = (int(span["begin"]) - zero) / 1e3
            axes.barh(at, int(span["ns"]) / 1e3, 0.86, begin, color=COLOURS[kind], linewidth=0)
    axes.set_yticks(range(len(rows)), [role for _, role in rows], fontsize=6)
    for block, cta in enumerate(picked):
        axes.axhline(block * len(timeline.ROLES) - 0.5, color="black", linewidth=0.4)
        middle = (block + 0.5) * len(timeline.ROLES) - 0.5
        left: dict[str, Any] = dict(transform=axes.get_yaxis_transform(), va="center", ha="right")
        axes.text(-0.045, middle, f"CTA {cta}", fontsize=8, rotation=90, **left)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, timeline.length_ns(tracks) / 1e3)
    axes.set_xlabel("us since the launch's first role began")
    axes.set_title(title, fontsize=10)
    for us, row, text in notes:
        box = dict(boxstyle="round", fc="white", ec="black", lw=0.5)
        axes.annotate(text, (us, row), fontsize=8, va="center", bbox=box)
    names = [name for name, *_ in timeline.KINDS if name in seen]
    patches = [Patch(color=COLOURS[name], label=name) for name in names]
    figure.legend(handles=patches, ncols=12, loc="outside lower center", fontsize=8)
    kind = path.suffix.removeprefix(".") or "png"  # the file beside it has another suffix
    paths.write(path, lambda part: figure.savefig(part, dpi=130, format=kind))
    plt.close(figure)
