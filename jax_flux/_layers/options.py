# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Arguments that all layers have: ``batch_axes``, and ``precision``.

The ops read the latter as ``jax.default_matmul_precision``.
"""

from __future__ import annotations

import contextlib
from typing import Any

import jax
from jax import lax

from jax_flux import _topology, errors


def batch_names(layer: str, axis: Any, batch_axes: Any) -> tuple[str, ...]:
    """``batch_axes`` as a tuple of distinct names, none of them in ``axis``.

    Raises:
      AxisError: it is no such tuple, list or name.
    """
    names = (batch_axes,) if isinstance(batch_axes, str) else batch_axes
    if not isinstance(names, (tuple, list)) or not all(isinstance(name, str) for name in names):
        rule = "batch_axes is None, a name of a mesh axis, or a tuple of names"
    elif {*names} & {*_topology.canonical_names(layer, axis)}:
        rule = "The batch is sharded over other axes than the layer's own"
    elif len({*names}) < len(names):
        rule = "An axis shards a dimension once"
    else:
        return tuple(names)
    raise errors.AxisError(
        errors.message(
            layer,
            f"axis = {axis!r}, batch_axes = {batch_axes!r}",
            rule,
            "Name each axis of data parallelism once, or leave batch_axes out for all but axis",
        )
    )


def precision_name(layer: str, precision: Any) -> str | None:
    """``precision`` as a value of ``jax.default_matmul_precision``, which the ops read.

    Raises:
      OptionError: two different precisions, a ``DotAlgorithm`` (it has no name), or no precision.
    """
    given = precision
    if isinstance(precision, (tuple, list)) and len(set(precision)) == 1:
        precision = precision[0]
    if isinstance(precision, lax.Precision):
        return precision.name.lower()
    if isinstance(precision, lax.DotAlgorithmPreset):
        precision = precision.name
    if precision is None or (isinstance(precision, str) and _known(precision)):
        return precision
    raise errors.OptionError(
        errors.message(
            layer,
            f"precision = {given!r}",
            "One precision holds for both operands, and it needs a name that "
            "jax.default_matmul_precision knows, because the ops and their gradients read it there",
            "Pass None, a jax.lax.Precision, a jax.lax.DotAlgorithmPreset or a name",
        )
    )


def _known(name: str) -> bool:
    try:
        with jax.default_matmul_precision(name):
            return True
    except ValueError:
        return False


def precision_scope(name: str | None) -> contextlib.AbstractContextManager[Any]:
    """Within it the ops and XLA's dots have that precision; None leaves what is set."""
    return jax.default_matmul_precision(name) if name else contextlib.nullcontext()
