# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The two linear layers, and how parameters are made. Route: here -> jax_flux/_layers/.

A `Weights` module holds a kernel and a bias like ``nn.Dense``; blocks hold several of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.core import meta
from flax.linen import dtypes

from jax_flux._layers import bodies, weights
from jax_flux._layers.mesh import on_mesh
from jax_flux._layers.place import P, Parallel, Place, Weight
from jax_flux._topology import AxisName


class ParallelModule(nn.Module, kw_only=True):
    """The arguments that all layers share, and how they make and read parameters."""

    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    promote_dtype: Any = dtypes.promote_dtype
    mesh: Any = None
    axis: AxisName = "tp"
    sequence_parallel: bool = True
    implementation: str | None = None
    batch_axes: tuple[str, ...] | None = None

    def place(self, sequence_parallel: bool | None = None) -> Place:
        """Where this call stands; while parameters are made no mesh is needed."""
        parallel = Parallel(
            type(self).__name__,
            self.mesh,
            self.axis,
            self.sequence_parallel,
            self.implementation,
            self.batch_axes,
            self.precision,
        )
        return parallel.place(sequence_parallel, initialising=self.is_initializing())


def read_param(
    module: nn.Module, place: Place, name: str, init: Any, weight: Weight, dtype: Any
) -> jax.Array:
    """The parameter, made (boxed with its partitioning) if it does not exist yet.

    Inside shard_map it is this rank's shard, of the same values as anywhere else.
    """
    if module.has_variable("params", name):
        place.check(name, meta.unbox(bare(module.get_variable("params", name))), weight)

    def make(key: jax.Array) -> Any:
        value = init(key, weight.flat, dtype)
        if isinstance(value, meta.AxisMetadata):  # the user's own partitioning
            return value.replace_boxed(place.own(bare(value), weight))
        return nn.Partitioned(place.own(value, weight), names=weight.spec)

    # The layer's shard_map asks for the sharding: a constraint here would fail inside the user's.
    return bare(module.param(name, make, unbox=False))


def bare(value: Any) -> Any:
    """A boxed value's array, without the constraint that unboxing applies."""
    while isinstance(value, meta.AxisMetadata):
        plain = isinstance(value, meta.Partitioned)
        value = value.unbox(apply_constraint=False) if plain else value.unbox()  # type: ignore[call-arg]
    return value


def check_width(module: nn.Module, place: Place, x: jax.Array, weight: Weight) -> None:
    """Refuses an x of another width than the kernel that there is: ``weight`` has x's own."""
    if not module.has_variable("params", "kernel"):
        return
    made = meta.unbox(bare(module.get_variable("params", "kernel"))).shape
    here, sharded = place.shape(weight), weight.spec[0] is not None
    if len(made) != len(here) or made[0] in (here[0], weight.shape[0]) or made == here[::-1]:
        return  # fits, or is not sharded, or is transposed: `Place.check` has words for it
    size = made[0] * (place.world if sharded and place.is_local else 1)
    weights.check_width(place, x, "the kernel's in_features", size, sharded=sharded)


class Weights(nn.Module):
    """A kernel and a bias, named as in ``nn.Dense`` and ``nn.DenseGeneral``."""

    table: weights.Table
    use_bias: bool
    dtype: Any
    param_dtype: Any
    kernel_init: Any
    bias_init: Any
    promote_dtype: Any

    @nn.compact
    def __call__(self, place: Place, x: jax.Array) -> tuple[jax.Array, bodies.Affine]:
        """(x, (kernel, bias)) in the dtype of the computation."""
        kernel_weight, bias_weight = self.table
        if kernel_weight.spec[0] is None:  # x is what this kernel multiplies
            check_width(self, place, x, kernel_weight)
        kernel = read_param(
            self, place, "kernel", self.kernel_init, kernel_weight, self.param_dtype
        )
        bias = None
        if self.use_bias:
            bias = read_param(self, place, "bias", self.bias_init, bias_weight, self.param_dtype)
        x, kernel, bias = self.promote_dtype(x, kernel, bias, dtype=self.dtype)
        return x, (kernel, bias)


