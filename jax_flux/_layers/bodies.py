# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the layers compute, on local arrays. W is the size of the axis, s the whole sequence.

Where the place gathers (sequence parallel), the residual stream is [..., s/W, d]; else [..., s, d]
on every rank. Where the place is PLAIN there is one rank and no communication.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_flux import _calls, _checks, _epilogue, errors, ops, reference
from jax_flux._layers import cache
from jax_flux._layers.place import Kind, Place

Affine = tuple[jax.Array, jax.Array | None]  # kernel, bias


def column(
    place: Place,
    x: jax.Array,
    affines: tuple[Affine, ...],
    transpose_w: bool = False,
    act: str | None = None,
) -> tuple[jax.Array, ...]:
    """x [..., s/W, d] and kernels [d, n/W] -> act of [..., s, n/W] each, by one gather or none."""
    if place.gathers:
        result: tuple[jax.Array, ...] = ops.ag_matmul(
            x,
            tuple(kernel for kernel, _ in affines),
            axis_name=place.parallel.axis,
            bias=tuple(bias for _, bias in affines),
            transpose_w=transpose_w,
            activation=act,
            implementation=place.parallel.implementation,
        )
        return result
    for kernel, _ in affines:
        _checks.check_operands(place.parallel.layer, x, (kernel,), transpose_w, min_ndim=1)
    precision = jax.config.jax_default_matmul_precision
    ys = (
        _calls.add_bias(
            reference.dot(x, kernel, transpose_w=transpose_w, precision=precision), bias
        )
        for kernel, bias in affines
    )
    return tuple(_epilogue.finish(y, None, act) for y in ys)


def row(place: Place, x: jax.Array, affine: Affine) -> jax.Array:
    """x [..., s, n/W], kernel [n/W, d] -> [..., s/W, d], or the whole sum on every rank."""
    kernel, bias = affine
    if place.kind is Kind.PLAIN:
        return column(place, x, (affine,))[0]
    op = ops.matmul_rs if place.gathers else ops.matmul_ar
    return op(
        x,
        kernel,
        axis_name=place.parallel.axis,
        bias=bias,
        implementation=place.parallel.implementation,
    )


def activation(layer: str, given: Any) -> Callable[[jax.Array], jax.Array]:
    """A function, or the one that ``jax_flux.ag_matmul`` has under that name."""
    if callable(given):
        function: Callable[[jax.Array], jax.Array] = given
        return function
    _checks.check_options(layer, activation=given, implementation=None, config=None, channel=0)
    return _checks.ACTIVATIONS[given] if given else lambda y: y


def mlp(
    place: Place,
    x: jax.Array,
    ups: tuple[Affine, ...],
    down: Affine,
    act: Any,
) -> jax.Array:
    """act(x @ up) @ down, or (act(x @ gate) * (x @ up)) @ down for ups = (gate, up).

    A kernel applies a named activation to all that it multiplies, so not to a gate alone.
    """
    if len(ups) == 1 and isinstance(act, str):
        return row(place, column(place, x, ups, act=act)[0], down)
    hidden = column(place, x, ups)
    h = activation(place.parallel.layer, act)(hidden[0])
    return row(place, h * hidden[1] if len(hidden) > 1 else h, down)


def attention(
    place: Place,
    x: jax.Array,
    qkv: tuple[Affine, ...],
    out: Affine,
    mask: jax.Array | None,
    positions: jax.Array | None,
    kv_cache: cache.Cache | None,
    *,
    is_causal: bool,
    rope_base: float | None,
    attention_implementation: Any,
) -> tuple[jax.Array, cache.Cache | None]:
    """Self-attention over this rank's heads; also the cache with this call's keys and values.

    Args:
      place: of the call.
      x: [b, s/W, d], or without b.
      qkv: kernels [d, heads/W, h] and biases [heads/W, h]; fewer heads for k and v (GQA).
      out: kernel [heads/W, h, d], bias [d].
      mask: bool [b or 1, heads/W or 1, s, s], True where a query may look; with a cache the keys
        are all of its max_length.
      positions: int [s] or [b, s], for the rotation; None counts from 0, or from the cache's index.
      kv_cache: keys and values of earlier calls, which causal queries see too; None: no cache.
      is_causal: a query sees no later key.
      rope_base: base of the rotary frequencies; None does not rotate.
      attention_implementation: of ``jax.nn.dot_product_attention``.
    """
    head_dim = qkv[0][0].shape[-1]
    flat = tuple(
        (kernel.reshape(kernel.shape[0], -1), None if bias is None else bias.reshape(-1))
        for kernel, bias in qkv
    )
    q, k, v = (y.reshape(*y.shape[:-1], -1, head_dim) for y in column(place, x, flat))
    if kv_cache is not None and positions is None:
        positions = kv_cache[2] + jnp.arange(q.shape[-3])
    if rope_base is not None:
        q, k = rotary(q, positions, rope_base), rotary(k, positions, rope_base)
    if kv_cache is not None:
        mask = cache.visible(kv_cache[2], q.shape[-3], kv_cache[0].shape[-3], mask)
        kv_cache, is_causal = cache.extend(kv_cache, k, v), False
        k, v = kv_cache[0].astype(q.dtype), kv_cache[1].astype(q.dtype)
    y = jax.nn.dot_product_attention(
        q, k, v, mask=mask, is_causal=is_causal, implementation=attention_implementation
    )
    if kv_cache is not None:  # a full cache has overwritten itself: say so in the result
        y = jnp.where(kv_cache[2] <= k.shape[-3], y, jnp.nan)
    kernel, bias = out
    kernel = kernel.reshape(-1, kernel.shape[-1])
    return row(place, y.reshape(*y.shape[:-2], -1), (kernel, bias)), kv_cache


