# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Command line of ``train_lm.py``: defaults per platform. The rules are in rules.py."""

import argparse
import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lm import rules
from lm.model import REMAT
from lm.optimizer import SCHEDULES

# Less than a minute on two CPU cores; enough work per step to fill GPUs.
CPU_DEFAULTS: dict[str, Any] = {
    "steps": 200,
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
EVALUATIONS = 5


@dataclasses.dataclass(frozen=True)
class Flags:
    """Every flag with its final value; ``implementation=None`` lets the ops choose.

    ``typed`` names those that do not come from the platform or from other flags.
    """

    steps: int
    dp: int
    tp: int
    batch: int
    seq: int
    layers: int
    d_model: int
    heads: int
    kv_heads: int
    dtype: str
    remat: str
    lr: float
    schedule: str
    warmup: int
    decay_steps: int
    clip: float
    weight_decay: float
    accumulate: int
    implementation: str | None
    seed: int
    eval_every: int
    sample: int
    checkpoint_every: int
    keep: int
    resume: bool
    restart: bool
    out: Path
    typed: frozenset[str]


def folder(text: str) -> Path:
    """argparse's type of a folder; ``~`` at its start is the home: no shell expands ``--out=~``."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # no such user
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None


def follow(values: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a run that follow from others where they are not given."""
    steps = values["steps"]
    warmup = values.get("warmup", max(1, steps // 10))
    return {
        "kv_heads": values["heads"],
        "warmup": warmup,
        "decay_steps": max(steps, warmup + 1),
        "eval_every": max(1, steps // EVALUATIONS),
    }


def parse(argv: Sequence[str] | None, description: str | None) -> argparse.Namespace:
    """Returns the flags as typed; those left out are None until the platform is known."""
    parser = argparse.ArgumentParser(
        prog="train_lm",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    mesh_flags(parser.add_argument_group("mesh and processes"))
    _model_flags(parser.add_argument_group("model"))
    _training_flags(parser.add_argument_group("training"))
    _result_flags(parser.add_argument_group("results"))
    return parser.parse_args(argv)


def _add(group: Any, flag: str, kind: Any, text: str, **options: Any) -> None:
    name = flag.removeprefix("--").replace("-", "_")
    if name in CPU_DEFAULTS:
        text += f" (default {CPU_DEFAULTS[name]}; on GPUs {GPU_DEFAULTS[name]})"
    group.add_argument(flag, type=kind, help=text, **options)


def mesh_flags(group: Any) -> None:
    """Sizes of the mesh, and how processes find each other (processes.py)."""
    _add(group, "--dp", int, "data-parallel size (default: what --tp leaves over)")
    _add(group, "--tp", int, "tensor-parallel size (default: as many as divide the heads)")
    _add(group, "--host-devices", int, "CPU devices of this process, without GPUs (default 8)")
    _add(group, "--coordinator", str, "HOST:PORT of process 0, where there are several processes")
    _add(group, "--processes", int, "how many processes there are, with --coordinator")
    _add(group, "--process", int, "number of this one, from 0, with --coordinator")
    group.add_argument(
        "--distributed",
        action="store_true",
        help="several processes, started by Slurm or another launcher that JAX recognises",
    )


def _model_flags(group: Any) -> None:
    _add(group, "--layers", int, "transformer blocks")
    _add(group, "--d-model", int, "width of the residual stream")
    _add(group, "--heads", int, "attention heads")
    _add(group, "--kv-heads", int, "heads of keys and values (default: as many as --heads)")
    _add(group, "--dtype", str, "dtype of the matmuls; parameters are float32", choices=DTYPES)
    group.add_argument(
        "--remat",
        choices=tuple(REMAT),
        default="attention",
        help="; ".join(f"{name}: {what}" for name, what in REMAT.items()),
    )
    group.add_argument(
        "--implementation",
        choices=("auto", "fused", "xla"),
        default="auto",
        help="of the jax_flux ops: auto (default) is fused where that is expected not to lose",
    )


def _training_flags(group: Any) -> None:
    _add(group, "--steps", int, "optimiser steps")
    _add(group, "--batch", int, "sequences per step, over all devices and microbatches")
    _add(group, "--seq", int, "bytes per sequence")
    _add(group, "--accumulate", int, "microbatches whose gradients make a step (1)", default=1)
    _add(group, "--lr", float, "peak learning rate")
    _add(group, "--schedule", str, "after warm-up (cosine)", choices=SCHEDULES, default="cosine")
    _add(group, "--warmup", int, "steps of warm-up (default: a tenth of --steps)")
    _add(group, "--decay-steps", int, "when the schedule ends (default: --steps)")
    _add(group, "--clip", float, "largest norm of the gradient (1)", default=1.0)
    _add(group, "--weight-decay", float, "of the matrices (0.1)", default=0.1)
    _add(group, "--seed", int, "of initial values, batches and samples (0)", default=0)


def _result_flags(group: Any) -> None:
    _add(group, "--eval-every", int, f"steps (default: {EVALUATIONS} times in the run)")
    _add(group, "--sample", int, "bytes of text to write at the end (160)", default=160)
    _add(group, "--checkpoint-every", int, "steps; 0 (default): at the end only", default=0)
    _add(group, "--keep", int, "checkpoints to keep (2)", default=2)
    group.add_argument(
        "--resume", action="store_true", help="go on from the newest checkpoint, if there is one"
    )
    group.add_argument(
        "--restart", action="store_true", help="discard the checkpoints of an unfinished run"
    )
    _add(group, "--out", folder, "folder of results", default=Path("out/train_lm"))


def resolve(typed: argparse.Namespace, platform: str, devices: int) -> Flags:
    """Fills in defaults and checks every rule.

    Args:
        typed: what ``parse`` returned.
        platform: of the devices: "cpu" or "gpu".
        devices: how many there are, in all processes.

    Raises:
        ValueError: a combination cannot work; the text has the rule, its reason and the remedy.
    """
    values = dict(CPU_DEFAULTS if platform == "cpu" else GPU_DEFAULTS)
    values.update({name: value for name, value in vars(typed).items() if value is not None})
    if values["implementation"] == "auto":
        values["implementation"] = None
    rules.check_numbers(values)
    if "tp" not in values:
        shared = math.gcd(values["heads"], values.get("kv_heads", values["heads"]))
        values["tp"] = math.gcd(shared, max(1, devices // values.get("dp", 1)))
    values.setdefault("dp", max(1, devices // values["tp"]))
    values = follow(values) | values
    values["typed"] = frozenset(name for name, value in vars(typed).items() if value is not None)
    flags = Flags(**{field.name: values[field.name] for field in dataclasses.fields(Flags)})
    rules.check(flags, platform, devices)
    return flags
