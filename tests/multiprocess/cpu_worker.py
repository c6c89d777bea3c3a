# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""One process of the CPU mesh: ``cpu_worker.py PORT RANK PROCESSES REPORT``.

Runs every case and writes {case: "ok" or a traceback} to REPORT. All processes run the same cases
in the same order; a case that fails on one rank only leaves the others in its collective, which
the launcher's deadline ends.
"""

from __future__ import annotations

import json
import sys
import traceback

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_flux
from tests import oracle
from tests.cpu import programs
from tests.cpu.programs import OURS

STANDARD = {
    "ag_matmul": (P("dp", "tp"), P(None, "tp"), P("tp"), P("dp", None, "tp")),
    "matmul_rs": (P("dp", None, "tp"), P("tp"), P(), P("dp", "tp")),
    "matmul_ar": (P("dp", None, "tp"), P("tp"), P(), P("dp")),
}


def mesh(sizes: tuple[int, ...], names: tuple[str, ...]) -> jax.sharding.Mesh:
    """Devices in the order of processes, so that the first axis of size 2 crosses them."""
    devices = np.asarray(sorted(jax.devices(), key=lambda d: d.id)).reshape(sizes)
    return jax.sharding.Mesh(devices, names, axis_types=(AxisType.Auto,) * len(names))


# dp crosses the processes, tp crosses the processes, and an axis whose groups do both.
MESHES = {
    "dp-across": ((2, 4), ("dp", "tp")),
    "tp-across": ((4, 2), ("tp", "dp")),
    "tp-interleaved": ((2, 2, 2), ("tp", "dp", "other")),
}


def place(m: jax.sharding.Mesh, value: jax.Array, spec: P) -> jax.Array:
    host = np.asarray(value)
    return jax.make_array_from_callback(host.shape, NamedSharding(m, spec), lambda at: host[at])


def compare(ours: jax.Array, want: np.ndarray) -> None:
    """This process's shards against the whole result."""
    assert ours.shape == want.shape, (ours.shape, want.shape)
    for shard in ours.addressable_shards:
        oracle.assert_close(jnp.asarray(shard.data), jnp.asarray(want[shard.index]))


def forward_and_gradients(op: str, name: str, check_vma: bool) -> None:
    sizes, names = MESHES[name]
    m = mesh(sizes, names)
    x_spec, w_spec, b_spec, out_spec = STANDARD[op]
    values = (
        programs.normal(0, (2, 16, 8)),
        programs.normal(1, (8, 12)),
        programs.normal(2, (12,)),
    )
    placed = [place(m, v, s) for v, s in zip(values, (x_spec, w_spec, b_spec), strict=True)]
    fn = jax.shard_map(
        lambda x, w, b: OURS[op](x, w, bias=b, axis_name="tp"),
        mesh=m,
        in_specs=(x_spec, w_spec, b_spec),
        out_specs=out_spec,
        check_vma=check_vma,
    )
    loss = lambda f: lambda *a: jnp.sum(jnp.sin(f(*a)))
    compare(jax.jit(fn)(*placed), np.asarray(values[0] @ values[1] + values[2]))
    ours = jax.jit(jax.grad(loss(fn), (0, 1, 2)))(*placed)
    want = jax.grad(loss(lambda x, w, b: x @ w + b), (0, 1, 2))(*values)
    for mine, theirs in zip(ours, want, strict=True):
        compare(mine, np.asarray(theirs))


def sharded_wrapper(op: str) -> None:
    m = mesh(*MESHES["tp-across"])
    x_spec, w_spec, _, _ = STANDARD[op]
    x, w = programs.normal(0, (2, 16, 8)), programs.normal(1, (8, 12))
    fn = getattr(jax_flux, f"{op}_sharded")
    out = jax.jit(lambda x, w: fn(x, w, mesh=m, axis="tp"))(
        place(m, x, x_spec), place(m, w, w_spec)
    )
    compare(out, np.asarray(x @ w))


def tuple_axis() -> None:
    m = mesh((2, 4), ("dp", "tp"))
    x, w = programs.normal(0, (16, 8)), programs.normal(1, (8, 16))
    fn = jax.shard_map(
        lambda x, w: jax_flux.ag_matmul(x, w, axis_name=("tp", "dp")),
        mesh=m,
        in_specs=(P(("tp", "dp")), P(None, ("tp", "dp"))),
        out_specs=P(None, ("tp", "dp")),
    )
    placed = place(m, x, P(("tp", "dp"))), place(m, w, P(None, ("tp", "dp")))
    compare(jax.jit(fn)(*placed), np.asarray(x @ w))


CASES = {
    **{
        f"{op}-{name}-{'vma' if check else 'novma'}": (forward_and_gradients, op, name, check)
        for op in OURS
        for name in MESHES
        for check in (True, False)
    },
    **{f"{op}-sharded": (sharded_wrapper, op) for op in OURS},
    "tuple-axis": (tuple_axis,),
}


def main(port: str, rank: str, processes: str, report: str) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{port}", int(processes), int(rank), initialization_timeout=60
    )
    assert len(jax.devices()) == 8, jax.devices()
    results = {}
    for name, (fn, *arguments) in CASES.items():
        try:
            fn(*arguments)
            results[name] = "ok"
        except Exception:
            results[name] = traceback.format_exc()
        with open(report, "w") as handle:
            json.dump(results, handle)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
