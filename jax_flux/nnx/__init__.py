# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tensor-parallel layers for ``flax.nnx``: parameters of the plain layers, our ops between them.

They work on local shards inside a user's ``jax.shard_map`` and on global arrays under jit. Needs
flax, which ``import jax_flux`` alone does not.
"""

try:
    import flax as _flax  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "flax":
        raise
    raise ImportError(
        "jax_flux.nnx needs the package flax, which is not installed here. Its layers take their"
        " parameters from Flax. Install it: pip install flax"
    ) from error

from jax_flux._layers.loss import vocab_parallel_cross_entropy
from jax_flux.nnx._attention import ParallelSelfAttention
from jax_flux.nnx._blocks import ParallelMLP
from jax_flux.nnx._embed import VocabParallelEmbed
from jax_flux.nnx._linear import ColumnParallelLinear, RowParallelLinear

__all__ = [
    "ColumnParallelLinear",
    "ParallelMLP",
    "ParallelSelfAttention",
    "RowParallelLinear",
    "VocabParallelEmbed",
    "vocab_parallel_cross_entropy",
]
