# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""User-forced plan parts (`Config`): frozen, validated when built, printable, hashable."""

from __future__ import annotations

import dataclasses
from typing import Any

from jax_flux import errors

TILES = ((64, 256), (128, 128), (128, 192), (128, 256), (256, 128), (256, 192))
CLUSTERS = ((1, 1), (2, 1), (1, 2))
TRANSPORTS = ("tma", "copy_engine")
MAX_SM_MARGIN = 64


@dataclasses.dataclass(frozen=True)
class Config:
    """Parts of a fused plan that the caller forces; None leaves a part to the planner.

    Args:
      tile: (rows, columns) of the output tile of one CTA, one of ``(64, 256)``, ``(128, 128)``,
        ``(128, 192)``, ``(128, 256)``, ``(256, 128)``, ``(256, 192)``.
      cluster: CTAs per cluster along rows and columns: ``(1, 1)``, ``(2, 1)`` or ``(1, 2)``.
      transport: who moves the data: ``"tma"`` (idle warps of the kernel) or ``"copy_engine"``.
      sm_margin: SMs (0 to 64) left free for other kernels, such as NCCL's.

    Raises:
      OptionError: A part has no such value.

    Example:
      >>> Config(tile=(128, 256), cluster=(2, 1))
      Config(tile=(128, 256), cluster=(2, 1), transport=None, sm_margin=None)
    """

    tile: tuple[int, int] | None = None
    cluster: tuple[int, int] | None = None
    transport: str | None = None
    sm_margin: int | None = None

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


def _no_such(name: str, value: Any, allowed: Any) -> str:
    return errors.message(
        "Config",
        f"{name} = {value!r}",
        f"The kernels are compiled for {name} in {allowed} only",
        f"Choose one of those, or leave {name} out and let the planner choose",
    )
