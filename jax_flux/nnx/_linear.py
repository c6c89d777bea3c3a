# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The two linear layers, and how parameters are made. Route: here -> _layers.py, bodies.py.

A `Weights` module holds a kernel and a bias like ``nnx.Linear``; blocks hold several of them.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax.sharding import AbstractMesh

from jax_flux._layers import bodies, weights
from jax_flux._layers.mesh import on_mesh
from jax_flux._layers.place import Kind, P, Parallel, Place, Weight
from jax_flux._topology import AxisName

lecun_normal = nnx.initializers.lecun_normal()
zeros = nnx.initializers.zeros_init()


def make_param(parallel: Parallel, init: Any, rngs: nnx.Rngs, weight: Weight, dtype: Any) -> Any:
    """A parameter of the global shape, placed on the mesh where one is known.

    Inside shard_map: this rank's shard of the same values.
    """
    place = parallel.world_if_known() or Place(Kind.PLAIN, parallel, (), 1)
    value = init(rngs.params(), weight.flat, dtype)
    if isinstance(value, nnx.VariableMetadata):  # the user's own partitioning or metadata
        value.raw_value = place.own(value.raw_value, weight)
        value.metadata = {k: v for k, v in value.metadata.items() if v is not None}
    else:
        value = place.own(value, weight)
    return place_variable(nnx.Param, place, value, weight.spec)


def place_variable(kind: Any, place: Place, value: Any, spec: Any) -> Any:
    """A variable of that kind whose metadata says how it is sharded; placed so on a known mesh."""
    mesh = place.parallel.mesh
    mesh = None if isinstance(mesh, AbstractMesh) else mesh
    return kind(
        value,
        out_sharding=spec,
        eager_sharding=place.kind is Kind.GLOBAL,
        **({} if mesh is None else {"mesh": mesh}),
    )


class Weights(nnx.Module):
    """A kernel and a bias, named as in ``nnx.Linear`` and ``nnx.LinearGeneral``."""

    kernel: nnx.Param[jax.Array]
    bias: nnx.Param[jax.Array] | None

    def __init__(
        self,
        parallel: Parallel,
        kernel: Weight,
        bias: Weight,
        *,
        use_bias: bool,
        dtype: Any,
        param_dtype: Any,
        kernel_init: Any,
        bias_init: Any,
        promote_dtype: Any,
        rngs: nnx.Rngs,
    ):
        self.kernel = make_param(parallel, kernel_init, rngs, kernel, param_dtype)
        self.bias = (
            make_param(parallel, bias_init, rngs, bias, param_dtype) if use_bias else nnx.data(None)
        )
        self.table = (kernel, bias)
        self.dtype = dtype
        self.promote_dtype = promote_dtype

    def promoted(self, place: Place, x: jax.Array) -> tuple[jax.Array, bodies.Affine]:
        """(x, (kernel, bias)) in the dtype of the computation."""
        place.check("kernel", self.kernel, self.table[0])
        kernel, bias = self.kernel[...], None
        if self.bias is not None:
            place.check("bias", self.bias, self.table[1])
            bias = self.bias[...]
        x, kernel, bias = self.promote_dtype((x, kernel, bias), dtype=self.dtype)
        return x, (kernel, bias)

    def specs(self) -> tuple[Any, Any]:
        kernel, bias = self.table
        return P(*kernel.spec), None if self.bias is None else P(*bias.spec)


class _Linear(Weights):
    """What column and row share; they say how the weights lie and which features are shared."""

    _divided: str
    _weights: Any

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        use_bias: bool = True,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        precision: Any = None,
        kernel_init: Any = lecun_normal,
        bias_init: Any = zeros,
        promote_dtype: Any = dtypes.promote_dtype,
        mesh: Any = None,
        axis: AxisName = "tp",
        sequence_parallel: bool = True,
        implementation: str | None = None,
        batch_axes: tuple[str, ...] | None = None,
        rngs: nnx.Rngs,
    ):
        self.parallel = Parallel(
            type(self).__name__,
            mesh,
            axis,
            sequence_parallel,
            implementation,
            batch_axes,
            precision,
        )
        self.in_features, self.out_features = in_features, out_features
        self._divide(self.parallel.world_if_known())
        kernel, bias = self._weights(in_features, out_features, self.parallel.axis)
        super().__init__(
            self.parallel,
            kernel,
            bias,
            use_bias=use_bias,
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init,
            bias_init=bias_init,
            promote_dtype=promote_dtype,
            rngs=rngs,
        )

    def _divide(self, place: Place | None) -> None:
        if place:
            place.divide(self._divided, getattr(self, self._divided))


