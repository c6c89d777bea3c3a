# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Exception types, and the one function that words a message.

Every message says, in this order: which op; what it was given, with values; the rule that was
broken and its reason; what to do. Neighbours: every module of the package may import this one.
"""

from __future__ import annotations


class FluxError(Exception):
    """Base class of every error that jax_flux raises on purpose."""


class AxisError(FluxError, ValueError):
    """The named axis is unknown, not manual, or the call stands outside ``jax.shard_map``."""


class ShapeError(FluxError, ValueError):
    """The operands' shapes or the gather/scatter axis break a rule of the op."""


class DtypeError(FluxError, TypeError):
    """The operands' dtypes cannot be multiplied as asked."""


class OptionError(FluxError, ValueError):
    """A keyword (activation, implementation, config, channel, ...) has no such value."""


class ImplementationError(FluxError, RuntimeError):
    """``implementation="fused"`` was demanded where the fused kernel cannot run."""


class NativeError(FluxError, RuntimeError):
    """The native library, jaxlib's FFI, NCCL or the GPUs' links do not fit the fused kernels."""


class TuningError(FluxError, ValueError):
    """A tuning file is malformed, of another version, or not that of the job's other processes."""


class ForwardModeError(FluxError, TypeError):
    """Forward-mode differentiation was applied to an op that has only a reverse rule."""


class FallbackWarning(UserWarning):
    """On a GPU a call took the XLA reference because the fused kernel does not support it."""


class TuningWarning(UserWarning):
    """Records of a tuning file were ignored: unknown kernels, or measured on shared GPUs."""


def message(op: str, given: str, rule: str, remedy: str) -> str:
    """Words one error: the op, what it was given, the rule with its reason, what to do.

    Args:
      op: public name of the op (or of the tool) that complains.
      given: what it was given, with values; no trailing period.
      rule: the rule that was broken and why it exists; no trailing period.
      remedy: what the user can do; no trailing period.

    Returns:
      ``"op: given. rule. remedy."``

    Example:
      >>> message("ag_matmul", "x has k = 3, w has k = 4", "k must agree", "Transpose w")
      'ag_matmul: x has k = 3, w has k = 4. k must agree. Transpose w.'
    """
    return f"{op}: {given}. {rule}. {remedy}."
