# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What tests of the planner and of the lowered call share: kernels, a problem, its plan."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import jax_flux
from jax_flux import _plan
from jax_flux._plan import Installed, Instance, Problem
from tests.cpu import programs


def instance(op, layout="nn", tile=(128, 192), cluster=(2, 1), dtype="bfloat16"):
    name = f"{op}_{dtype}_{layout}_{tile[0]}x{tile[1]}_c{cluster[0]}x{cluster[1]}"
    transports = ("tma", "copy") if op == "ag_matmul" else ("tma",)
    return Instance(name, op, dtype, layout, tile, cluster, transports)


KERNELS = Installed(
    tuple(
        instance(op, layout, tile, cluster, dtype)
        for dtype in _plan.FUSED_DTYPES
        for op in ("plain", "ag_matmul", "matmul_rs")
        for layout, tile, cluster in (
            ("nn", (128, 192), (2, 1)),
            ("nn", (128, 256), (2, 1)),
            ("nt", (128, 192), (2, 1)),
            ("nn", (128, 192), (1, 2)),
        )
    )
)
AG = Problem("ag_matmul", 1, 512, (1536,), (4096,), 8, "bfloat16", "bfloat16")


def decide(
    problem=AG,
    implementation=None,
    config=None,
    platform="gpu",
    device_kind="NVIDIA H200",
    installed=KERNELS,
):
    return _plan.plan(
        problem,
        implementation=implementation,
        config=config,
        platform=platform,
        device_kind=device_kind,
        installed=installed,
    )


def but(**changes):
    return dataclasses.replace(AG, **changes)


def call(mesh, dtype=jnp.float32, k=8, n=16, **keywords):
    fn = jax.shard_map(
        lambda x, w: jax_flux.ag_matmul(x, w, axis_name="tp", **keywords),
        mesh=mesh,
        in_specs=(P("tp"), P(None, "tp")),
        out_specs=P(None, "tp"),
    )
    return fn, programs.normal(0, (16, k), dtype), programs.normal(1, (k, n), dtype)


def cuda_text(fn, *args):
    exported = jax.export.export(
        jax.jit(fn), platforms=["cuda"], disabled_checks=jax_flux.export_safety_checks()
    )(*args)
    return exported.mlir_module()


def attributes(text, target):
    """One dict of attributes per custom call of ``target``."""
    found = []
    for body in re.findall(rf"@{target}\(.*?mhlo.backend_config = {{(.*?)}}", text):
        row = {k: int(v) for k, v in re.findall(r"(\w+) = (-?\d+) : i64", body)}
        row["instance"] = re.search(r'instance = "(.*?)"', body).group(1)
        row["groups"] = [
            int(v) for v in re.search(r"groups = dense<\[?(.*?)\]?>", body).group(1).split(",")
        ]
        found.append(row)
    return found
