# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes text with a model that train_lm.py trained: tensor-parallel prefill and greedy decoding.

    python examples/train_lm.py                     # trains, and leaves a checkpoint
    python examples/tensor_parallel_inference.py    # loads it; without one, a small untrained model
    python examples/tensor_parallel_inference.py --tp 2 --dp 2 --prompt "def main(" --prompt "if "

The mesh need not be the one of the training, and may span processes by the same flags. The prompts
may differ in length. Prefill reads all of them at once, sequence-parallel, by ag_matmul and
matmul_rs; decoding adds one byte per prompt and step, whose few rows matmul_ar sums on every rank,
and keeps keys and values in a cache that is sharded over heads (tp) and prompts (dp). lm/decode.py
has both.

The table at the end has the tokens per second of each and which implementation ran, and why. Then
every byte is compared with what a full forward pass without a cache would have chosen (exit status
1 if one differs by more than a tie).
"""

import argparse
import dataclasses
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P
from lm import checkpoints, decode, model, processes, report, rules, training
from lm.flags import DTYPES, folder, mesh_flags
from rich.console import Console
from rich.table import Table

import jax_flux

HOST_DEVICES = 8
DEFAULT_RUN = Path("out/train_lm")
PROMPTS = ("def ", "import os, ", "class Error(Exception):\n    ", "for ")
FRESH = model.Config(layers=2, d_model=128, heads=8)
# Two bytes tie if their logits differ by less than this part of the largest: about a hundred
# roundings in f32, a few in bf16.
TIE = {"float32": 1e-5, "bfloat16": 3e-2}


class Model(NamedTuple):
    """What is to be run, and where it is from."""

    config: model.Config
    mesh: Mesh
    params: model.Params
    origin: str


class Phase(NamedTuple):
    """One row of the table: a program's time, and the ops that it traced."""

    name: str
    tokens: int
    seconds: float
    stats: Mapping[str, Mapping[str, Any]]


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Returns the flags as typed."""
    parser = argparse.ArgumentParser(
        prog="tensor_parallel_inference",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--checkpoint", type=folder, help=f"--out of a train_lm run (default: {DEFAULT_RUN})")
    mesh_flags(parser.add_argument_group("mesh and processes"))
    add("--prompt", action="append", help="text to go on from; may be repeated")
    add("--new", type=int, default=64, help="bytes to write per prompt (64)")
    add("--dtype", choices=DTYPES, help="dtype of the matmuls (default: the training's)")
    add(
        "--implementation",
        choices=("auto", "fused", "xla"),
        default="auto",
        help="of prefill's ops",
    )
    add("--seed", type=int, default=0, help="of the untrained model (0)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Loads, prefills, decodes, checks.

    Returns:
        Exit status: 0, or 1 if a byte is not the full forward's, or 2 if the flags cannot work.
    """
    typed = parse(argv)
    try:
        rules.check_numbers(vars(typed))
        processes.join(typed)
        loaded = load(typed, jax.devices())
        return run(typed, loaded)
    except (ValueError, checkpoints.CheckpointError, jax_flux.errors.FluxError) as error:
        print(f"tensor_parallel_inference: {error}", file=sys.stderr)
        return 2


def load(typed: argparse.Namespace, devices: Sequence[jax.Device]) -> Model:
    """The checkpoint's model; a fresh one where none was named and the default has none."""
    num_prompts = len(typed.prompt or PROMPTS)

    def make_mesh(config: model.Config) -> Mesh:
        return choose_mesh(config, typed, devices, num_prompts)

    try:
        folder = typed.checkpoint or DEFAULT_RUN
        config, mesh, params, step = checkpoints.load_params(folder, make_mesh)
        origin = f"{folder}, step {step}"
    except checkpoints.NoCheckpointError:
        if typed.checkpoint is not None:
            raise
        config, mesh = FRESH, make_mesh(FRESH)
        params = fresh_params(mesh, config, typed.seed)
        origin = f"untrained: {folder} holds no checkpoint (python examples/train_lm.py makes one)"
    if typed.dtype:
        config = dataclasses.replace(config, dtype=typed.dtype)
    return Model(config, mesh, params, origin)


def fresh_params(mesh: Mesh, config: model.Config, seed: int) -> model.Params:
    """Initial parameters on the mesh."""
    specs = training.param_specs(config)
    shardings = jax.tree.map(lambda spec: jax.NamedSharding(mesh, spec), specs)
    init = jax.jit(lambda key: model.init_params(key, config), out_shardings=shardings)
    params: model.Params = init(jax.random.key(seed))
    return params


