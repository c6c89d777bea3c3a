# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""One body per op, after validation: decide, then plain lax or fold and call the core.

Route: ops.py -> here -> reference.py, or _vjp.py on canonical shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_flux import _checks, _compat, _dispatch, _epilogue, _topology, _vjp, errors, reference
from jax_flux._dispatch import Spec
from jax_flux._topology import Axis, Where
from jax_flux._vjp import Biases


def one_weight(
    op: str,
    x: Any,
    w: Any,
    transpose_w: bool,
    min_ndim: int,
    implementation: Any,
    config: Any,
    channel: Any,
) -> tuple[jax.Array, jax.Array]:
    _checks.check_options(
        op, activation=None, implementation=implementation, config=config, channel=channel
    )
    x, w = jnp.asarray(x), jnp.asarray(w)
    _checks.check_operands(op, x, (w,), transpose_w, min_ndim=min_ndim)
    return x, w


_OBSTACLES = {
    Where.VMAP: "the axis is bound by jax.vmap, so there are no ranks",
    Where.UNIT: "the axis has size 1 and is not manual, a plain matmul",
}


def make_spec(op: str, axis_name: Any, **fields: Any) -> tuple[Spec, Axis]:
    axis = _topology.resolve(op, axis_name)
    spec = Spec(
        op=op,
        axis_name=axis.names,
        world=axis.world,
        precision=jax.config.jax_default_matmul_precision,
        platform=axis.platform,
        device_kind=axis.device_kind,
        obstacle=_OBSTACLES.get(axis.where),
        **fields,
    )
    return spec, axis


def _plain(spec: Spec, axis: Axis) -> bool:
    """Whether the call is plain lax in the traced program: no primitive, no rule of ours."""
    return (
        spec.implementation == "xla"
        or axis.where is not Where.MANUAL
        or (axis.world == 1 and spec.implementation is None)
        or not jnp.issubdtype(spec.out_dtype, jnp.floating)
    )


def _collective_names(axis: Axis) -> tuple[str, ...]:
    """Names for lax; () where a collective would move nothing, as for any axis of size 1."""
    return axis.names if axis.world > 1 else ()


def _reverse_only(op: str, call: Callable[..., Any], *args: Any) -> Any:
    """Runs a custom_vjp; names the way out where JAX refuses forward mode on the spot."""
    try:
        return call(*args)
    except TypeError as error:
        # In an eager shard_map JAX trips over a hash before it comes to say "forward-mode".
        if "forward-mode" not in str(error) and not _compat.in_forward_mode(args):
            raise
        raise errors.ForwardModeError(
            errors.message(
                op,
                "differentiated in forward mode (jax.jvp, jax.jacfwd, jax.hessian)",
                "The op has a reverse rule only, as its kernel has no tangent",
                "Use jax.grad or jax.vjp (jax.jacrev of jax.grad for second derivatives), or pass "
                'implementation="xla": the reference '
                "(jax_flux.reference) differentiates in both modes",
            )
        ) from None


def _cast_bias(spec: Spec, bias: Any) -> jax.Array | None:
    if bias is None:
        return None
    _checks.check_bias_dtype(spec.op, bias, spec.out_dtype)
    return jnp.asarray(bias).astype(spec.out_dtype)


def add_bias(y: jax.Array, bias: Any, op: str = "a layer") -> jax.Array:
    """Once, after the collective, in y's dtype; JAX casts its varying axes where it must."""
    if bias is None:
        return y
    _checks.check_bias_dtype(op, bias, y.dtype)
    return y + jnp.asarray(bias).astype(y.dtype)


def check_biases(
    op: str, bias: Any, ws: tuple[jax.Array, ...], transpose_w: bool, several: bool
) -> tuple[Any, ...]:
    if bias is None:
        return (None,) * len(ws)
    if several and (not isinstance(bias, (tuple, list)) or len(bias) != len(ws)):
        raise errors.ShapeError(
            errors.message(
                op,
                f"{len(ws)} weights and a bias of type {type(bias).__name__}"
                + (f" of length {len(bias)}" if isinstance(bias, (tuple, list)) else ""),
                "A tuple of weights takes a tuple of as many biases",
                "Pass a tuple, with None where a weight has no bias",
            )
        )
    biases = tuple(bias) if several else (bias,)
    for b, w in zip(biases, ws, strict=True):
        _checks.check_bias(op, b, w.shape[0 if transpose_w else 1])
    return biases


def _zeros(shape: tuple[int, ...], spec: Spec, axis: Axis, *like: jax.Array) -> jax.Array:
    """Zeros that vary as the op's result would."""
    own = set(axis.names) if axis.where is Where.MANUAL else set()
    axes = frozenset(own).union(*(_compat.varying(a) for a in like))
    if spec.op == "matmul_ar":
        axes = axes - own
    return _compat.cast_varying(jnp.zeros(shape, spec.out_dtype), axes)


def _given(x: jax.Array, ws: tuple[jax.Array, ...]) -> str:
    return f"x is {_checks.shown(x)}, w is {', '.join(map(_checks.shown, ws))} per device"


# ---- one body per op -----------------------------------------------------------------------------


