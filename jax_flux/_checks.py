# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Validation shared by the public ops: every wrong input gets a message before anything is traced.

Route: ops.py and sharded.py call these first; nothing below validates again.
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp

from jax_flux import _epilogue, _plan, errors, reference
from jax_flux._config import Config

ACTIVATIONS = _epilogue.ACTIVATIONS


def shown(a: Any) -> str:
    """``bf16``-free short form such as ``float32[8, 16]``, per device."""
    return f"{jnp.dtype(a.dtype).name}{list(a.shape)}"


def check_options(
    op: str, *, activation: Any, implementation: Any, config: Any, channel: Any
) -> None:
    if activation is not None and not (isinstance(activation, str) and activation in ACTIVATIONS):
        raise errors.OptionError(
            errors.message(
                op,
                f"activation = {activation!r}",
                f"Known activations are {', '.join(map(repr, ACTIVATIONS))} and None",
                "Choose one of them, or apply your own function to the result",
            )
        )
    if not isinstance(implementation, str | None) or implementation not in _plan.IMPLEMENTATIONS:
        raise errors.OptionError(
            errors.message(
                op,
                f"implementation = {implementation!r}",
                "Known implementations are 'fused' (raises where it cannot run), 'xla' (the "
                "reference) and None (fused where supported, else xla)",
                "Choose one of them",
            )
        )
    if config is not None and not isinstance(config, Config):
        raise errors.OptionError(
            errors.message(
                op,
                f"config = {config!r} of type {type(config).__name__}",
                "A forced plan is a jax_flux.Config, which is validated when built",
                "Pass jax_flux.Config(tile=..., cluster=..., transport=..., sm_margin=...) or None",
            )
        )
    if not isinstance(channel, int) or isinstance(channel, bool) or not 0 <= channel < 64:
        raise errors.OptionError(
            errors.message(
                op,
                f"channel = {channel!r}",
                "A channel is a small static int: it names a workspace of its own",
                "Pass an int from 0 to 63 (0 unless streams are annotated by hand)",
            )
        )


def check_operands(op: str, x: Any, ws: tuple[Any, ...], transpose_w: bool, min_ndim: int) -> None:
    if x.ndim < min_ndim:
        raise errors.ShapeError(
            errors.message(
                op,
                f"x is {shown(x)}",
                f"x needs at least {min_ndim} dimensions, the last of which is k",
                "Add the missing dimension, for example x[None, :]",
            )
        )
    if not ws:
        raise errors.ShapeError(
            errors.message(
                op,
                "an empty tuple of weights",
                "There is nothing to multiply",
                "Pass at least one weight",
            )
        )
    k_axis = 1 if transpose_w else 0
    for w in ws:
        if w.ndim != 2:
            raise errors.ShapeError(
                errors.message(
                    op,
                    f"w is {shown(w)}",
                    "w is a matrix: [k, n], or [n, k] with transpose_w=True",
                    "Fold its other dimensions into k or n, or map over them with jax.vmap",
                )
            )
        if w.shape[k_axis] != x.shape[-1]:
            raise errors.ShapeError(_k_mismatch(op, x, w, transpose_w))
    for a in (x, *ws):
        if not jnp.issubdtype(a.dtype, jnp.number):
            raise errors.DtypeError(
                errors.message(
                    op,
                    f"an operand is {shown(a)}",
                    "Operands must be numbers",
                    "Cast it, for example x.astype(jnp.bfloat16)",
                )
            )


def _k_mismatch(op: str, x: Any, w: Any, transpose_w: bool) -> str:
    k_axis = 1 if transpose_w else 0
    given = (
        f"x is {shown(x)} with k = {x.shape[-1]}, w is {shown(w)} with k = {w.shape[k_axis]} "
        f"(transpose_w={transpose_w}), per device"
    )
    if w.shape[1 - k_axis] == x.shape[-1]:  # may be chance: 4d columns over 4 ranks are d
        layout = "may not need transpose_w" if transpose_w else "may be transposed"
        remedy = (
            f"w {layout} (transpose_w={not transpose_w}), or made for another k: "
            f"{w.shape[k_axis]}, where x has {x.shape[-1]}. Compare the specs that shard x and w"
        )
    else:
        remedy = "Check the specs that shard x and w: both must slice k alike"
    return errors.message(
        op, given, "The last axis of x is contracted with w: k must agree", remedy
    )


