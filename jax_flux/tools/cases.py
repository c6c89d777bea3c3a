# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The rows of ``python -m jax_flux bench``: one list of named, tagged matmuls.

A row is one GPU's matmul, (m, n, k) with m the rows of *all* ranks and n, k this GPU's. Every
local and global size follows from it here and nowhere else.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

OPS = {"ag": "ag_matmul", "rs": "matmul_rs", "ar": "matmul_ar"}
TP8_ROWS = (64, 512, 1024, 2048, 4096, 8192)
_NAME = re.compile(r"(ag|rs|ar)-([1-9]\d{0,6})x([1-9]\d{0,6})x([1-9]\d{0,6})")


@dataclasses.dataclass(frozen=True)
class Case:
    """One row: ``kind`` is "ag", "rs" or "ar"; each GPU multiplies [m, k] by [k, n]."""

    kind: str
    m: int
    n: int
    k: int
    tags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Such as "ag-1024x6144x12288"."""
        return f"{self.kind}-{self.m}x{self.n}x{self.k}"

    @property
    def op(self) -> str:
        """The op's name, such as "ag_matmul"."""
        return OPS[self.kind]

    @property
    def flops(self) -> int:
        """2 m n k, one GPU's share of the product."""
        return 2 * self.m * self.n * self.k

    @property
    def w_shape(self) -> tuple[int, int]:
        """One rank's weight, [k, n]."""
        return self.k, self.n

    @property
    def full_shape(self) -> tuple[int, int]:
        """The left operand of the bare matmul, [m, k]."""
        return self.m, self.k

    def x_shape(self, world: int) -> tuple[int, int]:
        """One rank's left operand of the op: [m / W, k] for the gather, else [m, k]."""
        return (self.m // world if self.kind == "ag" else self.m), self.k

    def wire_bytes(self, world: int, itemsize: int) -> int:
        """Bytes that a rank must send, at least: (W - 1) / W of what is gathered or scattered.

        An all-reduce is a scatter and a gather of the result, so twice that.
        """
        width = self.k if self.kind == "ag" else self.n
        times = 2 if self.kind == "ar" else 1
        return times * (world - 1) * self.m * width * itemsize // world

    def obstacle(self, world: int) -> str | None:
        """Why the row cannot run on ``world`` ranks, or None."""
        if self.kind != "ar" and self.m % world:
            return (
                f"m = {self.m} does not divide over {world} ranks, and each of them has m / W "
                f"rows: give a multiple of {world}"
            )
        return None


def _rows(kind: str, sizes: tuple[tuple[int, int, int], ...], *tags: str) -> tuple[Case, ...]:
    return tuple(Case(kind, m, n, k, (*tags, kind)) for m, n, k in sizes)


def _gpt3(kind: str, rows: tuple[int, ...], tag: str) -> tuple[Case, ...]:
    """GPT-3 175B at tensor parallelism 8: the MLP's two matmuls of one GPU."""
    n, k = (6144, 12288) if kind == "ag" else (12288, 6144)
    return _rows(kind, tuple((m, n, k) for m in rows), tag)


def _peers(world: int) -> tuple[Case, ...]:
    """Rows that other projects quote; their global sizes fixed, so a row belongs to one W.

    Pallas' collective matmul: 1024 rows and 4096 columns per GPU. Triton-distributed's scatter:
    k of 8192 and of 29568 over the ranks. ParallelKittens: squares of 16384.
    """
    at, side = f"w{world}", 16384
    return (
        *_rows("ag", ((1024 * world, 4096, 4096),), "pallas", at),
        *_rows("rs", ((4096, 4096, 8192 // world), (8192, 8192, 29568 // world)), "triton", at),
        *_rows("ag", ((side, side // world, side),), "squares", at),
        *_rows("rs", ((side, side, side // world),), "squares", at),
    )


def _merged(rows: Iterable[Case]) -> tuple[Case, ...]:
    """Rows of one size as one row with the tags of all."""
    found: dict[str, Case] = {}
    for case in rows:
        old = found.get(case.name, case)
        tags = tuple(dict.fromkeys(old.tags + case.tags))
        found[case.name] = dataclasses.replace(old, tags=tags)
    return tuple(found.values())


WORLDS = (2, 4, 8)
CASES: tuple[Case, ...] = _merged(
    (
        *(c for kind in OPS for c in _gpt3(kind, (1024, 2048, 4096, 8192), "gpt3")),
        *_rows("ag", ((8192, 2048, 4096), (8192, 4096, 8192), (2048, 4096, 4096)), "layers"),
        *_rows("rs", ((8192, 4096, 2048), (8192, 8192, 4096), (4096, 4096, 4096)), "layers"),
        *(c for kind in OPS for c in _gpt3(kind, (16, 64, 128, 256, 512), "small")),
        *(c for kind in ("ag", "rs") for c in _gpt3(kind, TP8_ROWS, "tp8")),
        *(c for world in WORLDS for c in _peers(world)),
        *(c for kind in OPS for c in _rows(kind, ((256, 128, 256),), "smoke")),
    )
)
DEFAULT_GPU, DEFAULT_CPU = "gpt3,layers", "smoke"


def select(text: str) -> tuple[Case, ...]:
    """Rows that ``text`` names: terms joined by commas, each a row's name, a tag, or tags with +.

    A name outside the list is a row too: "rs-4096x2048x1024".

    Raises:
      ValueError: a term names nothing.

    Example:
      >>> [case.name for case in select("smoke+ag,rs-64x32x16")]
      ['ag-256x128x256', 'rs-64x32x16']
    """
    found: dict[str, Case] = {}
    for term in filter(None, (part.strip() for part in text.split(","))):
        match = _NAME.fullmatch(term)
        if match:
            kind, (m, n, k) = match[1], map(int, match.groups()[1:])
            rows = [c for c in CASES if c.name == term] or [Case(kind, m, n, k)]
        else:
            tags = set(term.split("+"))
            rows = [c for c in CASES if term == "all" or tags <= set(c.tags)]
        if not rows:
            raise ValueError(f"{term!r} names no row. {_help()}")
        found.update((case.name, case) for case in rows)
    if not found:
        raise ValueError(f"no row is named. {_help()}")
    return tuple(found.values())


def _help() -> str:
    tags = ", ".join(dict.fromkeys(tag for case in CASES for tag in case.tags))
    return (
        f"Name a tag ({tags}, all), tags joined by + (gpt3+ag), or sizes "
        "(ag-MxNxK: m rows of all ranks, n and k per GPU)"
    )