class ColumnParallelLinear(_Linear):
    """Computes ``all_gather(x) @ kernel + bias``, the kernel's columns sharded over ``axis``.

    Parameters have the names, global shapes and initial values of ``nnx.Linear``. On global arrays:
    x [..., s, in_features], s sharded over ``axis`` -> [..., s, out_features], the last sharded.
    Inside ``jax.shard_map``: [..., s/W, in_features] -> [..., s, out_features/W].

    Args:
      in_features, out_features, use_bias, dtype, param_dtype, kernel_init, bias_init: as in
        ``nnx.Linear``.
      promote_dtype, rngs: as in ``nnx.Linear``.
      precision: as in ``nnx.Linear``, but one precision for both operands.
      mesh: the mesh, for global arrays; None takes the one of ``jax.set_mesh``. With a mesh the
        parameters are made on it, sharded.
      axis: the tensor-parallel mesh axis, or a tuple of them.
      sequence_parallel: False: x is whole on every rank, and nothing is gathered.
      implementation: None, "fused" or "xla", as in `jax_flux.ag_matmul`.
      batch_axes: mesh axes of x's first dimension on global arrays; None: all but ``axis``.

    Raises:
      AxisError: no mesh known outside shard_map, or an axis that is unknown or not manual.
      ShapeError: features, rows or batch that the axes do not divide; a parameter of another shape.
      OptionError: a precision or implementation that does not exist.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from flax import nnx
      >>> from jax_flux.nnx import ColumnParallelLinear
      >>> mesh = jax.make_mesh((8,), ("tp",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> layer = ColumnParallelLinear(4, 16, mesh=mesh, rngs=nnx.Rngs(0))
      >>> y = nnx.jit(lambda layer, x: layer(x))(layer, jnp.ones((8, 4)))
      >>> y.shape, y.addressable_shards[0].data.shape
      ((8, 16), (8, 2))
    """

    _divided = "out_features"
    _weights = staticmethod(weights.column_weights)

    def __call__(self, inputs: jax.Array, *, sequence_parallel: bool | None = None) -> jax.Array:
        """The product; ``sequence_parallel`` overrides the layer's for this call."""
        place = self.parallel.place(sequence_parallel)
        self._divide(place)
        x, affine = self.promoted(place, inputs)
        weights.check_width(place, x, "in_features", self.in_features)
        result: jax.Array = on_mesh(
            place,
            lambda x, affine: bodies.column(place, x, (affine,))[0],
            (x, affine),
            (place.rows(x), self.specs()),
            place.features(x),
        )
        return result


class RowParallelLinear(_Linear):
    """Computes ``psum_scatter(x @ kernel) + bias``, the kernel's rows sharded over ``axis``.

    Parameters have the names, global shapes and initial values of ``nnx.Linear``. On global arrays:
    x [..., s, in_features], the last sharded over ``axis`` -> [..., s, out_features], s sharded.
    Inside ``jax.shard_map``: [..., s, in_features/W] -> [..., s/W, out_features].

    Args:
      in_features, out_features, use_bias, dtype, param_dtype, kernel_init, bias_init: as in
        ``nnx.Linear``.
      promote_dtype, rngs: as in ``nnx.Linear``.
      precision: as in ``nnx.Linear``, but one precision for both operands.
      mesh, axis, implementation, batch_axes: as in `ColumnParallelLinear`.
      sequence_parallel: False: every rank gets the whole sum, ``psum(x @ kernel)``.

    Raises:
      AxisError, ShapeError, OptionError: as `ColumnParallelLinear`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from flax import nnx
      >>> from jax_flux.nnx import RowParallelLinear
      >>> mesh = jax.make_mesh((8,), ("tp",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> layer = RowParallelLinear(16, 4, mesh=mesh, rngs=nnx.Rngs(0))
      >>> y = nnx.jit(lambda layer, x: layer(x))(layer, jnp.ones((8, 16)))
      >>> y.shape, y.addressable_shards[0].data.shape
      ((8, 4), (1, 4))
    """

    _divided = "in_features"
    _weights = staticmethod(weights.row_weights)

    def __call__(self, inputs: jax.Array, *, sequence_parallel: bool | None = None) -> jax.Array:
        """The product; ``sequence_parallel`` overrides the layer's for this call."""
        place = self.parallel.place(sequence_parallel)
        self._divide(place)
        x, affine = self.promoted(place, inputs)
        weights.check_width(place, x, "in_features", self.in_features, sharded=True)
        result: jax.Array = on_mesh(
            place,
            lambda x, affine: bodies.row(place, x, affine),
            (x, affine),
            (place.features(x), self.specs()),
            place.rows(x),
        )
        return result
