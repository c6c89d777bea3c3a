# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What ``jax.export`` must be told about programs that call the fused kernels."""

from __future__ import annotations

import jax.export

from jax_flux import _ffi


def export_safety_checks() -> list[jax.export.DisabledSafetyCheck]:
    """The checks to disable so that ``jax.export`` accepts this package's custom calls.

    Their names carry a version (``..._v1``): a program exported today is refused in words by a
    library that no longer has that target. Attributes hold no pointers or device ids.

    Returns:
      One ``DisabledSafetyCheck.custom_call(target)`` per FFI target.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> exported = jax.export.export(
      ...     jax.jit(jnp.sin), disabled_checks=export_safety_checks())(1.0)
      >>> exported.fun_name
      'sin'
    """
    return [jax.export.DisabledSafetyCheck.custom_call(name) for name in _ffi.targets()]
