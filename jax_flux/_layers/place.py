# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where a layer's call stands, and how its arrays lie there: `Parallel.place` gives a `Place`."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any

import jax
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jax_flux import _checks, _compat, _topology, errors
from jax_flux._layers import options


class Kind(enum.Enum):
    """What the arrays of a call are."""

    LOCAL = "this rank's shards, inside the user's shard_map"
    GLOBAL = "global arrays on a mesh: the layer makes the shard_map"
    PLAIN = "global arrays, no mesh needed: parameters are being initialised"


@dataclasses.dataclass(frozen=True)
class Weight:
    """One parameter: global shape, sharding, and the shape its initialiser is asked for."""

    shape: tuple[int, ...]
    spec: tuple[Any, ...]
    flat: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Place:
    """One call of a layer, resolved. ``world`` is the product of the axes' sizes, 1 where PLAIN."""

    kind: Kind
    parallel: Parallel
    names: tuple[str, ...]
    world: int
    mesh: Any = None

    @property
    def is_local(self) -> bool:
        """Whether arrays are this rank's shards."""
        return self.kind is Kind.LOCAL

    @property
    def gathers(self) -> bool:
        """Whether the sequence is sharded between layers, and this call is one of several ranks."""
        return self.parallel.sequence_parallel and self.kind is not Kind.PLAIN

    def shape(self, weight: Weight) -> tuple[int, ...]:
        """The shape ``weight`` has here: this rank's shard, or the whole."""
        if not self.is_local:
            return weight.shape
        return tuple(
            size // self.world if entry is not None else size
            for size, entry in zip(weight.shape, weight.spec, strict=True)
        )

    def own(self, value: jax.Array, weight: Weight) -> jax.Array:
        """What this call keeps of an initial value: a shard of it inside shard_map."""
        value = value.reshape(weight.shape)
        for dim, (size, whole) in enumerate(zip(self.shape(weight), weight.shape, strict=True)):
            if size != whole:
                start = lax.axis_index(self.names) * size
                value = lax.dynamic_slice_in_dim(value, start, size, dim)
        return value

    def check(self, what: str, value: Any, weight: Weight) -> None:
        """Refuses a parameter that is not what `shape` says."""
        expected, given = self.shape(weight), tuple(value.shape)
        if given == expected:
            return
        inside = self.is_local
        rule = f"Here it must be {list(expected)}" + (
            f", this rank's shard of {list(weight.shape)} on axis {self.parallel.axis!r} of size "
            f"{self.world}"
            if inside
            else ""
        )
        remedy = (
            f"Shard it by {P(*weight.spec)} in the in_specs of shard_map (get_partition_spec of "
            "Flax gives the specs of all parameters)"
            if inside
            else "Compare the layer's features with those that the parameters were made with"
        )
        raise errors.ShapeError(
            errors.message(self.parallel.layer, f"{what} is {_checks.shown(value)}", rule, remedy)
        )

    def divide(self, what: str, size: int) -> None:
        """Refuses a number of features (heads, rows) that the ranks cannot share evenly."""
        if size % self.world:
            raise errors.ShapeError(
                errors.message(
                    self.parallel.layer,
                    f"{what} = {size} on axis {self.parallel.axis!r} of size {self.world}",
                    "Every rank holds an equal share, so the size of the axis must divide it",
                    f"Make it a multiple of {self.world}, for example "
                    f"{-(-size // self.world) * self.world}, or use a smaller axis",
                )
            )

    # ---- specs of activations on global arrays -----------------------------------------------

    def _batch(self, x: Any, ndim: int) -> Any:
        """Entry of dimension 0 of ``x``; ``ndim`` counts a feature dimension that ids lack."""
        given = self.parallel.batch_axes
        if ndim < 3 and (given is None or self.gathers or ndim < 2):
            return None
        if given is None and is_explicit(self.mesh):
            sharding = jax.typeof(x).sharding
            if not sharding.mesh.empty:
                entry = (*sharding.spec, None)[0]
                axes = entry if isinstance(entry, tuple) else (entry,)
                return tuple(a for a in axes if a is not None and a not in self.names) or None
        if given is None:
            given = tuple(n for n in self.mesh.axis_names if n not in self.names)
        return given or None

    def batch_axes(self) -> Any:
        """Entry of the batch of an array that is made before any input is seen; None: whole."""
        given, mesh = self.parallel.batch_axes, self.parallel.known_mesh()
        if given is None and mesh is not None:
            given = tuple(n for n in mesh.axis_names if n not in self.names)
        return given or None

    def attending(self, x: Any) -> Place:
        """The place of a call that attends over x: in [s, d] nothing is a batch."""
        if x.ndim != 2:
            return self
        return dataclasses.replace(self, parallel=dataclasses.replace(self.parallel, batch_axes=()))

    def rows(self, x: Any) -> P:
        """The residual stream x[..., s, d]: s over the axis where sequence-parallel."""
        if self.kind is not Kind.GLOBAL:
            return P()
        _check_rows(self, x)
        entries = [self._batch(x, x.ndim), *[None] * (x.ndim - 1)]
        if self.gathers:
            entries[-2] = self.parallel.axis
        return P(*entries)

    def features(self, x: Any) -> P:
        """x[..., s, f]: f over the axis."""
        if self.kind is not Kind.GLOBAL:
            return P()
        _check_rows(self, x)
        entries = [self._batch(x, x.ndim), *[None] * (x.ndim - 1)]
        entries[-1] = self.parallel.axis
        return P(*entries)

    def embedded(self, ids: Any) -> P:
        """`rows` of the vectors that ids[..., s] stand for."""
        if self.kind is not Kind.GLOBAL:
            return P()
        entries = [*self.tokens(ids), None]
        if self.gathers and ids.ndim:
            entries[-2] = self.parallel.axis
        return P(*entries)

    def tokens(self, ids: Any) -> P:
        """ids[..., s], whole over the axis."""
        if self.kind is not Kind.GLOBAL or not ids.ndim:
            return P()
        return P(self._batch(ids, ids.ndim + 1), *[None] * (ids.ndim - 1))


