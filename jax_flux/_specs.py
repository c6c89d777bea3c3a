# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""PartitionSpecs of the ``*_sharded`` wrappers: derive, check, and say what the result has."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jax_flux import _checks, _topology, errors

Entry = tuple[str, ...]
Names = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Specs:
    """Specs of one wrapped call; ``w`` and ``y`` have one entry per weight."""

    x: P
    w: tuple[P, ...]
    y: tuple[P, ...]
    gathered: P


def check_mesh(op: str, mesh: Any, axis: Any) -> Names:
    """The op's axis names, all of which ``mesh`` has."""
    names = _topology.canonical_names(op, axis)
    missing = [n for n in names if n not in mesh.axis_names]
    if missing:
        raise errors.AxisError(
            errors.message(
                f"{op}_sharded",
                f"axis = {axis!r}, mesh axes are {list(mesh.axis_names)}",
                f"{missing[0]!r} is not an axis of the mesh",
                "Pass one of the mesh's axes, or a tuple of them",
            )
        )
    scope = jax.sharding.get_abstract_mesh()
    if any(kind is AxisType.Manual for kind in scope.axis_types):
        raise errors.AxisError(
            errors.message(
                f"{op}_sharded",
                "called inside jax.shard_map, where arrays are already local",
                "The wrapper makes a shard_map of its own, over global arrays",
                f"Call jax_flux.{op} with axis_name={axis!r} here",
            )
        )
    return names


def _entries(spec: P, ndim: int) -> list[Entry]:
    """One tuple of names per dimension."""
    raw = [*spec, *[None] * (ndim - len(spec))]
    return [() if e is None else tuple(e) if isinstance(e, (tuple, list)) else (e,) for e in raw]


def _spec(entries: list[Entry]) -> P:
    return P(*[e[0] if len(e) == 1 else (e or None) for e in entries])


def _explicit(mesh: Any) -> bool:
    return any(kind is AxisType.Explicit for kind in mesh.axis_types)


def _from_type(op: str, what: str, a: jax.Array, mesh: Any) -> P:
    sharding = jax.typeof(a).sharding
    if sharding.mesh.empty or tuple(sharding.mesh.axis_names) != tuple(mesh.axis_names):
        raise errors.ShapeError(
            errors.message(
                f"{op}_sharded",
                f"{what} is {_checks.shown(a)} with no sharding over the mesh {mesh.shape}",
                "The mesh has Explicit axes, so specs come from the operands' types",
                f"Place it: jax.device_put({what}, jax.NamedSharding(mesh, jax.P(...))), or make "
                "the mesh with axis_types=(jax.sharding.AxisType.Auto, ...)",
            )
        )
    return sharding.spec


def _default_x(
    mesh: Any, names: Names, x: jax.Array, sharded: int, rows: int | None
) -> list[Entry]:
    """``axis`` on dimension ``sharded``, all other axes on the batch.

    The batch is the first dimension that is neither k nor the one that the op gathers or scatters
    (``rows``); a 2-D x has none.
    """
    entries: list[Entry] = [()] * x.ndim
    entries[sharded] = names
    rest = tuple(n for n in mesh.axis_names if n not in names)
    free = [d for d in range(x.ndim - 1) if d != rows] if x.ndim > 2 else []
    if rest and free:
        entries[free[0]] = rest
    return entries


def _operand(
    op: str, what: str, a: jax.Array, mesh: Any, given: P | None, default: list[Entry]
) -> list[Entry]:
    if given is not None:
        entries = _entries(given, a.ndim)
    elif _explicit(mesh):
        entries = _entries(_from_type(op, what, a, mesh), a.ndim)
    else:
        entries = default
    for dim, entry in enumerate(entries):
        size = math.prod(mesh.shape[n] for n in entry)
        if a.shape[dim] % size:
            raise errors.ShapeError(
                errors.message(
                    f"{op}_sharded",
                    f"{what} is {_checks.shown(a)} with spec {_spec(entries)} on mesh "
                    f"{dict(mesh.shape)}",
                    f"Dimension {dim} of size {a.shape[dim]}, does not split into {size} parts",
                    f"Pad it, or pass another {what}_spec",
                )
            )
    return entries