class AffineModule(ParallelModule, kw_only=True):
    """A module of one or more projections, all made with the same arguments."""

    use_bias: bool = True
    kernel_init: Any = nn.linear.default_kernel_init
    bias_init: Any = nn.initializers.zeros_init()

    def read(
        self, name: str | None, table: weights.Table, place: Place, x: jax.Array
    ) -> tuple[jax.Array, bodies.Affine]:
        """A projection's (x, (kernel, bias)); without a name its parameters are this module's."""
        keywords: dict[str, Any] = dict(
            table=table,
            use_bias=self.use_bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            kernel_init=self.kernel_init,
            bias_init=self.bias_init,
            promote_dtype=self.promote_dtype,
        )
        module = Weights(**keywords, name=name)
        if name is None:
            nn.share_scope(self, module)
        return module(place, x)

    def specs(self, table: weights.Table) -> tuple[P, P | None]:
        kernel, bias = table
        return P(*kernel.spec), P(*bias.spec) if self.use_bias else None


def _width(place: Place, x: jax.Array, sharded: bool) -> int:
    """The global size of x's last dimension."""
    return x.shape[-1] * (place.world if sharded and place.is_local else 1)


class ColumnParallelLinear(AffineModule):
    """Computes ``all_gather(x) @ kernel + bias``, the kernel's columns sharded over ``axis``.

    Parameters have the names, global shapes and initial values of ``nn.Dense``. On global arrays:
    x [..., s, d], s sharded over ``axis`` -> [..., s, features], the last sharded. Inside
    ``jax.shard_map``: [..., s/W, d] -> [..., s, features/W].

    Attributes:
      features, use_bias, dtype, param_dtype, kernel_init, bias_init, promote_dtype: as in
        ``nn.Dense``.
      precision: as in ``nn.Dense``, but one precision for both operands.
      mesh, axis, sequence_parallel, implementation, batch_axes: as in
        `jax_flux.nnx.ColumnParallelLinear`. ``init`` needs no mesh.

    Raises:
      AxisError, ShapeError, OptionError: as `jax_flux.nnx.ColumnParallelLinear`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from flax import linen as nn
      >>> from jax_flux.linen import ColumnParallelLinear
      >>> mesh = jax.make_mesh((8,), ("tp",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> layer = ColumnParallelLinear(16, mesh=mesh)
      >>> params = layer.init(jax.random.key(0), jnp.ones((8, 4)))
      >>> nn.get_partition_spec(params)["params"]["kernel"]
      P(None, 'tp')
      >>> jax.jit(layer.apply)(params, jnp.ones((8, 4))).addressable_shards[0].data.shape
      (8, 2)
    """

    features: int

    @nn.compact
    def __call__(self, inputs: jax.Array, *, sequence_parallel: bool | None = None) -> jax.Array:
        """The product; ``sequence_parallel`` overrides the layer's for this call."""
        place = self.place(sequence_parallel)
        place.divide("features", self.features)
        table = weights.column_weights(inputs.shape[-1], self.features, self.axis)
        x, affine = self.read(None, table, place, inputs)
        body: Callable[..., Any] = lambda x, affine: bodies.column(place, x, (affine,))[0]
        result: jax.Array = on_mesh(
            place, body, (x, affine), (place.rows(x), self.specs(table)), place.features(x)
        )
        return result


class RowParallelLinear(AffineModule):
    """Computes ``psum_scatter(x @ kernel) + bias``, the kernel's rows sharded over ``axis``.

    Parameters have the names, global shapes and initial values of ``nn.Dense``. On global arrays:
    x [..., s, d], the last sharded over ``axis`` -> [..., s, features], s sharded. Inside
    ``jax.shard_map``: [..., s, d/W] -> [..., s/W, features].

    Attributes:
      features, use_bias, dtype, param_dtype, kernel_init, bias_init, promote_dtype: as in
        ``nn.Dense``.
      precision: as in ``nn.Dense``, but one precision for both operands.
      mesh, axis, implementation, batch_axes: as in `jax_flux.nnx.ColumnParallelLinear`.
      sequence_parallel: False: every rank gets the whole sum, ``psum(x @ kernel)``.

    Raises:
      AxisError, ShapeError, OptionError: as `jax_flux.nnx.ColumnParallelLinear`.
    """

    features: int

    @nn.compact
    def __call__(self, inputs: jax.Array, *, sequence_parallel: bool | None = None) -> jax.Array:
        """The product; ``sequence_parallel`` overrides the layer's for this call."""
        place = self.place(sequence_parallel)
        width = _width(place, inputs, sharded=True)
        place.divide("the input's last dimension", width)
        table = weights.row_weights(width, self.features, self.axis)
        check_width(self, place, inputs, table[0])
        x, affine = self.read(None, table, place, inputs)
        body: Callable[..., Any] = lambda x, affine: bodies.row(place, x, affine)
        result: jax.Array = on_mesh(
            place, body, (x, affine), (place.features(x), self.specs(table)), place.rows(x)
        )
        return result
