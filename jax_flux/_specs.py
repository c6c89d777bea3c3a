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
    if not isinstance(mesh, jax.sharding.Mesh | jax.sharding.AbstractMesh):
        raise errors.AxisError(
            errors.message(
                f"{op}_sharded",
                f"mesh is a {type(mesh).__name__}",
                "The wrapper makes a shard_map over a mesh",
                "Pass a jax.sharding.Mesh, for example jax.make_mesh((2, 4), ('dp', 'tp'))",
            )
        )
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
                f"{what} is {_checks.shown(a)} with no sharding over the mesh {dict(mesh.shape)}",
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
    _check_spec(op, what, a, mesh, entries)
    for dim, entry in enumerate(entries):
        size = math.prod(mesh.shape[n] for n in entry)
        if a.shape[dim] % size:
            raise errors.ShapeError(
                errors.message(
                    f"{op}_sharded",
                    f"{what} is {_checks.shown(a)} with spec {_spec(entries)} on mesh "
                    f"{dict(mesh.shape)}",
                    f"Dimension {dim}, of size {a.shape[dim]}, does not split into {size} parts",
                    f"Pad it, or pass another {what}_spec",
                )
            )
    return entries


def _check_spec(op: str, what: str, a: jax.Array, mesh: Any, entries: list[Entry]) -> None:
    """One entry per dimension, of the mesh's axes, each at most once."""
    used = [name for entry in entries for name in entry]
    unknown = [name for name in used if name not in mesh.axis_names]
    if len(entries) == a.ndim and not unknown and len(set(used)) == len(used):
        return
    raise errors.ShapeError(
        errors.message(
            f"{op}_sharded",
            f"{what} is {_checks.shown(a)} with spec {_spec_text(entries)}, mesh axes are "
            f"{list(mesh.axis_names)}",
            f"A spec has at most one entry per dimension ({a.ndim} here), and names each axis of "
            "the mesh at most once",
            f"Pass another {what}_spec",
        )
    )


def _result(op: str, entries: list[Entry]) -> P:
    """Spec of a result, whose rows come from x and whose columns come from w."""
    used = [name for entry in entries for name in entry]
    twice = sorted({name for name in used if used.count(name) > 1})
    if twice:
        raise errors.ShapeError(
            errors.message(
                f"{op}_sharded",
                f"the result would be sharded as {_spec_text(entries)}",
                f"Rows come from x and columns from w, and {twice[0]!r} shards both",
                f"Pass an x_spec or a w_spec that leaves {twice[0]!r} out",
            )
        )
    return _spec(entries)


def _spec_text(entries: list[Entry]) -> str:
    return str(tuple(e[0] if len(e) == 1 else (e or None) for e in entries))


def _require(
    op: str,
    what: str,
    a: jax.Array,
    entries: list[Entry],
    dim: int,
    tail: Names,
    why: str,
    alone: bool = False,
) -> None:
    """Dimension ``dim`` must be sharded over ``tail`` innermost, or alone ("()": not at all)."""
    entry = entries[dim]
    fits = entry == tail if alone or not tail else entry[len(entry) - len(tail) :] == tail
    if not fits:
        how = "alone" if alone else "innermost"
        wanted = f"sharded over {tail} ({how})" if tail else "not sharded"
        raise errors.ShapeError(
            errors.message(
                f"{op}_sharded",
                f"{what} is {_checks.shown(a)} with spec {_spec(entries)}",
                f"Dimension {dim} must be {wanted}: {why}",
                f"Pass {what}_spec accordingly, or reshard {what} first",
            )
        )


def shards(spec: P, names: Names) -> bool:
    """Whether every one of ``names`` shards some dimension of an array with this spec."""
    return set(names) <= {name for entry in _entries(spec, len(spec)) for name in entry}


def bias_spec(op: str, mesh: Any, bias: Any, y: P) -> P | None:
    """Spec of a bias: that of the result's columns, which on an Explicit mesh it must have."""
    if bias is None:
        return None
    wanted = P(y[-1])
    if _explicit(mesh) and _entries(_from_type(op, "bias", bias, mesh), 1) != _entries(wanted, 1):
        raise errors.ShapeError(
            errors.message(
                f"{op}_sharded",
                f"bias is {_checks.shown(bias)} with spec {jax.typeof(bias).sharding.spec}",
                f"It is sharded like the columns of the result, {wanted}",
                f"Place it: jax.sharding.reshard(bias, jax.{wanted})",
            )
        )
    return wanted


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
    each = [w_spec] * len(ws) if w_spec is None or isinstance(w_spec, P) else list(w_spec)
    if len(each) != len(ws):
        raise errors.ShapeError(
            errors.message(
                f"{op}_sharded",
                f"{len(ws)} weights and {len(each)} entries in w_spec",
                "A tuple of specs has one for each weight",
                "Pass one PartitionSpec for all weights, or as many as there are weights",
            )
        )
    for w, given in zip(ws, each, strict=True):
        default: list[Entry] = [names, ()] if transpose_w else [(), names]
        we = _operand(op, "w", w, mesh, given, default)
        _require(op, "w", w, we, 1 - n_dim, (), "a product contracts whole columns of w")
        w_specs.append(_spec(we))
        y_specs.append(_result(op, [*gathered[:-1], we[n_dim]]))
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
        _require(op, what, a, entries, dim, names, why, alone=True)
    ye = [*xe[:-1], we[1 - k_dim]]
    if rows is not None:
        ye[rows] = (*ye[rows], *names)
    y = _result(op, ye)
    return Specs(_spec(xe), (_spec(we),), (y,), y)
