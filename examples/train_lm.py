# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains a small byte-level language model with tensor, sequence and data parallelism.

    python examples/train_lm.py                           # the GPUs there are, or 8 host devices
    python examples/train_lm.py --dp 2 --tp 4 --steps 50  # another mesh, fewer steps
    python examples/train_lm.py --checkpoint-every 100 --resume      # goes on where it was killed
    python examples/train_lm.py --coordinator host0:1234 --processes 2 --process 0   # and 1
    srun python examples/train_lm.py --distributed        # Slurm says the rest

docs/multi_process.md has more on several processes. On a machine with one GPU two ranks share it
where NCCL allows (lm/ranks.py).

The text is the source code of Python's standard library. Every linear layer of a block is one
jax_flux op inside one fully manual jax.shard_map: ag_matmul gathers the sequence and multiplies
(q, k, v together; gate and up together), matmul_rs multiplies and scatters the sequence again.
Parameters, gradients and moments are float32, the matmuls have --dtype. What is where: model in
lm/model.py, loss and step in lm/training.py, schedule and clipping in lm/optimizer.py, checkpoints
in lm/checkpoints.py, text generation in lm/decode.py.

SIGTERM ends a run after a step, with a checkpoint and exit status 143; --resume goes on from there.

A seed fixes initial values, batches and samples, and on host devices every bit of the run, killed
and resumed or not; on GPUs XLA may tune its own matmuls differently from one process to the next.