def rotary(x: jax.Array, positions: jax.Array | None, base: float) -> jax.Array:
    """Rotates the pairs (x[i], x[i + h/2]) by position * base^(-2i/h), in f32 (arXiv 2104.09864).

    Args:
      x: [..., s, heads, h], h even.
      positions: int, [s] or [..., s]; None counts from 0.
      base: 10000 in the paper.
    """
    half = x.shape[-1] // 2
    if positions is None:
        positions = jnp.arange(x.shape[-3])
    frequency = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = positions.astype(jnp.float32)[..., None, None] * frequency
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1).astype(x.dtype)


def _own_rows(place: Place, ids: jax.Array, rows: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(ids in [0, vocabulary), row of each in this rank's share, whether it lies there)."""
    local = place.kind is not Kind.PLAIN
    start = lax.axis_index(place.names) * rows if local else 0
    vocabulary = rows * place.world
    inside = (ids >= 0) & (ids < vocabulary)
    row = ids - start
    own = (row >= 0) & (row < rows)
    return inside, jnp.where(own, row, 0), own


def embed(place: Place, ids: jax.Array, table: jax.Array) -> jax.Array:
    """ids [..., s], table [V/W, d] -> table rows [..., s/W, d] (or [..., s, d] on every rank).

    As in Flax, negative ids count from the end and others outside [0, V) give nan. Each sum has
    one term that is not 0, so the result is exact.
    """
    rows = table.shape[0]
    ids = ids.astype(jnp.promote_types(ids.dtype, jnp.int32))
    ids = jnp.where(ids < 0, ids + rows * place.world, ids)
    inside, row, own = _own_rows(place, ids, rows)
    y = jnp.where(own[..., None], jnp.take(table, row, axis=0, mode="clip"), 0)
    y = jnp.where(inside[..., None], y, jnp.nan).astype(table.dtype)
    if place.kind is Kind.PLAIN:
        return y
    if not place.gathers:
        return lax.psum(y, place.names)
    if not ids.ndim or ids.shape[-1] % place.world:
        raise errors.ShapeError(
            errors.message(
                place.parallel.layer,
                f"ids are {_checks.shown(ids)} per device, axis {place.parallel.axis!r} has size "
                f"{place.world}",
                "With sequence_parallel=True every rank keeps an equal share of the last dimension",
                "Pad the sequence, or pass sequence_parallel=False",
            )
        )
    return lax.psum_scatter(y, place.names, scatter_dimension=ids.ndim - 1, tiled=True)


def cross_entropy(place: Place, logits: jax.Array, labels: jax.Array) -> jax.Array:
    """logits [..., V/W], labels [...] -> -ln softmax(logits)[label], [...] in f32, on every rank.

    Three numbers per token cross the axis: the largest logit, the sum of exponentials, and the
    label's logit. A label outside [0, V) gives nan and no gradient.
    """
    names = place.names if place.kind is not Kind.PLAIN else ()
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    labels = labels.astype(jnp.promote_types(labels.dtype, jnp.int32))
    inside, row, own = _own_rows(place, labels, logits.shape[-1])
    largest = jnp.max(lax.stop_gradient(logits), axis=-1)
    shifted = logits - (lax.pmax(largest, names) if names else largest)[..., None]
    at_label = jnp.take_along_axis(shifted, row[..., None], axis=-1)[..., 0]
    parts = jnp.exp(shifted).sum(axis=-1), jnp.where(own, at_label, 0)
    total, target = lax.psum(parts, names) if names else parts
    return jnp.where(inside, jnp.log(total) - target, jnp.nan)
