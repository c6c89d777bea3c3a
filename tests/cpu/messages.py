# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What tests of error texts share: a call inside shard_map, and the text that is expected."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from tests.cpu.programs import OURS

OPS = tuple(OURS)


def local(op, mesh, x_shape=(8, 4), w_shape=(4, 8), dtype=jnp.float32, check_vma=True, **keywords):
    """Calls the op inside shard_map on replicated operands of the given local shapes."""
    keywords.setdefault("axis_name", "tp")
    args = (jnp.ones(x_shape, dtype), jnp.ones(w_shape, dtype))

    def body(x, w):
        return jax.tree.map(lambda y: jnp.sum(y) * 0, OURS[op](x, w, **keywords))

    return jax.shard_map(body, mesh=mesh, in_specs=(P(), P()), out_specs=P(), check_vma=False)(
        *args
    )


def raises(kind, *parts):
    """The error names its kind, and its text holds every part."""
    return pytest.raises(kind, match="(?s)" + ".*".join(map(_escape, parts)))


def _escape(text):
    return "".join(f"\\{c}" if c in r"\.^$*+?{}[]|()" else c for c in text)