def ag(
    spec: Spec, axis: Axis, x: jax.Array, ws: tuple[jax.Array, ...], biases: Biases, at: int
) -> tuple[tuple[jax.Array, ...], jax.Array | None]:
    biases = tuple(_cast_bias(spec, bias) for bias in biases)
    lead, rest = x.shape[:at], x.shape[at + 1 : -1]
    rows = axis.world * x.shape[at]
    columns = [w.shape[0 if spec.transpose_w else 1] for w in ws]
    folded = x.reshape(_dispatch.fold_rows(x.shape, at))
    problem = _dispatch.ag_problem(
        folded,
        ws,
        world=axis.world,
        transpose_w=spec.transpose_w,
        out_dtype=spec.out_dtype,
        return_gathered=spec.return_gathered,
        biases=[bias is not None for bias in biases],
        activation=spec.activation,
    )
    _dispatch.announce(spec, _dispatch.decide(problem, spec), _given(x, ws))

    def finish(ys: Any) -> tuple[jax.Array, ...]:
        return tuple(
            _epilogue.finish(y, bias, spec.activation) for y, bias in zip(ys, biases, strict=True)
        )

    if x.size == 0 or not any(columns):
        ys = finish(_zeros((*lead, rows, *rest, n), spec, axis, x, *ws) for n in columns)
        if not spec.return_gathered:
            return ys, None
        return ys, reference.gather(x, _collective_names(axis), at) if x.size else _zeros(
            (*lead, rows, *rest, x.shape[-1]), spec, axis, x
        ).astype(x.dtype)
    if _plain(spec, axis):
        operands = _vjp.cast_union(axis.names if axis.where is Where.MANUAL else (), x, *ws)
        ys, full = reference.ag_matmul(
            operands[0],
            operands[1:],
            axis_name=_collective_names(axis),
            gather_axis=at,
            transpose_w=spec.transpose_w,
            out_dtype=spec.out_dtype,
            precision=spec.precision,
        )
        return finish(ys), full
    x, *rest_ = _vjp.cast_union(axis.names, folded, *ws, *biases)
    ws, biases = tuple(rest_[: len(ws)]), tuple(rest_[len(ws) :])
    out = _reverse_only(spec.op, _vjp.ag_core(spec), x, ws, biases)
    shaped = [y.reshape(*lead, rows, *rest, y.shape[-1]) for y in out]
    return tuple(shaped[: len(ws)]), shaped[-1] if spec.return_gathered else None


def rs(
    spec: Spec, axis: Axis, x: jax.Array, w: jax.Array, bias: jax.Array | None, at: int
) -> jax.Array:
    bias = _cast_bias(spec, bias)
    lead, rest = x.shape[:at], x.shape[at + 1 : -1]
    rows, n = x.shape[at] // axis.world, w.shape[0 if spec.transpose_w else 1]
    folded = x.reshape(_dispatch.fold_segments(x.shape, at, axis.world))
    problem = _dispatch.rs_problem(
        (folded,),
        (w,),
        world=axis.world,
        transpose_w=spec.transpose_w,
        out_dtype=spec.out_dtype,
        biases=(bias is not None,),
    )
    _dispatch.announce(spec, _dispatch.decide(problem, spec), _given(x, (w,)))
    if x.size == 0 or n == 0:
        return _epilogue.finish(_zeros((*lead, rows, *rest, n), spec, axis, x, w), bias, None)
    if _plain(spec, axis):
        operands = _vjp.cast_union(axis.names if axis.where is Where.MANUAL else (), x, w)
        y = reference.matmul_rs(
            *operands,
            axis_name=_collective_names(axis),
            scatter_axis=at,
            transpose_w=spec.transpose_w,
            out_dtype=spec.out_dtype,
            precision=spec.precision,
        )
        return _epilogue.finish(y, bias, None)
    x, w, bias = _vjp.cast_union(axis.names, folded, w, bias)
    y = _reverse_only(spec.op, _vjp.rs_core(spec), (x,), (w,), (bias,))
    return y.reshape(*lead, rows, *rest, n)


def ar(spec: Spec, axis: Axis, x: jax.Array, w: jax.Array) -> jax.Array:
    n = w.shape[0 if spec.transpose_w else 1]
    problem = _dispatch.ar_problem(
        x, w, world=axis.world, transpose_w=spec.transpose_w, out_dtype=spec.out_dtype
    )
    _dispatch.announce(spec, _dispatch.decide(problem, spec), _given(x, (w,)))
    if x.size == 0 or n == 0:
        return _zeros((*x.shape[:-1], n), spec, axis, x, w)
    if not _plain(spec, axis):
        operands = _vjp.cast_union(axis.names, x, w)
        return _reverse_only(spec.op, _vjp.ar_core(spec), *operands)
    kwargs: dict[str, Any] = dict(
        transpose_w=spec.transpose_w, out_dtype=spec.out_dtype, precision=spec.precision
    )
    # psum refuses an operand that varies over a part of its axes.
    x, w = _vjp.cast_union(_collective_names(axis) if axis.where is Where.MANUAL else (), x, w)
    y = reference.matmul_ar(x, w, axis_name=_collective_names(axis), **kwargs)
    own = tuple(name for name in axis.names if name in _compat.varying(y))
    if axis.where is Where.MANUAL and own:
        # Over an axis of size 1: moves nothing, only makes the type invariant.
        y = lax.psum(y, own)
    return y