def check_axis(op: str, keyword: str, axis: Any, x: Any) -> int:
    """``axis`` as a non-negative position before the last, which is contracted away."""
    if not isinstance(axis, int) or isinstance(axis, bool) or not -x.ndim <= axis < x.ndim:
        raise errors.ShapeError(
            errors.message(
                op,
                f"{keyword} = {axis!r}, x is {shown(x)}",
                f"{keyword} is a position in x, from {-x.ndim} to {x.ndim - 2}",
                "Name the axis of x that is sharded (the default, -2, is the one before k)",
            )
        )
    position = axis % x.ndim
    if position == x.ndim - 1:
        raise errors.ShapeError(
            errors.message(
                op,
                f"{keyword} = {axis}, x is {shown(x)}",
                "The last axis of x is k, which the product contracts: it has no rows to gather or "
                "scatter",
                "Name an axis before the last. For an x sharded along k, use jax_flux.matmul_rs or "
                "jax_flux.matmul_ar, which add the partial products",
            )
        )
    return position


def check_scatter(op: str, axis: int, x: Any, world: int, axis_name: Any) -> None:
    if x.shape[axis] % world:
        raise errors.ShapeError(
            errors.message(
                op,
                f"scatter_axis = {axis} of x = {shown(x)} has {x.shape[axis]} rows, "
                f"axis {axis_name!r} has size {world}",
                "Every rank keeps an equal share of the rows, so the size must divide them",
                f"Pad the rows to {-(-x.shape[axis] // world) * world}, or use matmul_ar",
            )
        )


def check_bias(op: str, bias: Any, n: int) -> None:
    if bias is None:
        return
    if not hasattr(bias, "shape") or not hasattr(bias, "dtype"):
        raise errors.ShapeError(
            errors.message(
                op,
                f"bias is a {type(bias).__name__}",
                "The bias is an array, one number per column of the one weight",
                f"Pass an array of shape [{n}]",
            )
        )
    if tuple(bias.shape) != (n,):
        where = (
            "sharded like the columns of w"
            if op == "ag_matmul"
            else "whole and the same on all ranks (spec P()): they share w along k, not its columns"
        )
        raise errors.ShapeError(
            errors.message(
                op,
                f"bias is {shown(bias)}, the product has n = {n} columns",
                "The bias is one number per column, added exactly once",
                f"Pass a bias of shape [{n}], {where}",
            )
        )


def resolve_out_dtype(op: str, out_dtype: Any, x: Any, ws: tuple[Any, ...]) -> Any:
    """The result's dtype: ``out_dtype``, or the operands' promoted dtype."""
    try:
        common = functools.reduce(reference.common_dtype, (w.dtype for w in ws), x.dtype)
        out = common if out_dtype is None else jnp.dtype(out_dtype)
    except TypeError as error:
        raise errors.DtypeError(
            errors.message(
                op,
                f"out_dtype = {out_dtype!r}, x is {shown(x)}, w is {', '.join(map(shown, ws))}",
                f"The result needs one dtype ({error})".rstrip(".)") + ")",
                "Name a dtype such as jnp.bfloat16, and cast operands that do not promote",
            )
        ) from None
    kinds = (jnp.floating, jnp.complexfloating, jnp.integer)
    if not any(jnp.issubdtype(out, k) and jnp.issubdtype(common, k) for k in kinds):
        raise errors.DtypeError(
            errors.message(
                op,
                f"out_dtype = {out.name}, operands are {common.name}",
                "The result is rounded once from the accumulator, within one kind of number",
                "Choose an out_dtype of the same kind, or cast the result",
            )
        )
    return out


def check_bias_dtype(op: str, bias: Any, out: Any) -> None:
    """No part of the bias may be lost in the cast to the result's dtype ``out``."""
    for kind in (jnp.complexfloating, jnp.inexact):
        if jnp.issubdtype(bias.dtype, kind) and not jnp.issubdtype(out, kind):
            raise errors.DtypeError(
                errors.message(
                    op,
                    f"bias is {shown(bias)}, the result is {jnp.dtype(out).name}",
                    "The bias is cast to the result's dtype, which would drop a part of it",
                    "Cast the bias yourself, or choose another out_dtype",
                )
            )
