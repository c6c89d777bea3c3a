# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the cases of the GEMMs multiply: meshes, shapes, values from seeds, float64 answers."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_flux

BF16 = jnp.dtype(jnp.bfloat16)


def logistic(y: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-y))


def gelu_argument(y: np.ndarray) -> np.ndarray:
    """gelu(y) = y logistic(this), the tanh form."""
    return 2 * np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)


ACTIVATIONS = {
    None: lambda y: y,
    "relu": lambda y: np.maximum(y, 0),
    "gelu": lambda y: y * logistic(gelu_argument(y)),
    "silu": lambda y: y * logistic(y),
}


def slope(activation: str | None, y: np.ndarray) -> np.ndarray:
    """The derivative of an activation."""
    if activation is None:
        return np.ones_like(y)
    if activation == "relu":
        return (y > 0).astype(y.dtype)
    inner = 1.0
    if activation == "gelu":
        inner = 2 * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * y**2)
    s = logistic(gelu_argument(y) if activation == "gelu" else y)
    return s + y * s * (1 - s) * inner


@dataclasses.dataclass(frozen=True)
class Case:
    """One call. ``m``, ``n``, ``k`` are per rank: x[*lead, W * m, *rest, k] for ag_matmul."""

    op: str
    m: int
    n: tuple[int, ...]
    k: int
    lead: tuple[int, ...] = ()
    rest: tuple[int, ...] = ()
    transpose_w: bool = False
    bias: bool = False
    activation: str | None = None
    dtype: str = "bfloat16"
    implementation: str = "fused"
    tile: tuple[int, int] | None = None  # these five force the plan
    cluster: tuple[int, int] | None = None
    sm_margin: int | None = None
    transport: str | None = None
    instance: str | None = None

    @classmethod
    def parse(cls, given: dict[str, Any]) -> Case:
        lists = {key: tuple(value) for key, value in given.items() if isinstance(value, list)}
        return cls(**{**given, **lists})

    @property
    def gathers(self) -> bool:
        return self.op == "ag_matmul"

    @property
    def config(self) -> jax_flux.Config | None:
        forced = jax_flux.Config(
            self.tile, self.cluster, self.transport, self.sm_margin, self.instance
        )
        return None if forced == jax_flux.Config() else forced

    def planned(self, world: int, device_kind: str) -> str:
        """Name of the kernel that W GPUs of a kind run it with."""
        rows = self.m if self.gathers else world * self.m
        dimension = {"gather_axis" if self.gathers else "scatter_axis": len(self.lead)}
        ws = [(n, self.k) if self.transpose_w else (self.k, n) for n in self.n]
        explained = jax_flux.explain(
            self.op,
            (*self.lead, rows, *self.rest, self.k),
            ws if self.gathers else ws[0],
            self.dtype,
            world,
            transpose_w=self.transpose_w,
            bias=True if self.bias else None,
            activation=self.activation,
            implementation="fused",
            config=self.config,
            device_kind=device_kind,
            **dimension,
        )
        assert explained.plan is not None, explained
        return explained.plan.instance


@dataclasses.dataclass(frozen=True)
class Place:
    """The mesh, the op's axis and the axis over which the batch is data parallel, if any."""

    mesh: Mesh
    axis: tuple[str, ...]
    outer: tuple[str, ...]

    @property
    def world(self) -> int:
        return int(np.prod([self.mesh.shape[name] for name in self.axis]))

    @property
    def copies(self) -> int:
        return self.mesh.size // self.world


def place(shape: list[int] | None, names: list[str] | None, axis: list[str] | None) -> Place:
    devices = np.array(jax.devices())
    names = names or ["tp"]
    mesh = Mesh(
        devices.reshape(shape or (devices.size,)),
        tuple(names),
        axis_types=(AxisType.Auto,) * len(names),
    )
    own = tuple(axis or names)
    return Place(mesh, own, tuple(name for name in names if name not in own))


# ---- operands ------------------------------------------------------------------------------------


def shapes(case: Case, at: Place) -> tuple[list[tuple[int, ...]], list[P], list[P]]:
    """Global shapes and specs of x, w.., bias..; specs of the results."""
    world, axis = at.world, at.axis
    front = (at.copies, *case.lead) if at.outer else case.lead
    free = [at.outer, *[None] * len(case.lead)] if at.outer else [None] * len(case.lead)
    plain = [None] * len(case.rest)
    k = case.k if case.gathers else world * case.k
    x = (*front, world * case.m, *case.rest, k)
    columns = [world * n if case.gathers else n for n in case.n]
    ws = [(n, k) if case.transpose_w else (k, n) for n in columns]
    if case.gathers:
        x_spec, y_spec = P(*free, axis, *plain, None), P(*free, None, *plain, axis)
        w_spec = P(axis, None) if case.transpose_w else P(None, axis)
        b_spec = P(axis)
    else:
        x_spec, y_spec = P(*free, None, *plain, axis), P(*free, axis, *plain, None)
        w_spec = P(None, axis) if case.transpose_w else P(axis, None)
        b_spec = P(None)
    biases = [(n,) for n in columns] if case.bias else []
    return (
        [x, *ws, *biases],
        [x_spec, *[w_spec] * len(ws), *[b_spec] * len(biases)],
        [y_spec] * len(ws),
    )


@functools.cache
def operands(case: Case, at: Place, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng((seed, case.m, case.k, *case.n))
    sizes, _, _ = shapes(case, at)
    depth = sizes[0][-1]
    dtype = jnp.dtype(case.dtype)
    out = [rng.standard_normal(sizes[0], np.float32).astype(dtype)]
    scale = np.float32(depth**-0.5)
    for size in sizes[1:]:
        out.append((rng.standard_normal(size, np.float32) * scale).astype(dtype))
    return out


@functools.cache
def exact(case: Case, at: Place, seed: int) -> list[np.ndarray]:
    """Results in float64."""
    return [ACTIVATIONS[case.activation](y) for y in preactivations(case, at, seed)]


@functools.cache
def preactivations(case: Case, at: Place, seed: int) -> list[np.ndarray]:
    x, *rest = (a.astype(np.float64) for a in operands(case, at, seed))
    ws, biases = rest[: len(case.n)], rest[len(case.n) :]
    ys = [x @ (w.T if case.transpose_w else w) for w in ws]
    if case.bias:
        ys = [y + b for y, b in zip(ys, biases, strict=True)]
    return ys


def put(at: Place, value: np.ndarray, spec: P) -> jax.Array:
    sharding = NamedSharding(at.mesh, spec)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def put_all(cases: list[Case], at: Place, seed: int) -> list[jax.Array]:
    return [
        put(at, value, spec)
        for case in cases
        for value, spec in zip(operands(case, at, seed), shapes(case, at)[1], strict=True)
    ]
