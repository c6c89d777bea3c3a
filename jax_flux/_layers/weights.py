# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Shapes and shardings of the layers' parameters."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax

from jax_flux import _checks, errors
from jax_flux._layers.place import Kind, P, Parallel, Place, Weight
from jax_flux._topology import AxisName

Table = tuple[Weight, Weight]  # kernel, bias


def column_weights(in_features: int, out: int | tuple[int, ...], axis: AxisName) -> Table:
    """Kernel [in_features, *out] and bias [*out], sharded along the first of ``out``."""
    out = (out,) if isinstance(out, int) else out
    rest, flat = (None,) * (len(out) - 1), math.prod(out)
    kernel = Weight((in_features, *out), (None, axis, *rest), (in_features, flat))
    return kernel, Weight(out, (axis, *rest), (flat,))


def row_weights(inner: int | tuple[int, ...], out_features: int, axis: AxisName) -> Table:
    """Kernel [*inner, out_features], sharded along the first of ``inner``, and a whole bias."""
    inner = (inner,) if isinstance(inner, int) else inner
    shape = (*inner, out_features)
    kernel = Weight(shape, (axis, *[None] * len(inner)), (math.prod(inner), out_features))
    return kernel, Weight((out_features,), (None,), (out_features,))


@dataclasses.dataclass(frozen=True)
class Heads:
    """The heads of a self-attention layer. Hashable, so it may be static in a module."""

    layer: str
    query: int
    key_value: int
    head_dim: int
    rope_base: float | None

    @classmethod
    def of(
        cls,
        parallel: Parallel,
        num_heads: int,
        num_kv_heads: int | None,
        qkv_features: int,
        rope_base: float | None,
    ) -> Heads:
        """Checks what does not depend on the mesh."""
        kv = num_heads if num_kv_heads is None else num_kv_heads
        given = f"num_heads = {num_heads}, num_kv_heads = {kv}, qkv_features = {qkv_features}"
        if num_heads % kv or qkv_features % num_heads:
            raise errors.ShapeError(
                errors.message(
                    parallel.layer,
                    given,
                    "qkv_features is num_heads times the width of a head, and every key head "
                    "serves equally many query heads",
                    "Make num_heads a multiple of num_kv_heads, and qkv_features one of num_heads",
                )
            )
        head_dim = qkv_features // num_heads
        if rope_base is not None and head_dim % 2:
            raise errors.ShapeError(
                errors.message(
                    parallel.layer,
                    f"rope_base = {rope_base} and {given}, so a head is {head_dim} wide",
                    "A rotation turns pairs of numbers, so the width must be even",
                    "Choose another qkv_features, or rope_base=None",
                )
            )
        return cls(parallel.layer, num_heads, kv, head_dim, rope_base)

    def divide(self, place: Place | None) -> None:
        """Refuses heads that the ranks cannot share evenly."""
        if place:
            place.divide("num_heads", self.query)
            place.divide("num_kv_heads", self.key_value)

    def tables(self, in_features: int, out_features: int, axis: AxisName) -> dict[str, Table]:
        """(kernel, bias) by the submodules' names, in the order that Flax initialises them."""
        q, kv = (self.query, self.head_dim), (self.key_value, self.head_dim)
        return {
            "query": column_weights(in_features, q, axis),
            "key": column_weights(in_features, kv, axis),
            "value": column_weights(in_features, kv, axis),
            "out": row_weights(q, out_features, axis),
        }

    def extra_specs(self, place: Place, x: jax.Array, mask: Any, positions: Any) -> tuple[Any, Any]:
        """Specs of a mask [b or 1, heads or 1, s, s] and of positions [s] or [b, s]."""
        if x.ndim not in (2, 3):
            raise errors.ShapeError(
                errors.message(
                    self.layer,
                    f"the input is {_checks.shown(x)}",
                    "Attention runs over [batch, sequence, features] or [sequence, features]",
                    "Fold further dimensions into the batch, or map over them with jax.vmap",
                )
            )
        if mask is not None and mask.ndim != 4:
            raise errors.ShapeError(
                errors.message(
                    self.layer,
                    f"mask is {_checks.shown(mask)}",
                    "A mask is [batch or 1, heads or 1, queries, keys]",
                    "Add the missing dimensions, mask[None, None]",
                )
            )
        if mask is not None and mask.dtype != bool:
            raise errors.DtypeError(
                errors.message(
                    self.layer,
                    f"mask is {_checks.shown(mask)}",
                    "A mask is bool, True where a query may see a key",
                    "Compare, mask > 0; a bias on the logits is not offered",
                )
            )
        if place.kind is not Kind.GLOBAL:
            return None, None
        batch = place.rows(x)[0] if x.ndim == 3 else None
        mask_spec = positions_spec = None
        if mask is not None:
            several = mask.shape[1] > 1
            mask_spec = P(
                batch if mask.shape[0] > 1 else None,
                place.parallel.axis if several else None,
                None,
                None,
            )
        if positions is not None:
            positions_spec = P(batch, None) if positions.ndim > 1 else P(None)
        return mask_spec, positions_spec


def check_width(place: Place, x: jax.Array, what: str, size: int, *, sharded: bool = False) -> None:
    """Refuses an input whose last dimension is not the layer's, before an op speaks of k.

    Args:
      place: of the call.
      x: the input, this rank's shard inside shard_map.
      what: the layer's name for the number, such as "in_features".
      size: the number, of the global array.
      sharded: x's last dimension is sharded over the axis, as a row-parallel layer has it.
    """
    split = sharded and place.is_local
    expected = size // place.world if split else size
    given = x.shape[-1] if x.ndim else None
    if given == expected:
        return
    remedy = f"Pass an x of shape [..., {expected}]"
    if given is not None and place.is_local and given in (size, size / place.world):
        entry = repr(place.parallel.axis) if sharded else "None"
        remedy += f" (in the in_specs of shard_map the last entry of x's spec is {entry})"
    if given:
        made = given * (place.world if split else 1)
        remedy += f", or make the layer for a width of {made}"
    raise errors.ShapeError(
        errors.message(
            place.parallel.layer,
            f"{what} = {size}, x is {_checks.shown(x)}" + (" per device" if place.is_local else ""),
            f"The last dimension of x must be {expected}"
            + (
                f", this rank's share on axis {place.parallel.axis!r} of size {place.world}"
                if split
                else ""
            )
            + ": the layer contracts it with its weights",
            remedy,
        )
    )