At the end the run says which implementation each op took, measures loss and perplexity on held-out
files, lets the model write, compares loss and every gradient with the same model on one device
(exit status 1 if they differ), and writes loss.png, metrics.jsonl and checkpoints/ under --out.
"""

import math
import os
import sys
import time
from collections.abc import Sequence

import jax
from jax.sharding import AxisType, Mesh
from lm import (
    checkpoints,
    data,
    decode,
    metrics,
    model,
    parity,
    preemption,
    processes,
    ranks,
    report,
    training,
)
from lm.flags import Flags, parse, resolve
from lm.optimizer import make_optimizer, make_schedule
from lm.rules import make_folder
from rich.console import Console

import jax_flux

HOST_DEVICES = 8
EVALUATION_BATCHES = 4
PROMPTS = (b"def ", b"import ", b"class ")
TEMPERATURE = 0.7


def main(argv: Sequence[str] | None = None) -> int:
    """Trains, evaluates, checks, reports.

    Returns:
        Exit status: 0, or 1 if the parity check failed, or 2 if the flags cannot work, or 143 if
        SIGTERM ended the training; its checkpoint is written then.
    """
    typed = parse(argv, __doc__)
    try:
        choice = ranks.choose(typed)
        if choice.nccl is not None:
            return ranks.launch(sys.argv[1:] if argv is None else argv, typed, choice.nccl)
        if choice.note is not None:
            print(f"train_lm: {choice.note}", file=sys.stderr)
        processes.join(typed)
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
    except (
        ValueError,
        data.NoTextError,
        checkpoints.CheckpointError,
        jax_flux.errors.FluxError,
    ) as error:
        print(f"train_lm: {error}", file=sys.stderr)
        return 2


def run(flags: Flags, devices: Sequence[jax.Device], corpus: data.Corpus) -> int:
    """Does what the flags ask for on a dp x tp mesh of these devices; returns the exit status."""
    make_folder(flags.out)  # fails now, not after the training
    console = report.make_console(talks=processes.is_first())
    mesh = jax.make_mesh(
        (flags.dp, flags.tp),
        ("dp", "tp"),
        axis_types=(AxisType.Auto, AxisType.Auto),
        devices=devices,
    )
    config = model.Config(
        flags.layers, flags.d_model, flags.heads, flags.dtype, flags.kv_heads, flags.remat
    )
    described = checkpoints.describe_run(flags, corpus)
    say = lambda text: console.print(text, soft_wrap=True, highlight=False)
    store, start = checkpoints.open_store(flags, described, say)
    report.print_plan(console, "train_lm", describe(flags, config, mesh, corpus, start))

    jax_flux.stats_reset()
    log = metrics.Log(flags.out / metrics.NAME, resumed_from=start)
    params, ended = train(console, flags, config, mesh, corpus, store, start, log)
    if ended is not None:
        folder = flags.out / checkpoints.FOLDER
        say(f"SIGTERM: ended after step {ended}, which {folder} holds; --resume goes on from there")
        return preemption.STATUS
    held_out = log.series("held_out_loss")
    if held_out:
        last = max(held_out)
        console.print(report.held_out_line(last, held_out[last]))
    if flags.sample:
        write_samples(console, flags, config, mesh, params, log)
    report.print_stats(console, jax_flux.stats())

    rows = check_parity(flags, config, mesh, corpus, params)
    log.write(flags.steps, parity=[row._asdict() | {"passed": row.passed} for row in rows])
    passed = report.print_parity(console, rows)
    if processes.is_first():
        title = f"{config.dtype}, mesh dp={flags.dp} x tp={flags.tp}, {devices[0].device_kind}"
        report.plot_losses(flags.out / "loss.png", title, log.series("loss"), held_out)
    console.print(
        f"wrote {flags.out}/: loss.png, {metrics.NAME}, {checkpoints.FOLDER}/", soft_wrap=True
    )
    return 0 if passed else 1


def describe(
    flags: Flags, config: model.Config, mesh: Mesh, corpus: data.Corpus, start: int
) -> dict[str, str]:
    """Says in a few lines what is about to run."""
    count = sum(math.prod(p.shape) for p in jax.tree.leaves(model.param_table(config)))
    kind = mesh.devices.flat[0].device_kind
    heads = f"{config.heads} heads"
    if config.kv_heads != config.heads:
        heads += f" over {config.kv_heads} of keys"
    parts = f" in {flags.accumulate} microbatches" if flags.accumulate > 1 else ""
    rows = {
        "text": f"{corpus.origin}\n{len(corpus.train):,} bytes to train on,"
        f" {len(corpus.held_out):,} held out",
        "model": f"{count / 1e6:.1f} M parameters in float32, {config.layers} layers, d_model"
        f" {config.d_model}, {heads}; matmuls in {config.dtype}",
        "mesh": f"dp={flags.dp} x tp={flags.tp} on {mesh.size} x {kind}"
        + (f" in {jax.process_count()} processes" if jax.process_count() > 1 else ""),
        "training": f"{flags.steps} steps of {flags.batch} x {flags.seq} bytes{parts},"
        f" learning rate {flags.lr:g} ({flags.schedule})",
    }
    if start:
        rows["resumed"] = f"from the checkpoint of step {start}"
    if flags.tp == 1:
        rows["note"] = (
            "tp=1: no peer to exchange with, no communication to hide: every op is a plain matmul"
        )
    if ranks.joined():
        rows["note"] = "the ranks share one GPU and take turns on it: times say nothing"
    return rows


def train(
    console: Console,
    flags: Flags,
    config: model.Config,
    mesh: Mesh,
    corpus: data.Corpus,
    store: checkpoints.Store,
    start: int,
    log: metrics.Log,
) -> tuple[model.Params, int | None]:
    """Trains from step ``start`` on, evaluates, saves.

    Returns:
        (parameters, the step after which SIGTERM ended it; None if nothing did).
    """
    schedule = make_schedule(
        flags.schedule, peak=flags.lr, warmup=flags.warmup, decay_steps=flags.decay_steps
    )
    optimizer = make_optimizer(config, schedule, clip=flags.clip, weight_decay=flags.weight_decay)
    if start:
        state = store.restore(start, mesh, config, optimizer)
    else:
        state = training.init_state(mesh, config, optimizer, seed=flags.seed)
    train_step = training.make_train_step(
        mesh, config, optimizer, flags.implementation, flags.accumulate
    )
    eval_step = training.make_eval_step(mesh, config, flags.implementation)

    def sample(text: data.Text, step: int) -> tuple[jax.Array, jax.Array]:
        batch = data.sample_batch(text, flags.batch, flags.seq, seed=flags.seed, step=step)
        return training.put_batch(mesh, batch)

    described, ended = checkpoints.describe_run(flags, corpus), None
    with preemption.notice(start) as stop, report.progress(console, flags.steps, start) as on_step:
        for step in range(start + 1, flags.steps + 1):
            began = time.perf_counter()
            state, measured = train_step(state, *sample(corpus.train, step))
            loss = float(measured.loss)  # waits for the step
            seconds = time.perf_counter() - began
            speed = flags.batch * flags.seq / seconds
            on_step(step, loss, speed, 1e3 * seconds)
            log.write(
                step,
                loss=loss,
                learning_rate=float(schedule(step - 1)),
                grad_norm=float(measured.grad_norm),
                tokens_per_s=round(speed, 1),
                step_ms=round(1e3 * seconds, 3),
            )
            if step % flags.eval_every == 0 or step == flags.steps:
                losses = [
                    float(eval_step(state.params, *sample(corpus.held_out, i)))
                    for i in range(EVALUATION_BATCHES)
                ]
                held_out = sum(losses) / len(losses)
                log.write(step, held_out_loss=held_out, perplexity=report.perplexity(held_out))
            due = flags.checkpoint_every and step % flags.checkpoint_every == 0
            ended = step if stop(step) else None
            if due or ended or step == flags.steps:
                store.save(step, state, described)
            if ended:
                break
        store.close()  # waits for the files
    return state.params, ended


def write_samples(
    console: Console,
    flags: Flags,
    config: model.Config,
    mesh: Mesh,
    params: model.Params,
    log: metrics.Log,
) -> None:
    """Lets the model go on from a few prompts."""
    new = decode.complete(
        mesh,
        config,
        params,
        PROMPTS,
        flags.sample,
        implementation=flags.implementation,
        temperature=TEMPERATURE,
        seed=flags.seed,
    )
    samples = list(zip(PROMPTS, new, strict=True))
    report.print_samples(console, samples)
    shown = [{"prompt": a.decode(), "text": b.decode(errors="replace")} for a, b in samples]
    log.write(flags.steps, samples=shown)


def check_parity(
    flags: Flags,
    config: model.Config,
    mesh: Mesh,
    corpus: data.Corpus,
    params: model.Params,
) -> list[parity.Row]:
    """Compares loss and gradients with one device, on one sequence per dp rank and microbatch."""
    sequences = flags.dp * flags.accumulate
    batch = data.sample_batch(corpus.held_out, sequences, flags.seq, seed=flags.seed, step=0)
    return parity.check(
        mesh,
        config,
        params,
        batch,
        flags.implementation,
        accumulate=flags.accumulate,
        with_bf16=mesh.devices.flat[0].platform == "gpu",
    )


if __name__ == "__main__":
    # Only the CPU backend reads this, and only before the first use of a device.
    jax.config.update("jax_num_cpu_devices", HOST_DEVICES)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print(
            "train_lm: interrupted; what it had written, metrics and complete checkpoints, is in"
            " --out",
            file=sys.stderr,
            flush=True,
        )
        # Not sys.exit: tearing XLA's CPU client down under a running step aborts the process.
        os._exit(130)
