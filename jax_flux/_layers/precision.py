# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The ``precision`` argument of a layer, for ops that read ``jax.default_matmul_precision``."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
from jax import lax

from jax_flux import errors


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
