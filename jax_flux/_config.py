# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""User-forced plan parts (`Config`): frozen, validated when built, printable, hashable."""

from __future__ import annotations

import dataclasses
from typing import Any

from jax_flux import errors

TILES = ((64, 256), (128, 128), (128, 192), (128, 256), (256, 128), (256, 192))
CLUSTERS = ((1, 1), (2, 1), (1, 2))
TRANSPORTS = ("tma", "copy")  # in the order of cuda/kernels/gemm.h, Transport
MAX_SM_MARGIN = 64


@dataclasses.dataclass(frozen=True)
class Steps:
    """Whole numbers from ``step`` to ``most``, multiples of ``step``."""

    step: int
    most: int
    why: str = ""

    def holds(self, value: Any) -> bool:
        """Whether ``value`` is one of them; True and False are no numbers here."""
        return (
            isinstance(value, int)
            and not isinstance(value, bool)
            and self.step <= value <= self.most
            and value % self.step == 0
        )

    def __str__(self) -> str:
        return f"multiples of {self.step} up to {self.most}{self.why}"


# Numbers of a plan that change a kernel's speed and flags, never its result. cuda/kernels/gemm.h
# says what each does; 0 in an attribute (-1 for depth_outer) leaves it to the library.
NUMBERS = {
    "chunk_rows": Steps(16, 1 << 16, " (a push moves boxes of 16 rows)"),
    "chunk_depth": Steps(256, 1 << 20, " (a push moves boxes of 256 k)"),
    "push_peers": Steps(1, 64),
    "push_ctas": Steps(1, 1 << 16),
    "raster_group": Steps(1, 1 << 16),
    "sweep_segments": Steps(1, 64),
}


@dataclasses.dataclass(frozen=True)
class Config:
    """Parts of a fused plan that the caller forces; None leaves a part to the planner.

    Args:
      tile: (rows, columns) of the output tile of one CTA, one of ``(64, 256)``, ``(128, 128)``,
        ``(128, 192)``, ``(128, 256)``, ``(256, 128)``, ``(256, 192)``.
      cluster: CTAs per cluster along rows and columns: ``(1, 1)``, ``(2, 1)`` or ``(1, 2)``.
      transport: who brings the peers' shards: ``"tma"`` (idle warps of the kernel) or ``"copy"``
        (the GPU's copy engines, for the gather of ag_matmul only; worth a try where the shard of
        a rank is tens of MiB). At an axis of size 1 there is nothing to bring.
      sm_margin: SMs (0 to 64) left free for other kernels, such as NCCL's.
      instance: name of a compiled kernel, as in the plan of `explain`.
      chunk_rows: ag_matmul: rows of x that a rank pushes (or copies) and flags at once, a
        multiple of 16.
      chunk_depth: the same along k, a multiple of 256.
      depth_outer: ag_matmul: all rows of one k range first (True), or all k of one row range.
      push_peers: ag_matmul: peers that are served in turn, chunk by chunk.
      push_ctas: ag_matmul: CTAs that push at a time.
      raster_group: tile rows that share one walk over the columns.
      sweep_segments: peers' segments that share one walk over the columns.

    Raises:
      OptionError: A part has no such value.

    Example:
      >>> Config(tile=(128, 256), cluster=(2, 1))
      Config(tile=(128, 256), cluster=(2, 1))
    """

    tile: tuple[int, int] | None = None
    cluster: tuple[int, int] | None = None
    transport: str | None = None
    sm_margin: int | None = None
    instance: str | None = None
    chunk_rows: int | None = None
    chunk_depth: int | None = None
    depth_outer: bool | None = None
    push_peers: int | None = None
    push_ctas: int | None = None
    raster_group: int | None = None
    sweep_segments: int | None = None

    def __post_init__(self) -> None:
        for name, allowed in (("tile", TILES), ("cluster", CLUSTERS), ("transport", TRANSPORTS)):
            value = getattr(self, name)
            if isinstance(value, list):
                value = tuple(value)
                object.__setattr__(self, name, value)
            if value is not None and not (isinstance(value, str | tuple) and value in allowed):
                raise errors.OptionError(_no_such(name, value, allowed))
        margin = self.sm_margin
        if margin is not None and (
            not isinstance(margin, int)
            or isinstance(margin, bool)
            or not 0 <= margin <= MAX_SM_MARGIN
        ):
            raise errors.OptionError(_no_such("sm_margin", margin, f"0 .. {MAX_SM_MARGIN}"))
        if self.instance is not None and not (isinstance(self.instance, str) and self.instance):
            raise errors.OptionError(_no_such("instance", self.instance, "names of its table"))
        if self.depth_outer is not None and not isinstance(self.depth_outer, bool):
            raise errors.OptionError(_no_such("depth_outer", self.depth_outer, (True, False)))
        for name, steps in NUMBERS.items():
            value = getattr(self, name)
            if value is not None and not steps.holds(value):
                raise errors.OptionError(_no_such(name, value, str(steps)))

    def __repr__(self) -> str:
        given = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        return f"Config({', '.join(f'{n}={v!r}' for n, v in given if v is not None)})"

    def numbers(self) -> dict[str, int]:
        """The forced numbers of a plan as a handler takes them."""
        given = {name: getattr(self, name) for name in (*NUMBERS, "depth_outer")}
        return {name: int(value) for name, value in given.items() if value is not None}


def _no_such(name: str, value: Any, allowed: Any) -> str:
    return errors.message(
        "Config",
        f"{name} = {value!r}",
        f"The kernels are compiled for {name} in {allowed} only"
        if name not in NUMBERS
        else f"The kernels take {name} in {allowed}",
        f"Choose one of those, or leave {name} out and let the planner choose",
    )
