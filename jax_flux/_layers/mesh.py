# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs a body where its arrays are: on the spot, or in one shard_map over global arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jax_flux import _checks, errors
from jax_flux._layers.options import precision_scope
from jax_flux._layers.place import Kind, Place, is_explicit


def on_mesh(
    place: Place, body: Callable[..., Any], operands: tuple[Any, ...], in_specs: Any, out_specs: Any
) -> Any:
    """``body(*operands)``: right here, or in one fully manual shard_map around it.

    Args:
      place: of the call.
      body: works on local arrays (on whole ones where the place is PLAIN).
      operands: arrays, None, or tuples of those.
      in_specs: specs with the structure of ``operands``; read only where the place is GLOBAL.
      out_specs: specs of the results.

    Raises:
      ShapeError: a dimension does not split over its mesh axes.
    """
    with precision_scope(place.parallel.precision):
        if place.kind is not Kind.GLOBAL:
            return body(*operands)
        fitted = jax.tree.map(
            lambda a, spec: None if a is None else _fit(place, a, spec),
            operands,
            in_specs,
            is_leaf=lambda a: a is None,
        )
        mesh = place.parallel.mesh  # None: shard_map takes the one in scope
        return jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs)(*fitted)


def _fit(place: Place, a: jax.Array, spec: P) -> jax.Array:
    """Checks that ``a`` splits by ``spec``; on Explicit meshes reshards it where it must."""
    check_split(place, f"an operand is {_checks.shown(a)}", a.shape, spec)
    if not is_explicit(place.mesh):
        return a
    return jax.sharding.reshard(a, NamedSharding(place.mesh, spec))


def check_split(place: Place, given: str, shape: tuple[int, ...], spec: P) -> None:
    """Refuses a global shape whose dimensions do not split over their mesh axes."""
    for dim, entry in enumerate(spec):
        axes = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        parts = math.prod(place.mesh.shape[n] for n in axes)
        if shape[dim] % parts:
            raise errors.ShapeError(
                errors.message(
                    place.parallel.layer,
                    f"{given}, sharded by {spec} on mesh {dict(place.mesh.shape)}",
                    f"Dimension {dim} of size {shape[dim]} does not split into {parts} parts",
                    "Pad it; or pass batch_axes=() for a batch that is not sharded, "
                    "sequence_parallel=False for a sequence that is not",
                )
            )
