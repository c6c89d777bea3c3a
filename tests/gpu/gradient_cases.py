# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Gradients of the GEMMs as every rank runs them; cases as in gemm_cases.py."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_flux
from tests.gpu.gemm_cases import call, split, squares
from tests.gpu.gemm_operands import (
    BF16,
    Case,
    Place,
    exact,
    operands,
    place,
    preactivations,
    put,
    put_all,
    shapes,
    slope,
)


def gradients(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """dx, dw.., dbias.. of every case, cotangents of ones' size; squared errors as `sweep`'s."""
    at = place(None, None, None)
    every = [Case.parse(case) for case in cases]
    cotangents = [
        np.random.default_rng((7, i, j)).standard_normal(y.shape).astype(case.dtype)
        for i, case in enumerate(every)
        for j, y in enumerate(exact(case, at, 0))
    ]
    out_specs = [spec for case in every for spec in shapes(case, at)[2]]
    in_specs = [spec for case in every for spec in shapes(case, at)[1]]
    out: dict[str, Any] = {}
    for implementation in ("xla", "fused"):

        def local(*args: jax.Array, implementation: str = implementation) -> list[jax.Array]:
            dys, primals = list(args[: len(out_specs)]), args[len(out_specs) :]
            grads: list[jax.Array] = []
            for case, own in zip(every, split(every, at, primals), strict=True):
                ys, pull = jax.vjp(
                    lambda *o, case=case: call(case, at, list(o), implementation), *own
                )
                grads += pull(dys[: len(ys)])
                dys = dys[len(ys) :]
            return grads

        mapped = jax.shard_map(
            local, mesh=at.mesh, in_specs=(*out_specs, *in_specs), out_specs=in_specs
        )
        dys = [put(at, c, spec) for c, spec in zip(cotangents, out_specs, strict=True)]
        args = (*dys, *put_all(every, at, 0))
        compiled = jax.jit(mapped).lower(*args).compile()
        out[implementation] = squares(list(compiled(*args)), exact_gradients(every, at, cotangents))
        text = compiled.as_text()
        out[f"{implementation}_calls"] = {
            op: len(re.findall(rf'custom_call_target="jax_flux_{op}_v1"', text))
            for op in ("ag_matmul", "matmul_rs")
        }
    return out


def exact_gradients(every: list[Case], at: Place, cotangents: list[np.ndarray]) -> list[np.ndarray]:
    """dz = act'(z) dy; dx = sum of dz w^T, dw = x^T dz and dbias = dz over all rows, in float64."""
    left, out = [c.astype(np.float64) for c in cotangents], []
    for case in every:
        x, *rest = (a.astype(np.float64) for a in operands(case, at, 0))
        ws = rest[: len(case.n)]
        dys, left = left[: len(ws)], left[len(ws) :]
        zs = preactivations(case, at, 0)
        dys = [dy * slope(case.activation, z) for dy, z in zip(dys, zs, strict=True)]
        flat = x.reshape(-1, x.shape[-1])
        ws = [w.T if case.transpose_w else w for w in ws]
        out.append(sum(dy @ w.T for dy, w in zip(dys, ws, strict=True)))
        dws = [flat.T @ dy.reshape(-1, dy.shape[-1]) for dy in dys]
        out += [dw.T if case.transpose_w else dw for dw in dws]
        if case.bias:
            out += [dy.reshape(-1, dy.shape[-1]).sum(0) for dy in dys]
    return out


def layers(depth: int = 3) -> dict[str, Any]:
    """Gradients of an MLP stack in a rematerialised scan: bf16 fused and by XLA against f32."""
    at = place(None, None, None)
    width, hidden, rows = 256, 64 * at.world, 130 * at.world
    rng = np.random.default_rng(3)
    normal = lambda *shape: rng.standard_normal(shape, np.float32)
    host = [
        normal(rows, width),
        normal(depth, width, hidden) * width**-0.5,
        normal(depth, hidden, width) * hidden**-0.5,
        normal(rows, width),
    ]
    specs = [P("tp"), P(None, None, "tp"), P(None, "tp"), P("tp")]

    def local(x: Any, ups: Any, downs: Any, dy: Any, implementation: str) -> Any:
        @jax.checkpoint
        def block(x: Any, pair: Any) -> Any:
            up = jax_flux.ag_matmul(
                x, pair[0], axis_name="tp", activation="gelu", implementation=implementation
            )
            down = jax_flux.matmul_rs(up, pair[1], axis_name="tp", implementation=implementation)
            return x + down, None

        y, pull = jax.vjp(lambda x, *ws: jax.lax.scan(block, x, ws)[0], x, ups, downs)
        return y, *pull(dy)

    def run(dtype: Any, implementation: str) -> Any:
        mapped = jax.shard_map(
            functools.partial(local, implementation=implementation),
            mesh=at.mesh,
            in_specs=tuple(specs),
            out_specs=(specs[0], *specs[:3]),
        )
        args = [put(at, a.astype(dtype), spec) for a, spec in zip(host, specs, strict=True)]
        with jax.default_matmul_precision("highest"):
            return list(jax.jit(mapped)(*args))

    exact = run(np.float32, "xla")
    out: dict[str, Any] = {}
    for implementation in ("xla", "fused"):
        out[implementation] = []
        for y, want in zip(run(BF16, implementation), exact, strict=True):
            got, ref = (
                np.concatenate(
                    [np.asarray(s.data, np.float64).ravel() for s in a.addressable_shards]
                )
                for a in (y, want)
            )
            out[implementation].append(
                [
                    float(np.sum((got - ref) ** 2)),
                    float(np.sum(ref**2)),
                    float(np.count_nonzero(~np.isfinite(got))),
                ]
            )
    return out