def _require(
    op: str, what: str, a: jax.Array, entries: list[Entry], dim: int, tail: Names, why: str
) -> None:
    """Dimension ``dim`` must be sharded over ``tail`` innermost ("()": not at all)."""
    entry = entries[dim]
    fits = entry[len(entry) - len(tail) :] == tail if tail else not entry
    if not fits:
        wanted = f"sharded over {tail} (innermost)" if tail else "not sharded"
        raise errors.ShapeError(
            errors.message(
                f"{op}_sharded",
                f"{what} is {_checks.shown(a)} with spec {_spec(entries)}",
                f"Dimension {dim} must be {wanted}: {why}",
                f"Pass {what}_spec accordingly, or reshard {what} first",
            )
        )


def ag_specs(
    op: str,
    mesh: Any,
    names: Names,
    x: jax.Array,
    ws: tuple[jax.Array, ...],
    x_spec: P | None,
    w_spec: Any,
    *,
    gather_axis: int,
    transpose_w: bool,
) -> Specs:
    """Specs of ag_matmul: x [..., M, ..., k] by rows, w [k, N] by columns."""
    _checks.check_operands(op, x, ws, transpose_w, min_ndim=2)
    at = _checks.check_axis(op, "gather_axis", gather_axis, x)
    xe = _operand(op, "x", x, mesh, x_spec, _default_x(mesh, names, x, at, at))
    _require(op, "x", x, xe, at, names, "these are the rows that the op gathers")
    _require(op, "x", x, xe, x.ndim - 1, (), "a product contracts whole rows of x")
    gathered = [*xe]
    gathered[at] = xe[at][: len(xe[at]) - len(names)]
    n_dim = 0 if transpose_w else 1
    w_specs, y_specs = [], []
    each = None if w_spec is None or isinstance(w_spec, P) else list(w_spec)
    for i, w in enumerate(ws):
        default: list[Entry] = [names, ()] if transpose_w else [(), names]
        we = _operand(op, "w", w, mesh, each[i] if each else w_spec, default)
        _require(op, "w", w, we, 1 - n_dim, (), "a product contracts whole columns of w")
        w_specs.append(_spec(we))
        y_specs.append(_spec([*gathered[:-1], we[n_dim]]))
    return Specs(_spec(xe), tuple(w_specs), tuple(y_specs), _spec(gathered))


def contraction_specs(
    op: str,
    mesh: Any,
    names: Names,
    x: jax.Array,
    w: jax.Array,
    x_spec: P | None,
    w_spec: P | None,
    *,
    scatter_axis: int | None,
    transpose_w: bool,
) -> Specs:
    """Specs of matmul_rs and matmul_ar: x [..., K] and w [K, n], both sharded along K."""
    _checks.check_operands(op, x, (w,), transpose_w, min_ndim=1 if scatter_axis is None else 2)
    k_dim = 1 if transpose_w else 0
    rows = None if scatter_axis is None else _checks.check_axis(op, "scatter_axis", scatter_axis, x)
    xe = _operand(op, "x", x, mesh, x_spec, _default_x(mesh, names, x, x.ndim - 1, rows))
    default: list[Entry] = [(), names] if transpose_w else [names, ()]
    we = _operand(op, "w", w, mesh, w_spec, default)
    why = "every rank multiplies its own slice of k"
    for what, a, entries, dim in (("x", x, xe, x.ndim - 1), ("w", w, we, k_dim)):
        if entries[dim] != names:
            _require(
                op, what, a, [e if d != dim else () for d, e in enumerate(entries)], dim, names, why
            )
    ye = [*xe[:-1], we[1 - k_dim]]
    if rows is not None:
        ye[rows] = (*ye[rows], *names)
    y = _spec(ye)
    return Specs(_spec(xe), (_spec(we),), (y,), y)
