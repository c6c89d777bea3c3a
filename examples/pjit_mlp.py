# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""An ordinary pjit training script of an MLP, and the lines that change it.

    python examples/pjit_mlp.py               # XLA's partitioner inserts the communication
    python examples/pjit_mlp.py --jax-flux    # jax_flux's ops bring it along

The two versions differ in `mlp`: two matmuls, and the import. Everything else (mesh, shardings,
loss, optimiser, jit) is what the script had before. Without GPUs, set
XLA_FLAGS=--xla_force_host_platform_device_count=8 to have eight devices.

The student learns a random teacher. Activations are sharded over dp by batch and over tp by
sequence, hidden features over tp (Megatron's sequence parallelism, arXiv 2205.05198).
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_flux

Params = dict[str, jax.Array]
SPECS = {"up": P(None, "tp"), "down": P("tp", None)}
TOKENS = P("dp", "tp")  # [batch, sequence, features]


def pjit_mlp(params: Params, x: jax.Array, mesh: Mesh) -> jax.Array:
    """The script before: XLA gathers x, and scatters or sums y, as the shardings demand."""
    h = jax.nn.gelu(x @ params["up"])
    y = h @ params["down"]
    return jax.lax.with_sharding_constraint(y, NamedSharding(mesh, TOKENS))


def flux_mlp(params: Params, x: jax.Array, mesh: Mesh) -> jax.Array:
    """The script after."""
    h = jax_flux.ag_matmul_sharded(x, params["up"], mesh=mesh, axis="tp", activation="gelu")
    y = jax_flux.matmul_rs_sharded(h, params["down"], mesh=mesh, axis="tp")
    return jax.lax.with_sharding_constraint(y, NamedSharding(mesh, TOKENS))


def init_params(key: jax.Array, width: int, hidden: int, dtype: Any) -> Params:
    up, down = jax.random.split(key)
    return {
        "up": jax.random.normal(up, (width, hidden), dtype) * width**-0.5,
        "down": jax.random.normal(down, (hidden, width), dtype) * hidden**-0.5,
    }


def train(flags: argparse.Namespace, mlp: Callable[..., jax.Array], mesh: Mesh) -> list[float]:
    """Returns the loss of every step."""
    dtype = jnp.dtype(flags.dtype)
    shardings = {name: NamedSharding(mesh, spec) for name, spec in SPECS.items()}
    tokens = NamedSharding(mesh, TOKENS)
    student, teacher, data = jax.random.split(jax.random.key(flags.seed), 3)
    make = jax.jit(init_params, static_argnums=(1, 2, 3), out_shardings=shardings)
    params = make(student, flags.width, flags.hidden, dtype)
    target = make(teacher, flags.width, flags.hidden, dtype)
    optimizer = optax.adam(flags.lr)
    state = jax.jit(optimizer.init)(params)

    def loss(params: Params, x: jax.Array) -> jax.Array:
        error = mlp(params, x, mesh) - pjit_mlp(target, x, mesh)
        return jnp.mean(jnp.square(error.astype(jnp.float32)))

    @jax.jit
    def step(params: Params, state: Any, x: jax.Array) -> tuple[Params, Any, jax.Array]:
        value, grads = jax.value_and_grad(loss)(params, x)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    losses = []
    start = time.perf_counter()
    for i in range(flags.steps):
        shape = (flags.batch, flags.seq, flags.width)
        x = jax.device_put(jax.random.normal(jax.random.fold_in(data, i), shape, dtype), tokens)
        params, state, value = step(params, state, x)
        losses.append(float(value))
        if i % 10 == 0 or i == flags.steps - 1:
            print(f"step {i:4d}  loss {losses[-1]:.6f}  {time.perf_counter() - start:6.2f} s")
    return losses


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jax-flux", action="store_true", help="use the changed lines")
    parser.add_argument("--tp", type=int, help="ranks of tensor parallelism (default: all, <= 4)")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def problem(flags: argparse.Namespace, devices: int, tp: int) -> str | None:
    """Why the sizes cannot lie on the mesh, and what to do; None if they can."""
    if tp < 1 or devices % tp:
        return f"--tp {tp} does not divide the {devices} devices: choose a divisor"
    for name, size, parts in (
        ("batch", flags.batch, devices // tp),
        ("seq", flags.seq, tp),
        ("hidden", flags.hidden, tp),
    ):
        if size % parts:
            return f"--{name} {size} does not split into {parts} parts: make it a multiple"
    return None


def main(argv: Sequence[str] | None = None) -> int:
    flags = parse(argv)
    devices = jax.device_count()
    tp = flags.tp if flags.tp is not None else max(n for n in (1, 2, 4) if devices % n == 0)
    wrong = problem(flags, devices, tp)
    if wrong:
        print(f"pjit_mlp: {wrong}", file=sys.stderr)
        return 2
    mesh = jax.make_mesh((devices // tp, tp), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    print(f"mesh {dict(mesh.shape)}, {'jax_flux' if flags.jax_flux else 'plain pjit'}")
    train(flags, flux_mlp if flags.jax_flux else pjit_mlp, mesh)
    for op, ways in jax_flux.stats().items():
        print(f"{op}: {ways}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
