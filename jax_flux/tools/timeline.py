# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a traced kernel writes, read: spans per rank, CTA and role, their sums, Chrome's JSON.

The layout is cuda/kernels/trace.cuh's: per CTA and role a head of 16 bytes and then room for a
fixed number of spans of 16 bytes. A role's spans are in the order in which they ended.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

ROLES = ("producer", "pusher", "mover 0", "mover 1", "consumer 0", "consumer 1")
SPANS_PER_ROLE = 1024  # that the trace has room for, cuda/kernels/trace.cuh

# Kinds by number, as in cuda/kernels/trace.cuh: name, whether the role only waits, and in words.
KINDS: tuple[tuple[str, bool, str], ...] = (
    ("none", False, ""),
    ("gate", True, "the producer waits for a chunk of x from a peer"),
    ("load", False, "the producer issues a tile's loads, waits for free stages included"),
    ("turn", True, "a consumer waits for the other one's loads (ping-pong)"),
    ("mma", False, "a consumer multiplies a tile"),
    ("starve", True, "a consumer waits for a stage inside a tile, 0.25 us or more"),
    ("add", False, "a consumer adds the peers' partials to its own tile, waits included"),
    ("write", False, "a consumer rounds a tile into its slots, waits for free slots included"),
    ("store", False, "a mover stores a finished tile"),
    ("flag", True, "a sender waits until what it sent is written, then raises the flag"),
    ("partial", True, "a mover waits for a peer's partial tile"),
    ("fetch", False, "a mover loads the peers' partials of a tile"),
    ("push", False, "the pusher moves a chunk of x to a peer"),
)
NUMBERS = {name: number for number, (name, _, _) in enumerate(KINDS)}
WAITS = frozenset(name for name, waits, _ in KINDS if waits)

_HEAD = np.dtype([("begin", "<u8"), ("count", "<u4"), ("sm", "<u4")])
_SPAN = np.dtype([("begin", "<u4"), ("ns", "<u4"), ("index", "<u4"), ("kind", "<u4")])


class TraceError(ValueError):
    """Bytes that no traced kernel of this version has written."""


@dataclasses.dataclass(frozen=True)
class Track:
    """One role of one CTA: ``spans`` has fields begin (ns), ns, kind and index."""

    cta: int
    role: str
    sm: int
    begin: int
    spans: np.ndarray
    lost: int  # spans for which there was no room


def trace_bytes(ctas: int, spans: int = SPANS_PER_ROLE) -> int:
    """Size of the trace of a launch of ``ctas`` CTAs."""
    return ctas * len(ROLES) * (spans + 1) * _SPAN.itemsize


def decode(trace: np.ndarray, spans: int = SPANS_PER_ROLE) -> list[Track]:
    """The tracks of one rank's trace; CTAs that were not launched have none.

    Raises:
      TraceError: the size is no multiple of a CTA's, a kind is unknown, or nothing was written.
    """
    flat = np.ascontiguousarray(trace).view(np.uint8).reshape(-1)
    per_cta = trace_bytes(1, spans)
    if flat.size == 0 or flat.size % per_cta:
        raise TraceError(f"a trace has {per_cta} bytes per CTA, here are {flat.size}")
    rows = flat.reshape(-1, len(ROLES), spans + 1, _SPAN.itemsize)
    tracks = []
    for cta, role in np.ndindex(rows.shape[:2]):
        head = rows[cta, role, 0].view(_HEAD)[0]
        if head["begin"] == 0:
            continue
        kept = min(int(head["count"]), spans)
        raw = rows[cta, role, 1 : kept + 1].reshape(-1).view(_SPAN)
        if kept and int(raw["kind"].max()) >= len(KINDS):
            raise TraceError(f"CTA {cta}, {ROLES[role]}: a span of a kind that nobody knows")
        tracks.append(
            Track(cta, ROLES[role], int(head["sm"]), int(head["begin"]),
                  _fields(raw, int(head["begin"])), int(head["count"]) - kept)
        )  # fmt: skip
    if not tracks:
        raise TraceError("the trace is empty: the kernel that ran was not a traced one")
    return tracks


def _fields(raw: np.ndarray, role_begin: int) -> np.ndarray:
    """Spans with whole times: the kernel writes the low half, and the role's head both."""
    spans = np.zeros(len(raw), [("begin", "<i8"), ("ns", "<i8"), ("kind", "<i4"), ("index", "<i4")])
    later = raw["begin"] - np.uint32(role_begin & 0xFFFFFFFF)  # modulo 2^32
    spans["begin"] = role_begin + later.astype(np.int64)
    for name in ("ns", "kind", "index"):
        spans[name] = raw[name]
    return spans


def start(tracks: Iterable[Track]) -> int:
    """When the first role of the launch began, in ns of that GPU's clock."""
    return min(track.begin for track in tracks)


