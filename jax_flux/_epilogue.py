# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Bias and activation by XLA: where no kernel runs, and after one that is differentiated.

In the kernel they act on the f32 sum (cuda/kernels/epilogue.cuh), here on the rounded one.
"""

from __future__ import annotations

from collections.abc import Callable

import jax

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
}


def finish(y: jax.Array, bias: jax.Array | None, activation: str | None) -> jax.Array:
    """``activation(y + bias)``, step by step in y's dtype.

    Example:
      >>> import jax.numpy as jnp
      >>> finish(jnp.array([-2.0, 1.0]), jnp.array([1.0, 1.0]), "relu").tolist()
      [0.0, 2.0]
    """
    if bias is not None:
        y = y + bias
    return ACTIVATIONS[activation](y) if activation else y
