# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ops for the runtime's own tests; no promise to users."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_flux import _checks, _primitives, _topology
from jax_flux._topology import AxisName


def all_gather_copy(x: Any, axis_name: AxisName, *, channel: int = 0) -> jax.Array:
    """``lax.all_gather(x, axis_name, axis=-2, tiled=True)`` by the copy-only kernel on GPUs.

    Args:
      x: [..., m, k] of any dtype, this rank's rows.
      axis_name: a mesh axis, or a tuple of them.
      channel: workspace to use.

    Returns:
      [..., W * m, k], varying over ``axis_name``. On other platforms XLA gathers.

    Raises:
      AxisError: as `jax_flux.ag_matmul`.
      ShapeError: x has fewer than two dimensions.
      NativeError: on a GPU, where the kernel cannot run.
    """
    op = "all_gather_copy"
    _checks.check_options(op, activation=None, implementation=None, config=None, channel=channel)
    x = jnp.asarray(x)
    _checks.check_axis(op, "gather axis", -2, x)
    axis = _topology.resolve(op, axis_name)
    if axis.where is _topology.Where.UNIT:
        return x
    if axis.where is _topology.Where.VMAP:
        return lax.all_gather(x, axis.names, axis=x.ndim - 2, tiled=True)
    return _primitives.all_gather_copy(x, axis.names, axis.world, channel)