def length_ns(tracks: Sequence[Track]) -> int:
    """From the first role's begin to the last span's end."""
    ends = [int((t.spans["begin"] + t.spans["ns"]).max()) for t in tracks if len(t.spans)]
    return max(ends, default=start(tracks)) - start(tracks)


@dataclasses.dataclass(frozen=True)
class Share:
    """A kind of span of one role: mean over the CTAs, in ns, and the most that one CTA spent."""

    role: str
    kind: str
    mean_ns: float
    most_ns: int
    spans: int


def shares(tracks: Sequence[Track]) -> list[Share]:
    """Time per role (its two instances together) and kind, in the order of ROLES and KINDS."""
    ctas = len({track.cta for track in tracks})
    found = []
    for role in dict.fromkeys(name.split()[0] for name in ROLES):
        for number, (kind, _, _) in enumerate(KINDS):
            per_cta: dict[int, int] = {}
            spans = 0
            for track in tracks:
                if track.role.split()[0] == role:
                    picked = track.spans["ns"][track.spans["kind"] == number]
                    per_cta[track.cta] = per_cta.get(track.cta, 0) + int(picked.sum())
                    spans += len(picked)
            if spans:
                most = max(per_cta.values())
                found.append(Share(role, kind, sum(per_cta.values()) / ctas, most, spans))
    return found


@dataclasses.dataclass(frozen=True)
class Tensor:
    """What becomes of the tensor cores' time, mean over the CTAs, in ns; the parts add up."""

    total: float
    multiply: float  # some consumer has a tile in hand and its stages come
    starve: float  # a consumer has a tile in hand and waits for a stage
    head: float  # before the first tile of the CTA
    between: float  # between tiles
    tail: float  # after the last tile


def tensor_time(tracks: Sequence[Track]) -> Tensor:
    """Splits the launch by what the consumers of each CTA do; overlap of the two counts once."""
    first, total = start(tracks), length_ns(tracks)
    parts = []
    for cta in {track.cta for track in tracks}:
        mine = [t.spans for t in tracks if t.cta == cta and t.role.startswith("consumer")]
        busy = _union([s[s["kind"] == NUMBERS["mma"]] for s in mine])
        hungry = _union([s[s["kind"] == NUMBERS["starve"]] for s in mine])
        if not len(busy):
            parts.append((0.0, 0.0, float(total), 0.0, 0.0))
            continue
        in_hand = float((busy[:, 1] - busy[:, 0]).sum())
        starve = float((hungry[:, 1] - hungry[:, 0]).sum()) if len(hungry) else 0.0
        head, tail = float(busy[0, 0] - first), float(first + total - busy[-1, 1])
        parts.append((in_hand - starve, starve, head, total - head - tail - in_hand, tail))
    multiply, starve, head, between, tail = (float(v) for v in np.mean(parts, axis=0))
    return Tensor(float(total), multiply, starve, head, between, tail)


def _union(groups: Iterable[np.ndarray]) -> np.ndarray:
    """Disjoint [begin, end) of spans that may overlap, sorted."""
    pieces = [np.stack([s["begin"], s["begin"] + s["ns"]], 1) for s in groups if len(s)]
    if not pieces:
        return np.zeros((0, 2), np.int64)
    every = np.concatenate(pieces)
    every = every[np.argsort(every[:, 0], kind="stable")]
    reach = np.maximum.accumulate(every[:, 1])
    opens = np.concatenate([[True], every[1:, 0] > reach[:-1]])
    ends = np.concatenate([np.flatnonzero(opens)[1:] - 1, [len(every) - 1]])
    return np.stack([every[opens, 0], reach[ends]], 1)


def chrome(ranks: Mapping[int, Sequence[Track]], about: Mapping[str, Any]) -> dict[str, Any]:
    """Chrome's trace-event format (Perfetto reads it): a process per rank, a thread per role.

    Every rank's time counts from its own start: the clocks of two GPUs are not one.
    """
    events: list[dict[str, Any]] = []
    for rank, tracks in sorted(ranks.items()):
        zero = start(tracks)
        name = {"name": f"rank {rank}"}
        events.append({"ph": "M", "pid": rank, "name": "process_name", "args": name})
        for track in tracks:
            thread = track.cta * len(ROLES) + ROLES.index(track.role)
            label = f"CTA {track.cta:03d} {track.role} (SM {track.sm})"
            head = {"pid": rank, "tid": thread}
            events.append({**head, "ph": "M", "name": "thread_name", "args": {"name": label}})
            sort = {"sort_index": thread}
            events.append({**head, "ph": "M", "name": "thread_sort_index", "args": sort})
            events += [
                {
                    **head,
                    "ph": "X",
                    "name": KINDS[span["kind"]][0],
                    "cat": "wait" if KINDS[span["kind"]][1] else "work",
                    "ts": (int(span["begin"]) - zero) / 1000,
                    "dur": int(span["ns"]) / 1000,
                    "args": {"index": int(span["index"])},
                }
                for span in track.spans
            ]
    return {"displayTimeUnit": "ns", "otherData": dict(about), "traceEvents": events}
