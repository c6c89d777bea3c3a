# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The ops on canonical shapes with their reverse rules: `ag_core`, `rs_core`, `ar_core`.

Every rule is the transpose of the lax collectives, and mirrors its op, so that a fused kernel
serves the backward too: dx of ag_matmul is one matmul_rs, dx of matmul_rs one ag_matmul. dw is
XLA's dot on a gathered operand; no gathered tensor is kept by the forward. Bias and activation are
part of the call, unless it is differentiated: then the forward keeps what enters the activation and
XLA applies that.

Invariant: operands, biases too, enter cast to the union of their varying axes and the op's own
(`cast_union`, outside the custom_vjp). The casts' transposes are JAX's psums, over exactly the
axes that were added; under ``check_vma=False`` shard_map's own transpose does that. So no rule
here sums a cotangent over any axis by hand, which would count twice in one of the two modes.
Route: ops.py -> here -> _primitives.py.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_flux import _compat, _dispatch, _epilogue, _plan, _primitives, reference
from jax_flux._dispatch import Spec

Arrays = tuple[jax.Array, ...]
Biases = tuple[jax.Array | None, ...]  # one per result, in the results' dtype
Core = Callable[[Spec], Callable[..., Any]]


def cast_union(axis_name: tuple[str, ...], *operands: Any) -> list[Any]:
    """Operands (or Nones), all varying over every axis that any of them or the op varies over."""
    given = [a for a in operands if a is not None]
    axes = frozenset(axis_name).union(*(_compat.varying(a) for a in given))
    return [None if a is None else _compat.cast_varying(a, axes) for a in operands]


def _params(spec: Spec) -> dict[str, Any]:
    return dict(
        op=spec.op,
        axis_name=spec.axis_name,
        world=spec.world,
        transpose_w=spec.transpose_w,
        out_dtype=spec.out_dtype,
        precision=spec.precision,
        implementation=spec.implementation,
        config=spec.config,
        channel=spec.channel,
    )


def _grad_bias(dy: jax.Array) -> jax.Array:
    """dy[..., n] -> [n], summed in at least f32."""
    return dy.sum(axis=tuple(range(dy.ndim - 1)))


def _grad_w(
    x: jax.Array, dy: jax.Array, w: jax.Array, transpose_w: bool, precision: Any
) -> jax.Array:
    """x[..., k], dy[..., n] -> dw like w: contraction over all rows, one rounding."""
    first, second = (a.reshape(-1, a.shape[-1]) for a in ((dy, x) if transpose_w else (x, dy)))
    return reference.dot_over_rows(first, second, out_dtype=w.dtype, precision=precision)


# ---- ag_matmul: x[b, m, k], w_i, bias_i -> y_i[b, W, m, n_i] (, x[b, W, m, k]) ------------------


def _ag(spec: Spec, x: jax.Array, ws: Arrays, biases: Biases) -> Arrays:
    params = _params(spec) | {
        "return_gathered": spec.return_gathered,
        "biases": tuple(bias is not None for bias in biases),
        "activation": spec.activation,
    }
    given = [bias for bias in biases if bias is not None]
    return tuple(_primitives.ag_matmul_p.bind(x, *ws, *given, **params))


def _ag_fwd(
    spec: Spec, x: jax.Array, ws: Arrays, biases: Biases
) -> tuple[Arrays, tuple[jax.Array, Arrays, Biases, Arrays]]:
    out = ag_core(dataclasses.replace(spec, activation=None))(x, ws, biases)
    if spec.activation is None:
        return out, (x, ws, biases, ())
    zs, rest = out[: len(ws)], out[len(ws) :]
    ys = tuple(_epilogue.ACTIVATIONS[spec.activation](z) for z in zs)
    return (*ys, *rest), (x, ws, biases, zs)


def _ag_bwd(
    spec: Spec, residuals: tuple[jax.Array, Arrays, Biases, Arrays], cotangents: Arrays
) -> tuple[jax.Array, Arrays, Biases]:
    x, ws, biases, zs = residuals
    dys = cotangents[: len(ws)]
    if spec.activation is not None:
        act = _epilogue.ACTIVATIONS[spec.activation]
        dys = tuple(jax.vjp(act, z)[1](dy)[0] for z, dy in zip(zs, dys, strict=True))
    back = spec.mirrored(x.dtype)
    if spec.return_gathered:
        _announce_xla(back, "the gathered x has a cotangent, which XLA scatters with dx")
        pairs = [*dys, *ws]
        dx_full = reference.sum_of_dots(
            pairs, transpose_w=back.transpose_w, out_dtype=x.dtype, precision=back.precision
        )
        dx = reference.scatter_segments(dx_full + cotangents[-1], spec.axis_name)
    else:
        _announce_rs(back, dys, ws)
        dx = rs_core(back)(dys, ws, (None,))
    full = reference.gather_segments(x, spec.axis_name)
    dws = tuple(
        _grad_w(full, dy, w, spec.transpose_w, back.precision)
        for dy, w in zip(dys, ws, strict=True)
    )
    return dx, dws, _grad_biases(biases, dys)


