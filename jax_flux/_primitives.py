# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The primitives `ag_matmul_p`, `matmul_rs_p`, `all_gather_copy_p` on canonical shapes.

For each, in the same order: shapes, batching, lowering, registration.

  ag_matmul_p        x[b, m, k], w_i[k, n_i] ..., bias_i[n_i] ...
                       -> y_i[b, W, m, n_i] ... (, x[b, W, m, k])
  matmul_rs_p        x_i[b, W, m, k_i] ..., w_i[k_i, n] ... (, bias[n])  -> y[b, m, n]
  all_gather_copy_p  x[b, m, k]  -> y[b, W, m, k]

The parameter ``biases`` has a bool per result: whether its bias is among the operands. Biases are
in the results' dtype; ``activation`` (of ag_matmul_p) comes after them.
Invariant: under ``check_vma`` all operands vary over the same axes, the op's own among them
(_vjp.py casts them), and so does every result.
The custom call is pure and carries no side effect: what XLA removes, merges or reorders, it does
so in the one program that all ranks compile, so ranks never disagree about which calls happen.
Route: _vjp.py binds; lowering -> reference.py, or _lowering.py for the CUDA custom call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_flux import _compat, _epilogue, _lowering, _stats, errors, reference

ag_matmul_p = _compat.new_primitive("jax_flux_ag_matmul")
matmul_rs_p = _compat.new_primitive("jax_flux_matmul_rs")
all_gather_copy_p = _compat.new_primitive("jax_flux_all_gather_copy")

Results = Sequence[tuple[tuple[int, ...], Any]]


def _common_varying(*avals: Any, axis_name: tuple[str, ...], **_: Any) -> frozenset[str]:
    manual: frozenset[str] = avals[0].mat.varying
    assert all(a.mat.varying == manual for a in avals), [a.mat.varying for a in avals]
    assert manual >= set(axis_name), (manual, axis_name)
    return manual


# ---- references with the primitives' parameters ----------------------------------------------


def _ag_reference(*args: jax.Array, **params: Any) -> list[jax.Array]:
    (x,), ws, biases = _lowering.split_ag(args, params["biases"])
    return reference.ag_matmul_canonical(
        x,
        *ws,
        biases=biases,
        activation=params["activation"],
        axis_name=params["axis_name"],
        transpose_w=params["transpose_w"],
        out_dtype=params["out_dtype"],
        return_gathered=params["return_gathered"],
        precision=params["precision"],
    )


def _rs_reference(*args: jax.Array, **params: Any) -> list[jax.Array]:
    xs, ws, (bias,) = _lowering.split_rs(args, params["biases"])
    return reference.matmul_rs_canonical(
        *xs,
        *ws,
        bias=bias,
        axis_name=params["axis_name"],
        transpose_w=params["transpose_w"],
        out_dtype=params["out_dtype"],
        precision=params["precision"],
    )


def _copy_reference(x: jax.Array, **params: Any) -> list[jax.Array]:
    return [reference.gather_segments(x, params["axis_name"])]


# ---- batching --------------------------------------------------------------------------------


def _batch_through_reference(
    ref: Callable[..., list[jax.Array]], axis_data: Any, args: Any, dims: Any, params: Any
) -> tuple[list[jax.Array], list[int]]:
    """vmap of the reference: one collective for all, and right for the op's own vmapped axis."""
    own = axis_data.name in params["axis_name"]
    out = jax.vmap(
        lambda *a: ref(*a, **params),
        in_axes=tuple(dims),
        axis_size=axis_data.size,
        axis_name=axis_data.name if own else None,
    )(*args)
    if params.get("implementation") != "xla" and "op" in params:
        _stats.amend(params["op"], "vmap over w, or over the op's own axis, takes the reference")
    return list(out), [0] * len(out)


def _alike(args: Sequence[jax.Array]) -> list[jax.Array]:
    """Restores the module's invariant: vmap(spmd_axis_name=...) makes mapped operands vary more."""
    axes = frozenset[str]().union(*(_compat.varying(a) for a in args))
    return [_compat.cast_varying(a, axes) for a in args]


def _batch_through_loop(
    primitive: Any, axis_data: Any, args: Any, dims: Any, params: Any
) -> tuple[list[jax.Array], list[int]]:
    """vmap of a call that demanded the kernel: one call per element, in a loop."""
    args = _alike(args)
    mapped = [jnp.moveaxis(a, d, 0) for a, d in zip(args, dims, strict=True) if d is not None]

    def one(slices: list[jax.Array]) -> list[jax.Array]:
        rest = iter(slices)
        full = [a if d is None else next(rest) for a, d in zip(args, dims, strict=True)]
        return list(primitive.bind(*full, **params))

    out = lax.map(one, mapped)
    return out, [0] * len(out)


def _batch_biases(rule: Any, axis_data: Any, args: Any, dims: Any, params: Any) -> Any:
    """vmap over a bias: the batched call without an epilogue, then bias and activation by XLA."""
    biases, activation = params["biases"], params.get("activation")
    bare = params | {"biases": (False,) * len(biases)}
    if "activation" in params:
        bare["activation"] = None
    first = len(args) - sum(biases)
    ys, y_dims = rule(axis_data, args[:first], dims[:first], **bare)
    given, places = iter(args[first:]), iter(dims[first:])
    out, out_dims = list(ys), list(y_dims)
    for i, has in enumerate(biases):
        bias, d = (next(given), next(places)) if has else (None, None)
        mapped = y_dims[i] is not None or d is not None
        finish = lambda y, b: _epilogue.finish(y, b, activation)
        in_axes = (y_dims[i], None if bias is None else d)
        out[i] = (jax.vmap(finish, in_axes) if mapped else finish)(ys[i], bias)
        out_dims[i] = 0 if mapped else None
    return out, out_dims


