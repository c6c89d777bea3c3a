# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Mesh axis -> ranks: who takes part, where the call stands, and whether it may stand there.

Route: ops.py asks `resolve` before anything is planned; _primitives.py asks `groups` at lowering.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any

import jax
import numpy as np

from jax_flux import _compat, errors

AxisName = str | tuple[str, ...]


class Where(enum.Enum):
    """What kind of axis an op's axis name turned out to be."""

    MANUAL = "manual mesh axis"
    VMAP = "vmap axis"
    UNIT = "mesh axis of size 1 that is not manual"


@dataclasses.dataclass(frozen=True)
class Axis:
    """An op's axis, resolved. ``world`` is the product of the named axes' sizes."""

    names: tuple[str, ...]
    world: int
    where: Where
    platform: str | None
    device_kind: str | None


def canonical_names(op: str, axis_name: Any) -> tuple[str, ...]:
    """("tp",) for "tp"; a non-empty tuple of distinct names stays itself."""
    names: tuple[Any, ...] = (
        tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
    )
    if not names or len(set(names)) != len(names):
        raise errors.AxisError(
            errors.message(
                op,
                f"axis_name = {axis_name!r}",
                "An op runs over one mesh axis or a tuple of distinct ones",
                "Name each axis once, for example axis_name=('dp', 'tp')",
            )
        )
    return names


def resolve(op: str, axis_name: Any) -> Axis:
    """Finds ``axis_name`` in the axis environment and checks that every mesh axis is manual.

    Raises:
      AxisError: outside shard_map, unknown axis, or a mesh axis larger than 1 that is not manual.
    """
    names = canonical_names(op, axis_name)
    mesh = jax.sharding.get_abstract_mesh()
    mesh_sizes: dict[str, Any] = dict(mesh.shape) if not mesh.empty else {}
    bound = _compat.axis_env_sizes()
    for name in names:
        if name not in bound and name not in mesh_sizes:
            raise errors.AxisError(_unknown(op, axis_name, name, bound, mesh_sizes))
    if any(name in mesh_sizes for name in names):  # axes of vmap alone take the reference anyway
        _check_manual(op, axis_name, mesh)
    platform, device_kind = _compat.mesh_device(mesh)
    sizes: list[int] = [bound[n] if n in bound else int(mesh_sizes[n]) for n in names]
    world = math.prod(sizes)
    if any(name not in bound for name in names):
        where = Where.UNIT if world == 1 else Where.MANUAL
        if where is Where.MANUAL:
            raise errors.AxisError(_not_manual(op, axis_name, _axis_types(mesh)))
    elif all(name in mesh_sizes for name in names):
        where = Where.MANUAL
    else:
        where = Where.VMAP
    return Axis(names, world, where, platform, device_kind)


def _axis_types(mesh: Any) -> dict[str, tuple[int, str]]:
    return {
        name: (size, kind.name)
        for (name, size), kind in zip(mesh.shape.items(), mesh.axis_types, strict=True)
    }


def _check_manual(op: str, axis_name: Any, mesh: Any) -> None:
    if mesh.empty:
        return
    types = _axis_types(mesh)
    if any(size > 1 and kind != "Manual" for size, kind in types.values()):
        raise errors.AxisError(_not_manual(op, axis_name, types))


def _unknown(
    op: str, axis_name: Any, missing: str, bound: dict[Any, int], mesh_sizes: dict[str, int]
) -> str:
    if not bound and not mesh_sizes:
        return errors.message(
            op,
            f"axis_name = {axis_name!r}, called outside jax.shard_map (no axis is bound here)",
            "The op exchanges data over a mesh axis, which exists only inside shard_map",
            f"Call {op} inside jax.shard_map over a mesh with that axis, or use "
            f"jax_flux.{op}_sharded on global arrays",
        )
    known = sorted({str(n) for n in bound} | set(mesh_sizes))
    return errors.message(
        op,
        f"axis_name = {axis_name!r}, but the axes bound here are {known}",
        f"{missing!r} is not the name of a mesh axis in scope",
        "Pass one of the bound names, or add the axis to the mesh of the surrounding jax.shard_map",
    )


def _not_manual(op: str, axis_name: Any, types: dict[str, tuple[int, str]]) -> str:
    shown = ", ".join(f"{n!r} (size {s}, {k})" for n, (s, k) in types.items())
    return errors.message(
        op,
        f"axis_name = {axis_name!r} on a mesh with axes {shown}",
        "Every mesh axis larger than 1 must be manual here: the partitioner cannot see into the "
        "fused kernel and would silently all-gather its operands",
        "Call it inside a jax.shard_map that names all mesh axes (leave axis_names out), or use "
        f"jax_flux.{op}_sharded, which makes that shard_map",
    )


def groups(
    axis_names: tuple[str, ...], axis_sizes: tuple[int, ...], names: tuple[str, ...]
) -> np.ndarray:
    """All groups of an axis as logical ids: int64 [number of groups, world].

    A logical id is a device's row-major position in the mesh. Row order inside a group is
    ``lax.axis_index(names)``: the first name varies slowest. The same on every rank, own group
    or not, because XLA wants every rank to request the same set of cliques.

    Example:
      >>> groups(("dp", "tp"), (2, 2), ("tp",)).tolist()
      [[0, 1], [2, 3]]
      >>> groups(("dp", "tp"), (2, 2), ("dp",)).tolist()
      [[0, 2], [1, 3]]
    """
    ids = np.arange(math.prod(axis_sizes), dtype=np.int64).reshape(axis_sizes)
    own = [axis_names.index(name) for name in names]
    others = [i for i in range(len(axis_names)) if i not in own]
    world = math.prod(axis_sizes[i] for i in own)
    return np.ascontiguousarray(ids.transpose(others + own).reshape(-1, world))