def _grad_biases(biases: Biases, dys: Arrays) -> Biases:
    return tuple(
        None if bias is None else _grad_bias(dy) for bias, dy in zip(biases, dys, strict=True)
    )


# ---- matmul_rs: x_i[b, W, m, k_i], w_i, bias -> y[b, m, n] ---------------------------------------


def _rs(spec: Spec, xs: Arrays, ws: Arrays, biases: Biases) -> jax.Array:
    params = _params(spec) | {"biases": tuple(bias is not None for bias in biases)}
    given = [bias for bias in biases if bias is not None]
    (y,) = _primitives.matmul_rs_p.bind(*xs, *ws, *given, **params)
    return y


def _rs_fwd(
    spec: Spec, xs: Arrays, ws: Arrays, biases: Biases
) -> tuple[jax.Array, tuple[Arrays, Arrays, Biases]]:
    return rs_core(spec)(xs, ws, biases), (xs, ws, biases)


def _rs_bwd(
    spec: Spec, residuals: tuple[Arrays, Arrays, Biases], dy: jax.Array
) -> tuple[Arrays, Arrays, Biases]:
    xs, ws, biases = residuals
    back = spec.mirrored(xs[0].dtype, return_gathered=True)
    _announce_ag(back, dy, ws)
    *dxs, full = ag_core(back)(dy, ws, (None,) * len(ws))
    dws = tuple(
        _grad_w(x, full, w, spec.transpose_w, back.precision) for x, w in zip(xs, ws, strict=True)
    )
    dxs = [dx.astype(x.dtype) for dx, x in zip(dxs, xs, strict=True)]
    return tuple(dxs), dws, _grad_biases(biases, (dy,))


# ---- matmul_ar: x[..., k], w -> y[..., n], no kernel of its own ----------------------------------


def _ar(spec: Spec, x: jax.Array, w: jax.Array) -> jax.Array:
    return reference.matmul_ar(
        x,
        w,
        axis_name=spec.axis_name,
        transpose_w=spec.transpose_w,
        out_dtype=spec.out_dtype,
        precision=spec.precision,
    )


def _ar_fwd(
    spec: Spec, x: jax.Array, w: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return ar_core(spec)(x, w), (x, w)


def _ar_bwd(
    spec: Spec, residuals: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Why jax.vjp: psum's transpose is a cast under check_vma and a psum without it."""
    x, w = residuals
    (at,) = cast_union(spec.axis_name, jnp.zeros(dy.shape, dy.dtype))
    at = _compat.cast_varying(at, _compat.varying(x))
    (dz,) = jax.vjp(lambda z: lax.psum(z, spec.axis_name), at)[1](dy)
    back = spec.mirrored(x.dtype)
    _announce_xla(back, "the gradients of matmul_ar are dots of XLA's")
    dx = reference.dot(
        dz, w, transpose_w=back.transpose_w, out_dtype=x.dtype, precision=back.precision
    )
    return dx, _grad_w(x, dz, w, spec.transpose_w, back.precision)


# ---- the cores -----------------------------------------------------------------------------------


def _core(call: Callable[..., Any], fwd: Callable[..., Any], bwd: Callable[..., Any]) -> Core:
    """spec -> the custom_vjp function of the operands; one per spec, so that traces are reused.

    A forward rule calls the core again, not the primitive, so that it can be differentiated too.
    """

    @functools.cache
    def build(spec: Spec) -> Callable[..., Any]:
        core = jax.custom_vjp(functools.partial(call, spec))
        core.defvjp(functools.partial(fwd, spec), functools.partial(bwd, spec))
        return core

    return build


ag_core = _core(_ag, _ag_fwd, _ag_bwd)
rs_core = _core(_rs, _rs_fwd, _rs_bwd)
ar_core = _core(_ar, _ar_fwd, _ar_bwd)


# ---- counting the backward ops -------------------------------------------------------------------


def _announce_xla(spec: Spec, reason: str) -> None:
    _dispatch.announce(spec, _plan.Decision("xla", reason), "")


def _announce_rs(spec: Spec, xs: Arrays, ws: Arrays) -> None:
    problem = _dispatch.rs_problem(
        xs, ws, world=spec.world, transpose_w=spec.transpose_w, out_dtype=spec.out_dtype
    )
    _dispatch.announce(spec, _dispatch.decide(problem, spec), "")


def _announce_ag(spec: Spec, x: jax.Array, ws: Arrays) -> None:
    problem = _dispatch.ag_problem(
        x,
        ws,
        world=spec.world,
        transpose_w=spec.transpose_w,
        out_dtype=spec.out_dtype,
        return_gathered=spec.return_gathered,
    )
    _dispatch.announce(spec, _dispatch.decide(problem, spec), "")
