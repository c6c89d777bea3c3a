# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The MLP: one gather in, one scatter out. Route: _linear.py makes the weights."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes

from jax_flux._layers import bodies, weights
from jax_flux._layers.mesh import on_mesh
from jax_flux._layers.place import Parallel, Place
from jax_flux._topology import AxisName
from jax_flux.nnx._linear import Weights, lecun_normal, zeros


class ParallelMLP(nnx.Module):
    """Computes ``act(x @ up) @ down``, or gated ``(act(x @ gate) * (x @ up)) @ down``.

    Gate and up share one gather. Submodules ``gate_proj``, ``up_proj`` and ``down_proj`` have the
    parameters of ``nnx.Linear``. x and the result are [..., s, features], s sharded over ``axis``
    (inside ``jax.shard_map``: [..., s/W, features]).

    Args:
      features: width of x and of the result.
      hidden_features: width between, sharded over ``axis``.
      gated: whether there is a gate.
      activation: "relu", "gelu" (tanh form), "silu", None, or a function.
      use_bias, dtype, param_dtype, precision, kernel_init, bias_init, promote_dtype, rngs: as in
        ``nnx.Linear``, for all projections.
      mesh, axis, implementation, batch_axes: as in `ColumnParallelLinear`.
      sequence_parallel: False: x and the result are whole on every rank; one sum, no gather.

    Raises:
      AxisError, ShapeError, OptionError: as `ColumnParallelLinear`; also for an unknown activation.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from flax import nnx
      >>> from jax_flux.nnx import ParallelMLP
      >>> mesh = jax.make_mesh((2, 4), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
      >>> mlp = ParallelMLP(4, 16, gated=True, activation="silu", mesh=mesh, rngs=nnx.Rngs(0))
      >>> y = nnx.jit(lambda mlp, x: mlp(x))(mlp, jnp.ones((2, 8, 4)))
      >>> y.shape, y.addressable_shards[0].data.shape
      ((2, 8, 4), (1, 2, 4))
    """

    def __init__(
        self,
        features: int,
        hidden_features: int,
        *,
        gated: bool = False,
        activation: Any = "gelu",
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
        self.features, self.hidden_features, self.gated = features, hidden_features, gated
        self.activation = activation
        bodies.activation(self.parallel.layer, activation)
        self._divide(self.parallel.world_if_known())
        keywords: dict[str, Any] = dict(
            use_bias=use_bias,
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init,
            bias_init=bias_init,
            promote_dtype=promote_dtype,
            rngs=rngs,
        )
        up = weights.column_weights(features, hidden_features, self.parallel.axis)
        down = weights.row_weights(hidden_features, features, self.parallel.axis)
        if gated:
            self.gate_proj = Weights(self.parallel, *up, **keywords)
        self.up_proj = Weights(self.parallel, *up, **keywords)
        self.down_proj = Weights(self.parallel, *down, **keywords)

    def _divide(self, place: Place | None) -> None:
        if place:
            place.divide("hidden_features", self.hidden_features)

    def __call__(self, inputs: jax.Array, *, sequence_parallel: bool | None = None) -> jax.Array:
        """The MLP of x; ``sequence_parallel`` overrides the layer's for this call."""
        place = self.parallel.place(sequence_parallel)
        self._divide(place)
        act = self.activation
        first = (self.gate_proj, self.up_proj) if self.gated else (self.up_proj,)
        x, ups, down, specs = promote_all(place, inputs, first, self.down_proj)
        weights.check_width(place, x, "features", self.features)
        result: jax.Array = on_mesh(
            place,
            lambda x, ups, down: bodies.mlp(place, x, ups, down, act),
            (x, ups, down),
            (place.rows(x), *specs),
            place.rows(x),
        )
        return result


def promote_all(
    place: Place, inputs: jax.Array, first: tuple[Weights, ...], last: Weights
) -> tuple[jax.Array, tuple[Any, ...], Any, tuple[Any, Any]]:
    """(x, affines of the columns, affine of the row, specs of both) in the computation's dtype.

    The row's own operand has x's dtype, so x stands in for it.
    """
    x, affine = first[0].promoted(place, inputs)
    affines = (affine, *(w.promoted(place, inputs)[1] for w in first[1:]))
    specs = tuple(w.specs() for w in first), last.specs()
    return x, affines, last.promoted(place, x)[1], specs
