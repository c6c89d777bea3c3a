# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What `bench` measures against each other, as functions of one rank's (x, w) inside shard_map."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import jax_flux
from jax_flux.tools.cases import Case
from jax_flux.tools.group import AXIS, Group

RIVALS = ("xla", "xla-lhs", "pallas")
# XLA's flags as options of one jit, so that both settings take turns in one process.
OPTIONS: dict[str, dict[str, Any]] = {"xla-lhs": {"xla_gpu_enable_latency_hiding_scheduler": True}}
Op = Callable[[jax.Array, jax.Array], jax.Array]


def gemm(x: jax.Array, w: jax.Array) -> jax.Array:
    """x @ w, the bare matmul: summed in f32, rounded once, as the ops do."""
    return jnp.dot(x, w, preferred_element_type=jnp.float32).astype(x.dtype)


def flux(case: Case, implementation: str | None) -> Op:
    """The package's op of the row."""
    ops: dict[str, Any] = {
        "ag": jax_flux.ag_matmul,
        "rs": jax_flux.matmul_rs,
        "ar": jax_flux.matmul_ar,
    }
    return functools.partial(ops[case.kind], axis_name=AXIS, implementation=implementation)


def plan(case: Case, group: Group, dtype: str, implementation: str | None) -> dict[str, Any] | None:
    """The fused plan of the row's call, None where it takes XLA."""
    device = group.mesh.devices.flat[0]
    try:
        told = jax_flux.explain(
            case.op,
            case.x_shape(group.world),
            case.w_shape,
            dtype,
            group.world,
            implementation=implementation,
            platform=device.platform,
            device_kind=device.device_kind,
        )
    except jax_flux.errors.ImplementationError:
        return None
    return dataclasses.asdict(told.plan) if told.plan and told.implementation == "fused" else None


def no_pallas(case: Case, group: Group, dtype: str) -> str | None:
    """Why JAX's Pallas collective matmul does not run the row, or None."""
    if case.kind != "ag":
        return "it gathers only"
    if not group.on_gpu:
        return "it needs GPUs"
    if dtype not in ("bfloat16", "float16"):
        return f"it takes no {dtype}"
    try:
        _pallas_module()
    except Exception as error:  # whatever an import of experimental code raises
        return f"this JAX has none ({type(error).__name__}: {error})"
    if not next(pallas(case, group.world), None):
        return f"no tile fits {case.x_shape(group.world)[0]} rows per rank and n = {case.n}"
    return None


def pallas(case: Case, world: int) -> Iterator[tuple[str, Op]]:
    """(configuration in words, op) of each tile that fits; the bench keeps the fastest."""
    module = _pallas_module()
    tuning, dimension = module.hopper_matmul_mgpu.TuningConfig, module.MatmulDimension
    rows = case.x_shape(world)[0]
    for group_of, minor, width in itertools.product(dimension, dimension, (8,)):
        tile_m, tile_n = 128, 128
        across = group_of == dimension.N
        fits = rows % (tile_m * (1 if across else 2)) == 0
        if not fits or case.n % (tile_n * (2 if across else 1)) or case.k % 64:
            continue
        config = tuning(
            tile_m=tile_m,
            tile_n=tile_n,
            tile_k=64,
            max_concurrent_steps=4,
            grid_minor_dim=minor,
            grid_tile_width=width,
            wg_dimension=group_of,
        )

        def op(x: jax.Array, w: jax.Array, config: Any = config) -> jax.Array:
            out: jax.Array = module.all_gather_lhs_matmul(
                x, w, axis_name=AXIS, config=config, dtype=x.dtype
            )
            return out

        yield f"{tile_m}x{tile_n}x64, two along {group_of.name}, minor {minor.name}", op


def _pallas_module() -> Any:
    from jax.experimental.pallas.ops.gpu import collective_matmul_mgpu

    return collective_matmul_mgpu


def gather_only(x: jax.Array, _: jax.Array) -> jax.Array:
    """The link's probe: each rank sends its shard to every peer."""
    return lax.all_gather(x, AXIS, axis=0, tiled=True)


def shift_only(x: jax.Array, _: jax.Array) -> jax.Array:
    """The link's other probe: each rank sends its shard to the next."""
    world = lax.axis_size(AXIS)
    return lax.ppermute(x, AXIS, [(i, (i + 1) % world) for i in range(world)])