def choose_mesh(
    config: model.Config, typed: argparse.Namespace, devices: Sequence[jax.Device], prompts: int
) -> Mesh:
    """The dp x tp mesh that the flags ask for.

    Raises:
        ValueError: too few devices, or heads that tp does not divide.
    """
    heads = config.kv_heads or config.heads
    tp = typed.tp or math.gcd(heads, max(1, len(devices) // (typed.dp or 1)))
    dp = typed.dp or math.gcd(prompts, max(1, len(devices) // tp))
    if heads % tp:
        raise ValueError(
            f"--tp is {tp} and the model has {heads} heads of keys, which are split over tp. Use a"
            f" --tp that divides {heads}."
        )
    if dp * tp > len(devices):
        raise ValueError(
            f"--dp {dp} x --tp {tp} needs {dp * tp} devices, and there are {len(devices)}. Choose"
            f" dp and tp with dp * tp <= {len(devices)}."
        )
    kinds = (AxisType.Auto, AxisType.Auto)
    return jax.make_mesh((dp, tp), ("dp", "tp"), axis_types=kinds, devices=devices[: dp * tp])


def run(typed: argparse.Namespace, loaded: Model) -> int:
    """Prefills and decodes, prints text and table; returns the exit status."""
    config, mesh, params, origin = loaded
    implementation = None if typed.implementation == "auto" else typed.implementation
    prompts = [text.encode() for text in typed.prompt or PROMPTS]
    tokens, lengths = decode.pad_prompts(prompts, mesh)
    console = report.make_console(talks=processes.is_first())
    plan = {
        "model": origin,
        "sizes": f"{config.layers} layers, d_model {config.d_model}, {config.heads} heads over"
        f" {config.kv_heads or config.heads} of keys; matmuls in {config.dtype}",
        "mesh": f"dp={mesh.shape['dp']} x tp={mesh.shape['tp']} on {mesh.size} x"
        f" {mesh.devices.flat[0].device_kind}",
        "prompts": f"{len(prompts)} of {min(map(len, prompts))} to {max(map(len, prompts))} bytes,"
        f" {typed.new} new each",
    }
    report.print_plan(console, "tensor_parallel_inference", plan)

    slots = max(tokens.shape[1], int(lengths.max()) + typed.new - 1)
    prefill = decode.make_prefill(mesh, config, slots, implementation)
    greedy = decode.make_decode(mesh, config, typed.new, implementation)
    placed = training.put(mesh, P("dp", "tp"), tokens), training.put(mesh, P("dp"), lengths)
    first, (logits, cache) = timed("prefill", int(lengths.sum()), prefill, params, *placed)
    count = typed.new * len(lengths)
    key = jax.random.key(0)
    second, new = timed("decode", count, greedy, params, logits, cache, key)
    new = training.host_copy(new)[: len(prompts)]

    report.print_samples(
        console,
        [(a, b.astype(np.uint8).tobytes()) for a, b in zip(prompts, new, strict=True)],
    )
    print_phases(console, (first, second))
    return check(console, config, mesh, params, prompts, new, implementation)


def timed(name: str, tokens: int, program: Callable[..., Any], *operands: Any) -> tuple[Phase, Any]:
    """Runs the program twice; (time of the second run and what tracing counted, result)."""
    jax_flux.stats_reset()
    jax.block_until_ready(program(*operands))
    stats = jax_flux.stats()
    began = time.perf_counter()
    result = jax.block_until_ready(program(*operands))
    return Phase(name, tokens, time.perf_counter() - began, stats), result


def print_phases(console: Console, phases: Sequence[Phase]) -> None:
    """Prints speed and implementation of each phase."""
    table = Table(title="Speed, after compilation, and what ran")
    table.add_column("phase")
    for heading in ("tokens", "ms", "tokens/s"):
        table.add_column(heading, justify="right")
    table.add_column("op: implementation", no_wrap=True)
    table.add_column("why", overflow="fold")
    for phase in phases:
        ran = {
            op: "fused" if counts["fused"] and not counts["xla"] else "xla"
            for op, counts in phase.stats.items()
        }
        why = {reason for counts in phase.stats.values() for reason in counts["reasons"]}
        table.add_row(
            phase.name,
            f"{phase.tokens:,}",
            f"{1e3 * phase.seconds:,.1f}",
            f"{phase.tokens / phase.seconds:,.0f}",
            "\n".join(f"{op}: {name}" for op, name in ran.items()),
            "; ".join(sorted(why)),
        )
    console.print(table)


def check(
    console: Console,
    config: model.Config,
    mesh: Mesh,
    params: model.Params,
    prompts: Sequence[bytes],
    new: np.ndarray,
    implementation: str | None,
) -> int:
    """Compares every new byte with the choice of a full forward pass; returns the exit status."""
    texts = [a + b.astype(np.uint8).tobytes() for a, b in zip(prompts, new, strict=True)]
    tokens, _ = decode.pad_prompts(texts, mesh)
    forward = decode.make_logits(mesh, config, implementation)
    logits = training.host_copy(forward(params, training.put(mesh, P("dp", "tp"), tokens)))
    same, worst = 0, 0.0
    for prompt, written, rows in zip(prompts, new, logits, strict=False):
        rows = rows[len(prompt) - 1 :][: len(written)]
        chosen = np.take_along_axis(rows, written[:, None], axis=1)[:, 0]
        gaps = (rows.max(axis=1) - chosen) / np.abs(rows).max(axis=1)
        same += int((rows.argmax(axis=1) == written).sum())
        worst = float(np.maximum(worst, gaps.max()))  # NaN stays, and passes no limit
    limit = TIE[config.dtype]
    passed = worst <= limit
    verdict = "as" if passed else "NOT as"
    console.print(
        f"decoding is {verdict} the full forward pass: {same} of {new.size} bytes are its choice;"
        f" largest gap to its choice {worst:.1e} of the largest logit, {limit:.0e} allowed"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    # Only the CPU backend reads this, and only before the first use of a device.
    jax.config.update("jax_num_cpu_devices", HOST_DEVICES)
    sys.exit(main())
