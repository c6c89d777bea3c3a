# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""A transformer block of the Flax layers, forward and backward: fused against XLA, in turns.

    python -m benchmarks.block [--seq 4096 --json F]      and bench's flags for one process per GPU

Attention with rotary positions and grouped heads, then a gated MLP, pre-normalised, bf16; defaults
are a block of Llama 3 70B. Every implementation has the same parameters and input; a call is a few
steps, each depending on the one before through x. Before its times count, each implementation's
loss and gradients are compared with XLA's.
"""

import argparse
import statistics
import sys
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_flux
import jax_flux.nnx
from jax_flux.tools import about, contenders, group, machine, paths, patience, report

# name: (what the layers are told, XLA's options of that program)
CONTENDERS = {
    "xla": ("xla", None),
    "xla-lhs": ("xla", contenders.OPTIONS["xla-lhs"]),
    "jax_flux": (None, None),
    "jax_flux-lhs": (None, contenders.OPTIONS["xla-lhs"]),
}
WRONG = 5e-2  # relative difference of a gradient from XLA's: both are bf16 through a whole block
STEPS = 2
SMALL = "Give --width 512 --hidden 1024 --heads 16 --seq 512, which shows that everything works"


class Block(nnx.Module):
    def __init__(self, sizes, implementation):
        rngs = nnx.Rngs(0)
        how = dict(dtype=jnp.bfloat16, param_dtype=jnp.bfloat16, rngs=rngs)
        own = dict(implementation=implementation, **how)
        self.norms = nnx.List([nnx.RMSNorm(sizes.width, **how) for _ in range(2)])
        self.attention = jax_flux.nnx.ParallelSelfAttention(
            num_heads=sizes.heads,
            in_features=sizes.width,
            num_kv_heads=sizes.kv_heads,
            is_causal=True,
            rope_base=500000.0,
            use_bias=False,
            **own,
        )
        self.mlp = jax_flux.nnx.ParallelMLP(
            sizes.width, sizes.hidden, gated=True, activation="silu", use_bias=False, **own
        )

    def __call__(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


def abstract(sizes, implementation):
    """(graph definition, parameters as shapes)."""
    return nnx.split(nnx.eval_shape(lambda: Block(sizes, implementation)))


def parameters(mesh, state):
    """Normal values of a linear layer's usual size, ones for norms, each rank its own shards."""
    leaves, tree = jax.tree.flatten(state)
    specs = jax.tree.leaves(nnx.get_partition_spec(state), is_leaf=lambda s: isinstance(s, P))

    def make():
        out = []
        for at, leaf in enumerate(leaves):
            if len(leaf.shape) < 2:
                out.append(jnp.ones(leaf.shape, leaf.dtype))
                continue
            value = jax.random.normal(jax.random.key(at), leaf.shape, jnp.float32)
            out.append((value * leaf.shape[0] ** -0.5).astype(leaf.dtype))
        return out

    shardings = [NamedSharding(mesh, spec) for spec in specs]
    return jax.tree.unflatten(tree, jax.jit(make, out_shardings=shardings)())


def gradients(mesh, sizes, implementation):
    """jit-able (state, x) -> (loss, gradients of the parameters, gradient of x), global arrays."""
    graph, state = abstract(sizes, implementation)
    specs = nnx.get_partition_spec(state)

    def local(state, x):
        def loss(state, x):
            y = nnx.merge(graph, state)(x).astype(jnp.float32)
            return jax.lax.pmean(jnp.mean(y**2), group.AXIS)

        value, (d_state, d_x) = jax.value_and_grad(loss, (0, 1))(state, x)
        return value, d_state, d_x

    rows = P(None, group.AXIS)
    return jax.shard_map(local, mesh=mesh, in_specs=(specs, rows), out_specs=(P(), specs, rows))


def chained(one, steps):
    """``steps`` times forward and backward, each on an x that the one before has changed."""

    def call(state, x):
        total = jnp.float32(0)
        for _ in range(steps):
            value, d_state, d_x = jax.lax.optimization_barrier(one(state, x))
            # Every gradient is used, so none of the backward pass is dead code.
            total += value + sum(g.ravel()[0].astype(jnp.float32) for g in jax.tree.leaves(d_state))
            x = x + 1e-3 * d_x
        return total, x

    return call


def compared(one, other, state, x):
    """Relative differences of (loss, the worst gradient) of ``one`` from ``other``."""

    def both(state, x):
        ours, theirs = one(state, x), other(state, x)
        square = lambda a: jnp.sum(jnp.square(a.astype(jnp.float32)))
        pairs = zip(jax.tree.leaves(ours[1:]), jax.tree.leaves(theirs[1:]), strict=True)
        gradient = [
            jnp.sqrt(square(a.astype(jnp.float32) - b.astype(jnp.float32)) / square(b))
            for a, b in pairs
        ]
        return jnp.abs(ours[0] / theirs[0] - 1), jnp.max(jnp.stack(gradient))

    return [float(v) for v in jax.jit(both)(state, x)]


