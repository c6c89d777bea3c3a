# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What flags must keep, with the reason and the remedy of each rule."""

import argparse
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

COUNTS = (
    "new",
    *("steps", "batch", "seq", "accumulate", "warmup", "decay_steps", "eval_every", "keep"),
    *("layers", "d_model", "heads", "kv_heads", "dp", "tp", "host_devices", "processes"),
)
NOT_NEGATIVE = ("sample", "checkpoint_every", "process")


def check_numbers(values: Mapping[str, Any]) -> None:
    """Checks each number alone, of those that there are.

    Raises:
        ValueError: one is out of its range.
    """
    values = {name: value for name, value in values.items() if value is not None}
    for name in COUNTS:
        if values.get(name, 1) < 1:
            raise ValueError(f"{_flag(name)} is {values[name]}. It counts things: give at least 1.")
    for name in NOT_NEGATIVE:
        if values.get(name, 0) < 0:
            raise ValueError(f"{_flag(name)} is {values[name]}. Give 0 or more.")
    if not 0 <= values["seed"] < 2**63:
        raise ValueError(f"--seed is {values['seed']}. A seed is 0 or more and less than 2**63.")
    for name, what in (("lr", "learning rate"), ("clip", "norm")):
        if not 0 < values.get(name, 1.0) < math.inf:
            raise ValueError(
                f"{_flag(name)} is {values[name]}. A {what} is greater than 0 and finite."
            )
    if not 0 <= values.get("weight_decay", 0.0) < math.inf:
        raise ValueError(f"--weight-decay is {values['weight_decay']}. It is 0 or more and finite.")


def check(flags: Any, platform: str, devices: int) -> None:
    """Checks the numbers against each other.

    Raises:
        ValueError: a combination cannot work.
    """
    if flags.dp * flags.tp > devices:
        raise ValueError(
            f"--dp {flags.dp} x --tp {flags.tp} needs {flags.dp * flags.tp} devices, and this"
            f" process has {devices} ({platform}). Choose dp and tp with dp * tp <= {devices}."
        )
    _multiple("heads", flags.heads, "--tp", flags.tp, "attention heads are split over tp")
    _multiple("kv_heads", flags.kv_heads, "--tp", flags.tp, "key heads are split over tp")
    _multiple(
        "heads",
        flags.heads,
        "--kv-heads",
        flags.kv_heads,
        "each key head serves equally many query heads",
    )
    _multiple("seq", flags.seq, "--tp", flags.tp, "the residual stream is split by position")
    _multiple("batch", flags.batch, "--dp", flags.dp, "each dp rank takes an equal share")
    _multiple(
        "batch",
        flags.batch,
        "--dp * --accumulate",
        flags.dp * flags.accumulate,
        "each dp rank takes equally many sequences per microbatch",
    )
    _multiple(
        "d_model", flags.d_model, "2 * --heads", 2 * flags.heads, "rotary heads have an even size"
    )
    if flags.decay_steps <= flags.warmup:
        raise ValueError(
            f"--decay-steps is {flags.decay_steps} and --warmup is {flags.warmup}, but the rate"
            " decays after the warm-up. Use a larger --decay-steps or a smaller --warmup."
        )
    if flags.resume and flags.restart:
        raise ValueError("--resume goes on with a run that --restart discards: give one of them.")


def check_processes(typed: argparse.Namespace) -> None:
    """Checks the flags that say how processes find each other.

    Raises:
        ValueError: some are missing, or contradict each other.
    """
    by_hand = {
        "--coordinator": typed.coordinator,
        "--processes": typed.processes,
        "--process": typed.process,
    }
    given = [flag for flag, value in by_hand.items() if value is not None]
    if given and len(given) < 3:
        missing = " and ".join(flag for flag in by_hand if flag not in given)
        raise ValueError(
            f"{' and '.join(given)} without {missing}. A process must know the address of process"
            f" 0, how many there are, and its own number. Add {missing}, or use --distributed under"
            " Slurm."
        )
    if given and typed.distributed:
        raise ValueError(
            "--distributed asks the launcher what --coordinator, --processes and --process say."
            " Give the one or the other."
        )
    if given and not 0 <= typed.process < typed.processes:
        raise ValueError(
            f"--process is {typed.process} and --processes is {typed.processes}. Processes are"
            f" numbered from 0 to {typed.processes - 1}."
        )


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


def _multiple(name: str, value: int, divisor_name: str, divisor: int, why: str) -> None:
    if value % divisor:
        near = max(divisor, value // divisor * divisor)
        raise ValueError(
            f"{_flag(name)} is {value} and {divisor_name} is {divisor}, but {why}, so the former"
            f" must be a multiple of the latter. Use {_flag(name)} {near} or change"
            f" {divisor_name.removeprefix('2 * ')}."
        )
