# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains a small byte-level language model with tensor, sequence and data parallelism.

    python examples/train_lm.py                     # the GPUs that are there, or 8 host devices
    python examples/train_lm.py --tp 2 --steps 50   # another mesh, fewer steps

On a machine with one GPU two ranks share it where NCCL allows (lm/ranks.py).

The text is the source code of Python's standard library. Every linear layer of a block is one
jax_flux op inside one fully manual jax.shard_map: ag_matmul gathers the sequence and multiplies
(q, k, v together; gate and up together), matmul_rs multiplies and scatters the sequence again.
The model is in lm/model.py, the training step in lm/training.py.

A seed fixes initial values and batches, and on host devices every bit of the run; on GPUs XLA may
tune its own matmuls differently from one process to the next.

At the end the run says which implementation each op took, measures the loss on held-out files,
compares loss and every gradient with the same model on one device (exit status 1 if they differ),
and writes loss.png and metrics.json under --out.
"""

import math
import os
import sys
import time
from collections.abc import Sequence

import jax
from jax.sharding import AxisType, Mesh
from lm import data, model, parity, ranks, report, training
from lm.flags import Flags, make_folder, parse, resolve
from rich.console import Console

import jax_flux

HOST_DEVICES = 8
EVALUATIONS = 5
EVALUATION_BATCHES = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Trains, evaluates, checks, reports.

    Returns:
        Exit status: 0, or 1 if the parity check failed, or 2 if the flags cannot work.
    """
    typed = parse(argv, __doc__)
    try:
        choice = ranks.choose(typed)
        if choice.library is not None:
            return ranks.launch(sys.argv[1:] if argv is None else argv, typed, choice.library)
        if choice.note is not None:
            print(f"train_lm: {choice.note}", file=sys.stderr)
        ranks.join()
        devices = jax.devices()
        flags = resolve(typed, devices[0].platform, len(devices))
        corpus = data.load_corpus(flags.seq)
        return run(flags, devices[: flags.dp * flags.tp], corpus)
    except jax_flux.errors.ImplementationError as error:
        print(
            f"train_lm: {error} The flags for these two are --implementation auto and"
            " --implementation xla.",
            file=sys.stderr,
        )
        return 2
    except (ValueError, data.NoTextError, jax_flux.errors.FluxError) as error:
        print(f"train_lm: {error}", file=sys.stderr)
        return 2


def run(flags: Flags, devices: Sequence[jax.Device], corpus: data.Corpus) -> int:
    """Does what the flags ask for on a dp x tp mesh of these devices; returns the exit status."""
    make_folder(flags.out)  # fails now, not after the training
    console = report.make_console()
    mesh = jax.make_mesh(
        (flags.dp, flags.tp),
        ("dp", "tp"),
        axis_types=(AxisType.Auto, AxisType.Auto),
        devices=devices,
    )
    config = model.Config(flags.layers, flags.d_model, flags.heads, flags.dtype)
    console.print(describe(flags, config, mesh, corpus), highlight=False)

    jax_flux.stats_reset()
    params, train_losses, held_out = train(console, flags, config, mesh, corpus)
    report.print_stats(console, jax_flux.stats())
    console.print(f"held-out loss {held_out[flags.steps]:.4f} nats/byte after {flags.steps} steps")

    batch = data.sample_batch(corpus.held_out, flags.dp, flags.seq, seed=flags.seed, step=0)
    with_bf16 = devices[0].platform == "gpu"
    rows = parity.check(mesh, config, params, batch, flags.implementation, with_bf16=with_bf16)
    passed = report.print_parity(console, rows)

    title = f"{config.dtype}, mesh dp={flags.dp} x tp={flags.tp}, {devices[0].device_kind}"
    report.write_results(console, flags.out, title, train_losses, held_out, rows)
    return 0 if passed else 1


def describe(flags: Flags, config: model.Config, mesh: Mesh, corpus: data.Corpus) -> str:
    """Says in a few lines what is about to run."""
    count = sum(math.prod(p.shape) for p in jax.tree.leaves(model.param_table(config)))
    kind = mesh.devices.flat[0].device_kind
    lines = [
        f"text: {corpus.origin}",
        f"      {len(corpus.train):,} bytes to train on, {len(corpus.held_out):,} held out",
        f"model: {count / 1e6:.1f} M parameters, {config.layers} layers, d_model"
        f" {config.d_model}, {config.heads} heads, {config.dtype}",
        f"mesh: dp={flags.dp} x tp={flags.tp} on {mesh.size} x {kind}; a step is"
        f" {flags.batch} x {flags.seq} bytes",
    ]
    if flags.tp == 1:
        lines.append(
            "tp=1: no peer to exchange with, no communication to hide: every op is a plain matmul"
        )
    if ranks.joined():
        lines.append("the ranks share one GPU and take turns on it: times say nothing")
    return "\n".join(lines)


def train(
    console: Console, flags: Flags, config: model.Config, mesh: Mesh, corpus: data.Corpus
) -> tuple[model.Params, list[float], dict[int, float]]:
    """Returns (parameters, loss of every step, held-out loss by step)."""
    optimizer = training.make_optimizer(config, learning_rate=flags.lr, steps=flags.steps)
    state = training.init_state(mesh, config, optimizer, seed=flags.seed)
    train_step = training.make_train_step(mesh, config, optimizer, flags.implementation)
    eval_step = training.make_eval_step(mesh, config, flags.implementation)

    def sample(text: data.Text, step: int) -> tuple[jax.Array, jax.Array]:
        batch = data.sample_batch(text, flags.batch, flags.seq, seed=flags.seed, step=step)
        return training.put_batch(mesh, batch)

    train_losses: list[float] = []
    held_out: dict[int, float] = {}
    with report.progress(console, flags.steps) as on_step:
        for step in range(1, flags.steps + 1):
            start = time.perf_counter()
            state, loss = train_step(state, *sample(corpus.train, step))
            train_losses.append(float(loss))  # waits for the step
            seconds = time.perf_counter() - start
            on_step(step, train_losses[-1], flags.batch * flags.seq / seconds, 1e3 * seconds)

            if step % max(1, flags.steps // EVALUATIONS) == 0 or step == flags.steps:
                losses = [
                    float(eval_step(state.params, *sample(corpus.held_out, i)))
                    for i in range(EVALUATION_BATCHES)
                ]
                held_out[step] = sum(losses) / len(losses)
    return state.params, train_losses, held_out


if __name__ == "__main__":
    # Only the CPU backend reads this, and only before the first use of a device.
    jax.config.update("jax_num_cpu_devices", HOST_DEVICES)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("train_lm: interrupted, nothing was written", file=sys.stderr, flush=True)
        # Not sys.exit: tearing XLA's CPU client down under a running step aborts the process.
        os._exit(130)