def measure(ranks, sizes, repeats):
    """Medians in s of one step of every contender, in turns; and what each of them ran."""
    mesh = ranks.mesh
    state = parameters(mesh, abstract(sizes, "xla")[1])
    rows = NamedSharding(mesh, P(None, group.AXIS))
    shape = (sizes.batch, sizes.seq, sizes.width)
    make = lambda: jax.random.normal(jax.random.key(7), shape, jnp.float32).astype(jnp.bfloat16)
    x = jax.jit(make, out_shardings=rows)()
    programs, entries = {}, {}
    for name, (implementation, options) in CONTENDERS.items():
        one = gradients(mesh, sizes, implementation)
        jax_flux.stats_reset()
        start = time.perf_counter()
        lowered = jax.jit(chained(one, STEPS)).lower(state, x)
        programs[name] = lowered.compile(compiler_options=options)
        entry = entries[name] = dict(compiled_in_s=round(time.perf_counter() - start, 1))
        counts = jax_flux.stats().values()
        entry["fused_call_sites"] = sum(c["fused"] for c in counts) // STEPS
        entry["xla_call_sites"] = sum(c["xla"] for c in counts) // STEPS
        if implementation != "xla":
            loss, gradient = compared(one, gradients(mesh, sizes, "xla"), state, x)
            entry |= dict(loss_to_xla=loss, gradient_to_xla=gradient)
            entry["wrong"] = not (loss <= WRONG and gradient <= WRONG)
        jax.block_until_ready(programs[name](state, x))
    mine = np.zeros((repeats, len(programs)), np.float32)
    for repeat in range(repeats):
        for at, program in enumerate(programs.values()):
            group.barrier("jax_flux block")
            start = time.perf_counter()
            jax.block_until_ready(program(state, x))
            mine[repeat, at] = (time.perf_counter() - start) / STEPS
    worst = group.gather(mine).max(axis=0)
    for at, entry in enumerate(entries.values()):
        entry["samples_s"] = [float(t) for t in worst[:, at]]
        entry["median_s"] = statistics.median(entry["samples_s"])
    best = min(entries[name]["median_s"] for name in ("xla", "xla-lhs"))
    for name in ("jax_flux", "jax_flux-lhs"):
        entries[name]["speed_up"] = best / entries[name]["median_s"]
    return entries


def flop(sizes, repeats):
    """Floating-point operations of all devices: forward once and backward twice in every step."""
    heads = sizes.width + sizes.width * sizes.kv_heads // sizes.heads  # q or output, k or v
    weights = sizes.width * (2 * heads + 3 * sizes.hidden)
    tokens = sizes.batch * sizes.seq
    forward = 2 * weights * tokens + 4 * sizes.seq * sizes.width * tokens
    return 3.0 * forward * (len(CONTENDERS) * STEPS * (repeats + 1) + 4)


def words(record):
    """The record as a small table."""
    lines = [f"{record['group']['world']} x {record['machine']['device_kind']}, block "
             f"{record['sizes']}, ms per step, forward and backward "
             f"({record['group']['label']})"]  # fmt: skip
    for name, entry in record["contenders"].items():
        told = f"{1e3 * entry['median_s']:10.3f}  {name:14s}"
        if "speed_up" in entry:
            told += f" {entry['speed_up']:.3f} x the faster XLA, gradients "
            told += f"{entry['gradient_to_xla']:.2g} from XLA's" + ", WRONG" * entry["wrong"]
        lines.append(f"{told} ({entry['fused_call_sites']} call sites fused)")
    return "\n".join(lines)


def parser():
    made = argparse.ArgumentParser(prog="python -m benchmarks.block", description=__doc__)
    for name, value in dict(
        width=8192, hidden=28672, heads=64, kv_heads=8, seq=4096, batch=1, repeats=9
    ).items():
        made.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    made.add_argument("--json", type=paths.path, metavar="F")
    patience.add_flag(made)
    group.add_flags(made)
    return made


def main(argv=None):
    made = parser()
    options = made.parse_args(argv)
    wrong = group.complaint(options)
    wrong = wrong or paths.complaint("--json", options.json, writes=group.may_write(options))
    if wrong or options.mesh:
        made.error(wrong or "--mesh: the block runs on all devices")
    try:
        ranks = group.join(options)
    except group.GroupError as error:
        print(f"block: {error}.", file=sys.stderr)
        return error.status
    long = patience.refusal(ranks, flop(options, options.repeats), "the block", SMALL)
    if long and not options.slow:
        if jax.process_index() == 0:
            print(f"block: {long}", file=sys.stderr)
        return 2
    before = machine.read()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jax_flux.errors.FallbackWarning)
        entries = measure(ranks, options, options.repeats)
    names = ("width", "hidden", "heads", "kv_heads", "seq", "batch")
    record = dict(
        what="seconds of one transformer block, forward and backward; benchmarks/block.py",
        versions=about.versions(),
        machine=about.machines(before, machine.read()),
        group=dict(world=ranks.world, processes=jax.process_count(), label=ranks.label),
        sizes={name: getattr(options, name) for name in names},
        contenders=entries,
    )
    outputs = {}
    if jax.process_index() == 0:
        outputs["the table"] = lambda: print(words(record), flush=True)
    if options.json and jax.process_index() == 0:
        outputs[f"--json {options.json}"] = lambda: report.write_json(record, options.json)
    written = paths.told("block", outputs)
    return int(not written or any(entry.get("wrong", False) for entry in entries.values()))


if __name__ == "__main__":
    sys.exit(main())
