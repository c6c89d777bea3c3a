# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Command line of ``train_lm.py``: defaults per platform, and the rules a combination must keep."""

import argparse
import dataclasses
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# A minute or two on two CPU cores; enough work per step to fill GPUs.
CPU_DEFAULTS: dict[str, Any] = {
    "steps": 250,
    "batch": 16,
    "seq": 128,
    "layers": 4,
    "d_model": 128,
    "heads": 4,
    "dtype": "float32",
    "lr": 4e-3,
}
GPU_DEFAULTS: dict[str, Any] = {
    "steps": 300,
    "batch": 8,
    "seq": 2048,
    "layers": 8,
    "d_model": 2048,
    "heads": 16,
    "dtype": "bfloat16",
    "lr": 5e-4,
}
DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Flags:
    """Every flag with its final value; ``implementation=None`` lets the ops choose."""

    steps: int
    dp: int
    tp: int
    batch: int
    seq: int
    layers: int
    d_model: int
    heads: int
    dtype: str
    lr: float
    implementation: str | None
    seed: int
    out: Path


def parse(argv: Sequence[str] | None, description: str | None) -> argparse.Namespace:
    """Returns the flags as typed; those left out are None until the platform is known."""
    parser = argparse.ArgumentParser(
        prog="train_lm",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def add(flag: str, kind: type, text: str, **options: Any) -> None:
        name = flag.removeprefix("--").replace("-", "_")
        if name in CPU_DEFAULTS:
            text += f" (default {CPU_DEFAULTS[name]}; on GPUs {GPU_DEFAULTS[name]})"
        parser.add_argument(flag, type=kind, help=text, **options)

    add("--steps", int, "optimiser steps")
    add("--dp", int, "data-parallel size (default: what --tp leaves over)")
    add("--tp", int, "tensor-parallel size (default: as many devices as divide the heads)")
    add("--batch", int, "sequences per step, over all devices")
    add("--seq", int, "bytes per sequence")
    add("--layers", int, "transformer blocks")
    add("--d-model", int, "width of the residual stream")
    add("--heads", int, "attention heads")
    add("--dtype", str, "dtype of the matmuls; parameters are float32", choices=DTYPES)
    add("--lr", float, "peak learning rate")
    parser.add_argument(
        "--implementation",
        choices=("auto", "fused", "xla"),
        default="auto",
        help="of the jax_flux ops: auto (default) is fused where that is expected not to lose",
    )
    parser.add_argument("--seed", type=int, default=0, help="of initial values and batches")
    parser.add_argument("--out", type=Path, default=Path("out/train_lm"), help="folder of results")
    return parser.parse_args(argv)


def resolve(typed: argparse.Namespace, platform: str, devices: int) -> Flags:
    """Fills in defaults and checks every rule.

    Args:
        typed: what ``parse`` returned.
        platform: of the devices: "cpu" or "gpu".
        devices: how many there are.

    Raises:
        ValueError: a combination cannot work; the text has the rule, its reason and the remedy.
    """
    values = dict(CPU_DEFAULTS if platform == "cpu" else GPU_DEFAULTS)
    values.update({name: value for name, value in vars(typed).items() if value is not None})
    if values["implementation"] == "auto":
        values["implementation"] = None
    for name in ("steps", "dp", "tp", "batch", "seq", "layers", "d_model", "heads"):
        if values.get(name, 1) < 1:
            raise ValueError(f"{_flag(name)} is {values[name]}. It counts things: give at least 1.")
    if not 0 <= values["seed"] < 2**63:
        raise ValueError(f"--seed is {values['seed']}. A seed is 0 or more and less than 2**63.")
    if not 0 < values["lr"] < math.inf:
        raise ValueError(f"--lr is {values['lr']}. A learning rate is greater than 0 and finite.")

    if "tp" not in values:
        values["tp"] = math.gcd(values["heads"], max(1, devices // values.get("dp", 1)))
    values.setdefault("dp", max(1, devices // values["tp"]))
    flags = Flags(**values)
    if flags.dp * flags.tp > devices:
        raise ValueError(
            f"--dp {flags.dp} x --tp {flags.tp} needs {flags.dp * flags.tp} devices, and this"
            f" process has {devices} ({platform}). Choose dp and tp with dp * tp <= {devices}."
        )
    _check_multiple("heads", flags.heads, "--tp", flags.tp, "attention heads are split over tp")
    _check_multiple("seq", flags.seq, "--tp", flags.tp, "the residual stream is split by position")
    _check_multiple("batch", flags.batch, "--dp", flags.dp, "each dp rank takes an equal share")
    _check_multiple(
        "d_model", flags.d_model, "2 * --heads", 2 * flags.heads, "rotary heads have an even size"
    )
    return flags


def make_folder(path: Path) -> None:
    """Makes the folder of results.

    Raises:
        ValueError: it cannot be made or written to.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ValueError(
            f"--out is {path}, where nothing can be written ({error.strerror}). The results go"
            " there: name a folder that is yours."
        ) from None


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check_multiple(name: str, value: int, divisor_name: str, divisor: int, why: str) -> None:
    if value % divisor:
        near = max(divisor, value // divisor * divisor)
        raise ValueError(
            f"{_flag(name)} is {value} and {divisor_name} is {divisor}, but {why}, so the former"
            f" must be a multiple of the latter. Use {_flag(name)} {near} or change"
            f" {divisor_name.removeprefix('2 * ')}."
        )
