# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Programs to compare: each op, ours and written by hand in jax.lax, in one and the same shard_map.

The by-hand twins are written from the ops' definitions and share no code with the package.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jax_flux

ACTIVATIONS = {None: lambda y: y, "relu": jax.nn.relu, "gelu": jax.nn.gelu, "silu": jax.nn.silu}


def make_mesh(sizes: tuple[int, ...], names: tuple[str, ...], kind=AxisType.Auto):
    return jax.make_mesh(sizes, names, axis_types=(kind,) * len(names))


def normal(seed: int, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    """Standard normal values, rounded to ``dtype``."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


# ---- by hand -------------------------------------------------------------------------------------


def by_hand_ag(
    x,
    w,
    *,
    axis_name,
    gather_axis=-2,
    transpose_w=False,
    bias=None,
    activation=None,
    out_dtype=None,
    return_gathered=False,
):
    full = lax.all_gather(x, axis_name, axis=gather_axis % x.ndim, tiled=True)
    ws, biases = (w, bias) if isinstance(w, tuple) else ((w,), (bias,))
    ys = []
    for i, one in enumerate(ws):
        y = (full @ (one.T if transpose_w else one)).astype(out_dtype or x.dtype)
        b = biases[i] if biases else None
        ys.append(ACTIVATIONS[activation](y if b is None else y + b.astype(y.dtype)))
    out = tuple(ys) if isinstance(w, tuple) else ys[0]
    return (out, full) if return_gathered else out


def by_hand_rs(x, w, *, axis_name, scatter_axis=-2, transpose_w=False, bias=None, out_dtype=None):
    y = (x @ (w.T if transpose_w else w)).astype(out_dtype or x.dtype)
    y = vary(y, _tuple(axis_name))  # lax refuses an operand that varies over a part of the axes
    y = lax.psum_scatter(y, axis_name, scatter_dimension=scatter_axis % x.ndim, tiled=True)
    return y if bias is None else y + bias.astype(y.dtype)


def by_hand_ar(x, w, *, axis_name, transpose_w=False, bias=None, out_dtype=None):
    y = (x @ (w.T if transpose_w else w)).astype(out_dtype or x.dtype)
    y = lax.psum(vary(y, _tuple(axis_name)), axis_name)
    return y if bias is None else y + bias.astype(y.dtype)


OURS: dict[str, Callable[..., Any]] = {
    "ag_matmul": jax_flux.ag_matmul,
    "matmul_rs": jax_flux.matmul_rs,
    "matmul_ar": jax_flux.matmul_ar,
}
BY_HAND: dict[str, Callable[..., Any]] = {
    "ag_matmul": by_hand_ag,
    "matmul_rs": by_hand_rs,
    "matmul_ar": by_hand_ar,
}


# ---- cases ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    """One call in one shard_map: local shapes, and which operand is replicated over what."""

    op: str
    sizes: tuple[int, ...]
    names: tuple[str, ...]
    axis_name: Any
    x_shape: tuple[int, ...]  # per device
    at: int  # gather or scatter axis, as the user writes it
    n: int
    num_w: int = 1
    x_axes: tuple[str, ...] = ()  # mesh axes over which x differs
    w_axes: tuple[str, ...] = ()
    bias: bool = False
    transpose_w: bool = False
    activation: str | None = None
    return_gathered: bool = False

    def keywords(self) -> dict[str, Any]:
        kw: dict[str, Any] = dict(axis_name=self.axis_name, transpose_w=self.transpose_w)
        if self.op == "ag_matmul":
            kw |= dict(
                gather_axis=self.at,
                activation=self.activation,
                return_gathered=self.return_gathered,
            )
        if self.op == "matmul_rs":
            kw |= dict(scatter_axis=self.at)
        return kw

    def operands(self, dtype: Any = jnp.float32) -> tuple[Any, Any, Any]:
        """x, w(s), bias(es), each with one leading dimension that stacks the varying axes."""
        count = lambda axes: int(
            np.prod([dict(zip(self.names, self.sizes, strict=True))[a] for a in axes], dtype=int)
        )
        k = self.x_shape[-1]
        w_shape = (self.n, k) if self.transpose_w else (k, self.n)
        x = normal(0, (count(self.x_axes), *self.x_shape), dtype)
        ws = tuple(normal(1 + i, (count(self.w_axes), *w_shape), dtype) for i in range(self.num_w))
        bs = tuple(
            normal(7 + i, (self.n,), dtype) if self.bias else None for i in range(self.num_w)
        )
        return (x, ws, bs) if self.num_w > 1 else (x, ws[0], bs[0])


def program(case: Case, table: dict[str, Callable[..., Any]], check_vma: bool, **extra: Any):
    """fn(x, w, bias) -> every device's results, stacked: what any wrong rank would show in."""
    mesh = make_mesh(case.sizes, case.names)

    def body(x, w, bias):
        take = lambda a: a[0]
        out = table[case.op](take(x), jax.tree.map(take, w), bias=bias, **case.keywords(), **extra)
        return jax.tree.map(lambda y: vary(y, case.names)[None], out)

    lead = lambda axes: P(axes or None)
    return jax.shard_map(
        body,
        mesh=mesh,
        in_specs=(lead(case.x_axes), lead(case.w_axes), P()),
        out_specs=P(case.names),
        check_vma=check_vma,
    )


def _tuple(axis_name: Any) -> tuple[str, ...]:
    return axis_name if isinstance(axis_name, tuple) else (axis_name,)


def vary(y: jax.Array, names: tuple[str, ...]) -> jax.Array:
    """Cast to vary over ``names``: a no-op of the types, and of nothing under check_vma=False."""
    in_mesh = jax.sharding.get_abstract_mesh().axis_names
    missing = tuple(n for n in names if n in in_mesh and n not in jax.typeof(y).mat.varying)
    return lax.pcast(y, missing, to="varying") if missing else y


def gradients(fn: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
    """Gradients with respect to every operand of a loss that weighs all outputs differently."""

    def loss(*operands):
        out = jax.tree.leaves(fn(*operands))
        return sum(
            jnp.vdot(normal(11 + i, y.shape), y.astype(jnp.float32)) for i, y in enumerate(out)
        )

    return jax.jit(jax.grad(loss, argnums=tuple(range(len(operands)))))(*operands)


MESHES = (
    ((2, 4), ("dp", "tp"), "tp"),
    ((2, 4), ("dp", "tp"), "dp"),
    ((4, 2), ("tp", "dp"), "tp"),
    ((8,), ("tp",), "tp"),
    ((2, 2, 2), ("a", "b", "c"), ("a", "b")),
    ((2, 2, 2), ("a", "b", "c"), ("c", "a")),
    ((2, 4), ("dp", "tp"), ("tp", "dp")),
    ((3, 2), ("tp", "dp"), "tp"),
    ((1, 8), ("tp", "dp"), "tp"),
)


def world(case: Case) -> int:
    names = _tuple(case.axis_name)
    sizes = dict(zip(case.names, case.sizes, strict=True))
    return int(np.prod([sizes[n] for n in names]))


@st.composite
def cases(draw, ops: tuple[str, ...] = tuple(OURS)) -> Case:
    op = draw(st.sampled_from(ops))
    sizes, names, axis_name = draw(st.sampled_from(MESHES))
    subset = lambda: tuple(n for n in names if draw(st.booleans()))
    case = Case(
        op=op,
        sizes=sizes,
        names=names,
        axis_name=axis_name,
        x_shape=(),
        at=0,
        n=draw(st.integers(1, 5)),
        num_w=draw(st.sampled_from([1, 1, 2, 3])) if op == "ag_matmul" else 1,
        x_axes=subset(),
        w_axes=subset(),
        bias=draw(st.booleans()),
        transpose_w=draw(st.booleans()),
        activation=draw(st.sampled_from(tuple(ACTIVATIONS))) if op == "ag_matmul" else None,
        return_gathered=op == "ag_matmul" and draw(st.booleans()),
    )
    ndim = draw(st.integers(2, 4))
    shape = [draw(st.integers(1, 3)) for _ in range(ndim)]
    at = draw(st.integers(0, ndim - 2))
    if op == "matmul_rs":
        shape[at] *= world(case)
    negative = draw(st.booleans())
    return dataclasses.replace(case, x_shape=tuple(shape), at=at - ndim if negative else at)