def _batching(
    primitive: Any, ref: Callable[..., list[jax.Array]], split_operands: Any
) -> Callable[..., tuple[list[jax.Array], list[int]]]:
    """Batched x folds into the batch dimension; a batched w takes the reference, or a loop."""

    def rule(axis_data: Any, args: Any, dims: Any, **params: Any) -> Any:
        biases = params.get("biases", ())
        split = len(split_operands(args, biases)[0])
        own = axis_data.name in params["axis_name"]
        first_bias = len(args) - sum(biases)
        w_mapped = any(d is not None for d in dims[split:first_bias])
        if not own and not w_mapped and any(d is not None for d in dims[first_bias:]):
            return _batch_biases(rule, axis_data, args, dims, params)
        if w_mapped and not own and params.get("implementation") == "fused":
            return _batch_through_loop(primitive, axis_data, args, dims, params)
        if own or w_mapped:
            return _batch_through_reference(ref, axis_data, args, dims, params)
        if all(d is None for d in dims):
            out = primitive.bind(*args, **params)
            return out, [None] * len(out)
        args = _alike(args)
        size = axis_data.size
        xs = [
            jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
            for x, d in zip(args[:split], dims[:split], strict=True)
        ]
        folded = [x.reshape(size * x.shape[1], *x.shape[2:]) for x in xs]
        out = primitive.bind(*folded, *args[split:], **params)
        return [y.reshape(size, y.shape[0] // size, *y.shape[1:]) for y in out], [0] * len(out)

    return rule


# ---- ag_matmul_p -----------------------------------------------------------------------------


def _ag_shapes(*args: Any, world: int, transpose_w: bool, **params: Any) -> Results:
    (x,), ws, _ = _lowering.split_ag(args, params["biases"])
    batch, m, k = x.shape
    columns = [w.shape[0 if transpose_w else 1] for w in ws]
    results = [((batch, world, m, n), params["out_dtype"]) for n in columns]
    if params["return_gathered"]:
        results.append(((batch, world, m, k), x.dtype))
    return results


# ---- matmul_rs_p -----------------------------------------------------------------------------


def _rs_shapes(*args: Any, transpose_w: bool, out_dtype: Any, **params: Any) -> Results:
    (x, *_), (w, *_), _ = _lowering.split_rs(args, params["biases"])
    batch, _, m, _ = x.shape
    return [((batch, m, w.shape[0 if transpose_w else 1]), out_dtype)]


# ---- all_gather_copy_p -----------------------------------------------------------------------


def _copy_shapes(x: Any, *, world: int, **_: Any) -> Results:
    batch, m, k = x.shape
    return [((batch, world, m, k), x.dtype)]


# ---- registration ----------------------------------------------------------------------------


def _no_jvp() -> Exception:
    return errors.ForwardModeError(
        errors.message(
            "jax_flux",
            "a fused op met a forward-mode tangent (jax.jvp over jax.grad, jax.hessian)",
            "The ops have reverse rules only, as their kernels have no tangents",
            "Use reverse over reverse (jax.jacrev of jax.grad), or pass "
            'implementation="xla", which differentiates in both modes',
        )
    )


_ROWS = (
    (ag_matmul_p, _ag_shapes, _ag_reference, _lowering.split_ag, _lowering.ag_matmul),
    (matmul_rs_p, _rs_shapes, _rs_reference, _lowering.split_rs, _lowering.matmul_rs),
    (
        all_gather_copy_p,
        _copy_shapes,
        _copy_reference,
        _lowering.split_ag,
        _lowering.all_gather_copy,
    ),
)

for _primitive, _shapes, _ref, _split, _cuda in _ROWS:
    _compat.define_abstract_eval(_primitive, _shapes, _common_varying)
    _compat.define_batching(_primitive, _batching(_primitive, _ref, _split))
    _compat.define_no_jvp(_primitive, _no_jvp)
    _compat.define_lowering(_primitive, _lowering.without_gpu(_ref))
    _compat.define_lowering(_primitive, _cuda(_ref), platform="cuda")


# ---- the internal copy-only op ---------------------------------------------------------------


def all_gather_copy(x: jax.Array, axis_name: tuple[str, ...], world: int, channel: int) -> Any:
    """x[..., m, k] -> [..., W * m, k]: all_gather over axis -2 by the copy-only kernel on GPUs."""
    *lead, m, k = x.shape
    axes = _compat.varying(x) | set(axis_name)
    if x.size == 0:
        return _compat.cast_varying(jnp.zeros((*lead, world * m, k), x.dtype), axes)
    if world == 1:
        return _compat.cast_varying(x, axes)
    folded = _compat.cast_varying(x, axes).reshape(math.prod(lead), m, k)
    (y,) = all_gather_copy_p.bind(folded, axis_name=axis_name, world=world, channel=channel)
    return y.reshape(*lead, world * m, k)
