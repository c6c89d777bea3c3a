# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The key-value cache of self-attention: how it lies on the mesh, and how a call adds to it.

Keys and values are [b, max_length, heads, h] with the heads sharded like the layer's; one index
counts the positions that are filled, as in Flax.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_flux import _checks, _compat, errors
from jax_flux._layers.mesh import check_split
from jax_flux._layers.place import Kind, P, Place
from jax_flux._layers.weights import Heads

Cache = tuple[jax.Array, jax.Array, jax.Array]  # keys, values, index


def layout(place: Place, heads: Heads, input_shape: Any) -> tuple[tuple[int, ...], P]:
    """(shape here, spec of the global array) of the cached keys; the values' are the same.

    Args:
      place: of the call that makes the cache.
      heads: of the layer.
      input_shape: [b, max_length, features] or [max_length, features], b local inside shard_map.

    Raises:
      ShapeError: another number of dimensions, or sizes that the mesh does not divide.
    """
    input_shape = tuple(input_shape)
    if len(input_shape) not in (2, 3):
        raise errors.ShapeError(
            errors.message(
                heads.layer,
                f"the cache is asked for inputs of shape {list(input_shape)}",
                "A cache holds [batch, max_length, features] or [max_length, features]",
                "Pass that shape",
            )
        )
    heads.divide(place)
    batch, max_length = input_shape[:-2], input_shape[-2]
    own_heads = heads.key_value // (place.world if place.is_local else 1)
    shape = (*batch, max_length, own_heads, heads.head_dim)
    entry = (place.batch_axes(),) if batch else ()
    spec = P(*entry, None, place.parallel.axis, None)
    if place.kind is Kind.GLOBAL:
        check_split(place, f"a cache of shape {list(shape)}", shape, spec)
    return shape, spec


def empty(place: Place, shape: tuple[int, ...], spec: P, dtype: Any) -> jax.Array:
    """Keys or values before the first call, zeros.

    Inside shard_map they vary over the axes of ``spec`` at once, as they will after a call: a loop
    over calls wants one type (``check_vma=True``).
    """
    zeros = jnp.zeros(shape, dtype)
    if not place.is_local:
        return zeros
    names = {n for entry in spec for n in (entry if isinstance(entry, tuple) else (entry,))}
    manual = set(jax.sharding.get_abstract_mesh().axis_names) & _compat.axis_env_sizes().keys()
    return _compat.cast_varying(zeros, frozenset(names & manual))  # an axis of vmap is not a mesh's


def check_dtype(heads: Heads, dtype: Any) -> None:
    """Refuses what would cut keys and values off."""
    if not jnp.issubdtype(dtype, jnp.floating):
        raise errors.DtypeError(
            errors.message(
                heads.layer,
                f"the cache is asked for in {jnp.dtype(dtype).name}",
                "Keys and values are real numbers, and are kept in the cache's dtype",
                "Pass a float dtype such as jnp.bfloat16",
            )
        )


def call_specs(place: Place, x: jax.Array) -> Any:
    """Specs of (keys, values, index) where x is the call's input."""
    if place.kind is not Kind.GLOBAL:
        return P()
    batch = (place.rows(x)[0],) if x.ndim == 3 else ()
    spec = P(*batch, None, place.parallel.axis, None)
    return spec, spec, P()


def check(place: Place, heads: Heads, x: jax.Array, keys: Any) -> None:
    """Refuses an input that the cache cannot take; what depends on the index gives nan instead."""
    own_heads = heads.key_value // (place.world if place.is_local else 1)
    max_length = keys.shape[-3]
    wanted = (*x.shape[:-2], max_length, own_heads, heads.head_dim)
    added = x.shape[-2] * (place.world if place.is_local and place.gathers else 1)
    if keys.shape == wanted and added <= max_length:
        return
    raise errors.ShapeError(
        errors.message(
            heads.layer,
            f"the input is {_checks.shown(x)}, which adds {added} positions, and the cached keys "
            f"are {_checks.shown(keys)}",
            f"The cache is [batch, max_length, {own_heads}, {heads.head_dim}] with the input's "
            "batch, and holds all positions",
            "Make another cache, of the batch and the length that prompt and result need",
        )
    )


def missing(heads: Heads, remedy: str) -> errors.OptionError:
    """What to raise where there is no cache to decode with."""
    return errors.OptionError(
        errors.message(
            heads.layer,
            "decode = True, and there is no cache",
            "Decoding reads the keys and values of earlier calls, so memory for them comes first",
            remedy,
        )
    )


def extend(cache: Cache, k: jax.Array, v: jax.Array) -> Cache:
    """The cache with k and v [..., s, heads, h] written behind what is filled."""
    keys, values, index = cache
    start: tuple[Any, ...] = (*[0] * (k.ndim - 3), index, 0, 0)
    keys = lax.dynamic_update_slice(keys, k.astype(keys.dtype), start)
    values = lax.dynamic_update_slice(values, v.astype(values.dtype), start)
    return keys, values, index + k.shape[-3]


def visible(index: jax.Array, queries: int, keys: int, mask: jax.Array | None) -> jax.Array:
    """[1, 1, queries, keys] and ``mask``: query i, at index + i, sees all keys up to its own."""
    position = index + jnp.arange(queries)
    causal = (jnp.arange(keys) <= position[:, None])[None, None]
    return causal if mask is None else causal & mask
