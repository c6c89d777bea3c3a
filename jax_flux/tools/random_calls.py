# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Calls of the ops drawn at random from a seed, the same on every rank; and how one is computed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jax_flux
from jax_flux import errors

Take = Callable[[tuple[int, ...], bool], jax.Array]
SHARE = {"ag_matmul": 5, "matmul_rs": 5, "matmul_ar": 2}  # of all calls, in twelfths
LARGEST = 1 << 24  # elements of any operand or result of one rank


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What rows per rank, columns and depth are drawn from."""

    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]


# Rows fewer than any tile, ragged, many tiles; n and k down to the alignment rule, and beyond it.
FULL = Sizes(
    m=(1, 7, 16, 33, 64, 129, 256, 520, 1000, 2048),
    n=(8, 72, 136, 264, 392, 776, 1544, 4096, 12),
    k=(8, 64, 136, 264, 520, 1152, 4096, 20),
)
SMALL = Sizes(m=(1, 3, 16, 33), n=(8, 24, 40, 12), k=(8, 16, 40, 20))


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of an op; ``m``, ``n``, ``k`` per rank. ``x_shape`` and `w_shapes` follow.

    ``gradient`` also computes the gradients of every operand, for the results as cotangents.
    """

    op: str
    world: int
    m: int
    n: tuple[int, ...]
    k: int
    lead: tuple[int, ...] = ()
    rest: tuple[int, ...] = ()
    dtype: str = "bfloat16"
    transpose_w: bool = False
    bias: bool = False
    activation: str | None = None
    return_gathered: bool = False
    gradient: bool = False
    channel: int = 0
    config: jax_flux.Config | None = None

    @property
    def x_shape(self) -> tuple[int, ...]:
        """One rank's left operand."""
        rows = self.world * self.m if self.op == "matmul_rs" else self.m
        return (*self.lead, rows, *self.rest, self.k)

    @property
    def w_shapes(self) -> tuple[tuple[int, int], ...]:
        """One rank's weights."""
        return tuple((n, self.k) if self.transpose_w else (self.k, n) for n in self.n)

    @property
    def size(self) -> int:
        """Elements of the largest array of one rank."""
        outer = math.prod((*self.lead, self.world * self.m, *self.rest))
        return max(outer * self.k, outer * max(self.n), self.k * max(self.n))

    def keywords(self) -> dict[str, Any]:
        """Of the op, but for the axis and the implementation."""
        given: dict[str, Any] = dict(transpose_w=self.transpose_w, channel=self.channel)
        at = len(self.lead)
        if self.op == "ag_matmul":
            given |= dict(gather_axis=at, activation=self.activation)
            given |= dict(return_gathered=self.return_gathered)
        elif self.op == "matmul_rs":
            given |= dict(scatter_axis=at)
        return given

    def words(self) -> str:
        """The call with every field that is not the default."""
        fields = dataclasses.fields(self)
        own = [f"{f.name}={getattr(self, f.name)}" for f in fields if self._told(f)]
        return f"{self.op}({', '.join(own)})"

    def _told(self, field: dataclasses.Field[Any]) -> bool:
        return field.name != "op" and getattr(self, field.name) != field.default


def draw(rng: np.random.Generator, world: int, sizes: Sizes) -> Call:
    """One call, small ones as likely as large ones."""
    pick = lambda values: values[int(rng.integers(len(values)))]
    chance = lambda p: bool(rng.random() < p)
    while True:
        op = str(rng.choice(list(SHARE), p=np.array([*SHARE.values()]) / sum(SHARE.values())))
        gathers = op == "ag_matmul"
        call = Call(
            op=op,
            world=world,
            m=pick(sizes.m),
            n=tuple(pick(sizes.n) for _ in range(pick((1, 1, 1, 2, 3)) if gathers else 1)),
            k=pick(sizes.k),
            lead=pick(((), (), (2,), (3, 2))),
            rest=pick(((), (), (), (2,))),
            dtype=pick(("bfloat16",) * 6 + ("float16", "float32")),
            transpose_w=chance(0.3),
            bias=chance(0.25),
            activation=pick((None, None, "relu", "gelu", "silu")) if gathers else None,
            return_gathered=gathers and chance(0.15),
            gradient=chance(0.3),
            channel=pick((0, 0, 0, 0, 1)),
            config=_config(rng, gathers) if chance(0.5) else None,
        )
        if call.size <= LARGEST:
            return call


# Parts of a plan, none of which may change a result.
PLAN: dict[str, tuple[Any, ...]] = {
    "sm_margin": (8, 64),
    "raster_group": (1, 4),
    "sweep_segments": (1, 2),
}
PLAN_OF_GATHERS: dict[str, tuple[Any, ...]] = {
    "transport": ("tma", "copy"),
    "chunk_rows": (16, 64, 256),
    "chunk_depth": (256, 512),
    "depth_outer": (True, False),
}


def _config(rng: np.random.Generator, gathers: bool) -> jax_flux.Config:
    """Some parts of a plan forced, the others left to the planner."""
    parts = PLAN | PLAN_OF_GATHERS if gathers else PLAN
    given = {}
    for name, values in parts.items():
        choice = int(rng.integers(3 * len(values)))
        if choice < len(values):
            given[name] = values[choice]
    return jax_flux.Config(**given)


def forced(call: Call, device: Any) -> dict[str, Any]:
    """Keywords that demand the kernel wherever it can run; elsewhere the op decides, so XLA.

    A config that this library has no kernel for is left out.
    """
    for config in dict.fromkeys((call.config, None)):
        if _runs_fused(call, config, device):
            return dict(implementation="fused", config=config)
    return {}


def _runs_fused(call: Call, config: jax_flux.Config | None, device: Any) -> bool:
    try:
        told = jax_flux.explain(
            call.op,
            call.x_shape,
            call.w_shapes if call.op == "ag_matmul" else call.w_shapes[0],
            call.dtype,
            call.world,
            implementation="fused",
            config=config,
            platform=device.platform,
            device_kind=device.device_kind,
            **call.keywords(),
        )
    except errors.ImplementationError:
        return False
    return told.implementation == "fused"


def compute(
    call: Call, take: Take, axis_name: Any, *, exact: bool = False, **extra: Any
) -> list[jax.Array]:
    """Results of ``call`` on this rank, then its gradients.

    ``take(shape, shared)`` gives the next operand in f32: this rank's own, or the same on all
    ranks. With ``exact`` operands are rounded to the call's dtype, then everything is f32.
    """
    operands = [take(call.x_shape, False)]
    operands += [take(shape, False) * call.k**-0.5 for shape in call.w_shapes]
    if call.bias:
        operands += [take((n,), call.op != "ag_matmul") for n in call.n]
    # The barrier keeps XLA from cancelling the rounding, as its excess precision allows.
    operands = list(lax.optimization_barrier([a.astype(call.dtype) for a in operands]))
    if exact:
        operands = [a.astype(jnp.float32) for a in operands]
    weights, several = len(call.n), len(call.n) > 1
    op = getattr(jax_flux, call.op)

    def run(x: jax.Array, *rest: jax.Array) -> list[jax.Array]:
        ws, biases = rest[:weights], rest[weights:]
        given = call.keywords() | extra
        if biases:
            given["bias"] = biases if several else biases[0]
        out = op(x, ws if several else ws[0], axis_name=axis_name, **given)
        return list(jax.tree.leaves(out))

    if not call.gradient:
        return run(*operands)
    results, pull = jax.vjp(run, *operands)
    return [*results, *pull(results)]
