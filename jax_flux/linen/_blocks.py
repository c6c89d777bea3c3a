# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The MLP: one gather in, one scatter out. Route: _linear.py makes the weights."""

from __future__ import annotations

from typing import Any

import jax
from flax import linen as nn

from jax_flux._layers import bodies, weights
from jax_flux._layers.mesh import on_mesh
from jax_flux._layers.place import Place
from jax_flux.linen._linear import AffineModule


class BlockModule(AffineModule, kw_only=True):
    """Some projections of x by one gather, something between, one projection back."""

    def read_all(
        self, place: Place, inputs: jax.Array, tables: dict[str, weights.Table], last: str
    ) -> tuple[jax.Array, tuple[Any, ...], Any, tuple[Any, Any]]:
        """(x, affines of the columns, affine of the row, specs of both), in ``tables``' order.

        The row's own operand has x's dtype, so x stands in for it.
        """
        read = {name: self.read(name, table, place, inputs) for name, table in tables.items()}
        first = [name for name in tables if name != last]
        x = read[first[0]][0]
        specs = tuple(self.specs(tables[name]) for name in first), self.specs(tables[last])
        return x, tuple(read[name][1] for name in first), read[last][1], specs


class ParallelMLP(BlockModule):
    """Computes ``act(x @ up) @ down``, or gated ``(act(x @ gate) * (x @ up)) @ down``.

    Gate and up share one gather. Submodules ``gate_proj``, ``up_proj`` and ``down_proj`` have the
    parameters of ``nn.Dense``. x and the result are [..., s, d], s sharded over ``axis`` (inside
    ``jax.shard_map``: [..., s/W, d]).

    Attributes:
      hidden_features: width between, sharded over ``axis``.
      gated: whether there is a gate.
      activation: "relu", "gelu" (tanh form), "silu", None, or a function.
      use_bias, dtype, param_dtype, precision, kernel_init, bias_init, promote_dtype: as in
        ``nn.Dense``, for all projections.
      mesh, axis, implementation, batch_axes: as in `jax_flux.nnx.ColumnParallelLinear`.
      sequence_parallel: False: x and the result are whole on every rank; one sum, no gather.

    Raises:
      AxisError, ShapeError, OptionError: as `jax_flux.nnx.ColumnParallelLinear`; also for an
        unknown activation.
    """

    hidden_features: int
    gated: bool = False
    activation: Any = "gelu"

    @nn.compact
    def __call__(self, inputs: jax.Array, *, sequence_parallel: bool | None = None) -> jax.Array:
        """The MLP of x; ``sequence_parallel`` overrides the layer's for this call."""
        place = self.place(sequence_parallel)
        act = self.activation
        bodies.activation(place.parallel.layer, act)
        place.divide("hidden_features", self.hidden_features)
        width = inputs.shape[-1]
        up = weights.column_weights(width, self.hidden_features, self.axis)
        tables = {"gate_proj": up} if self.gated else {}
        tables["up_proj"] = up
        tables["down_proj"] = weights.row_weights(self.hidden_features, width, self.axis)
        x, ups, down, specs = self.read_all(place, inputs, tables, "down_proj")
        result: jax.Array = on_mesh(
            place,
            lambda x, ups, down: bodies.mlp(place, x, ups, down, act),
            (x, ups, down),
            (place.rows(x), *specs),
            place.rows(x),
        )
        return result