@dataclasses.dataclass(frozen=True)
class Parallel:
    """What a layer was told about its mesh. Hashable, so it may be static in a module."""

    layer: str
    mesh: Any
    axis: Any
    sequence_parallel: bool = True
    implementation: str | None = None
    batch_axes: Any = None
    precision: Any = None

    def __post_init__(self) -> None:
        _checks.check_options(
            self.layer,
            activation=None,
            implementation=self.implementation,
            config=None,
            channel=0,
        )
        if isinstance(self.axis, list):
            object.__setattr__(self, "axis", tuple(self.axis))
        if self.batch_axes is not None:
            batch = options.batch_names(self.layer, self.axis, self.batch_axes)
            object.__setattr__(self, "batch_axes", batch)
        precision = options.precision_name(self.layer, self.precision)
        object.__setattr__(self, "precision", precision)

    def place(self, sequence_parallel: bool | None = None, *, initialising: bool = False) -> Place:
        """Local shards where the axis is bound, else global arrays on a mesh.

        Args:
          sequence_parallel: of this call; None: the layer's own.
          initialising: parameters are being made, so that no mesh is needed and none is used.

        Raises:
          AxisError: no mesh is known, it lacks the axis, or some but not all of it is manual.
        """
        if sequence_parallel not in (None, self.sequence_parallel):
            called = dataclasses.replace(self, sequence_parallel=sequence_parallel)
            return called.place(initialising=initialising)
        names = _topology.canonical_names(self.layer, self.axis)
        bound = _compat.axis_env_sizes()
        if any(name in bound for name in names):
            axis = _topology.resolve(self.layer, self.axis)
            return Place(Kind.LOCAL, self, names, axis.world)
        if initialising:
            return Place(Kind.PLAIN, self, names, 1)
        mesh = self.known_mesh()
        if mesh is None:
            raise errors.AxisError(
                errors.message(
                    self.layer,
                    f"axis = {self.axis!r}, called outside jax.shard_map, and no mesh is known",
                    "On global arrays the layer makes a shard_map of its own, over a mesh",
                    "Pass mesh=... to the layer, call it under jax.set_mesh(mesh), or call it "
                    "inside a jax.shard_map over that axis",
                )
            )
        self._check_names(names, mesh)
        return Place(Kind.GLOBAL, self, names, math.prod(mesh.shape[n] for n in names), mesh)

    def known_mesh(self) -> Any:
        """The layer's mesh, else the one in scope, else None."""
        if self.mesh is not None:
            return self.mesh
        scope = jax.sharding.get_abstract_mesh()
        return None if scope.empty else scope

    def world_if_known(self) -> Place | None:
        """The place that calls will have, as far as the constructor can tell."""
        bound = _compat.axis_env_sizes()
        names = _topology.canonical_names(self.layer, self.axis)
        if self.known_mesh() is None and not any(name in bound for name in names):
            return None
        return self.place()

    def _check_names(self, names: tuple[str, ...], mesh: Any) -> None:
        scope = jax.sharding.get_abstract_mesh()
        manual = [
            n
            for n, kind in zip(scope.axis_names, scope.axis_types, strict=True)
            if kind is AxisType.Manual
        ]
        if manual:
            raise errors.AxisError(
                errors.message(
                    self.layer,
                    f"axis = {self.axis!r}, called inside a jax.shard_map that is manual over "
                    f"{manual} only",
                    "Inside shard_map arrays are local, so the layer's own axis must be manual too",
                    "Let the shard_map name all mesh axes (leave axis_names out)",
                )
            )
        for name in (*names, *(self.batch_axes or ())):
            if name not in mesh.axis_names:
                raise errors.AxisError(
                    errors.message(
                        self.layer,
                        f"axis = {self.axis!r}, batch_axes = {self.batch_axes!r}, mesh axes are "
                        f"{list(mesh.axis_names)}",
                        f"{name!r} is not an axis of the mesh",
                        "Pass one of the mesh's axes, or a tuple of them",
                    )
                )


def is_explicit(mesh: Any) -> bool:
    return any(kind is AxisType.Explicit for kind in mesh.axis_types)


def _check_rows(place: Place, x: Any) -> None:
    if x.ndim < (2 if place.gathers else 1):
        raise errors.ShapeError(
            errors.message(
                place.parallel.layer,
                f"the input is {_checks.shown(x)}",
                "With sequence_parallel=True the dimension before the last is sharded",
                "Add it, x[None, :], or pass sequence_parallel=False",
            )
        )
