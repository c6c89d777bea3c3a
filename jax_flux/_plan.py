# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pure planner: (problem, options, device, installed kernels) -> what runs, why, and the plan.

Invariant: reads nothing but its arguments, so every rank of a group comes to the same plan; the
plan's hash, with the tuning records' digest in it, is compared on XLA's communicator before the
first call.
Route: ops.py plans at trace time (stats, warnings, errors); the CUDA lowering in _primitives.py
plans again from the same facts and emits the custom call.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

from jax_flux import _cost, _cost_packed, _tuning, _version, errors
from jax_flux._config import Config
from jax_flux._problem import (
    FUSED_DTYPES,
    FUSED_OPS,
    Decision,
    Installed,
    Instance,
    Plan,
    Problem,
)

__all__ = [
    "FUSED_DTYPES",
    "FUSED_OPS",
    "Decision",
    "Installed",
    "Instance",
    "Plan",
    "Problem",
]

IMPLEMENTATIONS = (None, "fused", "xla")
PREFER = "fused where supported"  # internal: the backward of a call that demanded "fused"
FUSED_DEVICES = ("H100", "H200", "H800", "GH200")
TMA_ALIGN_BYTES = 16
MAX_WORLD = 8  # cuda/protocol/base.h, kMaxWorld: one NVLink domain
MOST_BIASES = 63  # bits of an int64 attribute


def is_cuda(platform: str | None, device_kind: str | None) -> bool:
    """Whether the devices are NVIDIA GPUs (jax calls ROCm's platform "gpu" as well)."""
    return platform == "cuda" or (platform == "gpu" and "NVIDIA" in (device_kind or ""))


def plan(
    problem: Problem,
    *,
    implementation: str | None,
    config: Config | None,
    platform: str | None,
    device_kind: str | None,
    installed: Installed | None,
    tuning: _tuning.Tuning = _tuning.NONE,
) -> Decision:
    """Decides what ``problem`` runs on a device and says why.

    Args:
      problem: canonical sizes and dtypes.
      implementation: the user's keyword or `PREFER`. "fused" does not raise here, see
        `require_fused`; only None asks what is faster.
      config: parts of the plan that the user forces.
      platform: "cpu", "cuda" (or "gpu"), ...; None where the mesh does not say.
      device_kind: such as "NVIDIA H200"; None is taken as supported.
      installed: kernels of the native library; None where nobody has looked (not a GPU).
      tuning: recorded measurements; one of exactly this call decides, unless ``config`` forces a
        part.
    """
    if implementation == "xla":
        return Decision("xla", 'implementation="xla" was asked for')
    if problem.world == 1 and implementation is None:
        return Decision("xla", "the axis has size 1, a plain matmul")
    if platform is not None and not is_cuda(platform, device_kind):
        return Decision("xla", f"the mesh is on platform {platform!r}, not on NVIDIA GPUs")
    if device_kind is not None and not any(kind in device_kind for kind in FUSED_DEVICES):
        return Decision(
            "xla", f"the kernels are for sm_90 (Hopper), not {device_kind}", unsupported=True
        )
    if any(isinstance(size, int) and size == 0 for size in _sizes(problem)):
        return Decision("xla", "an operand is empty: there is nothing to multiply or to move")
    reason = _structural_limit(problem)
    if reason is not None:
        return Decision("xla", reason, unsupported=problem.op in FUSED_OPS)
    if platform is None:
        return Decision("xla", "the mesh does not say what devices it is for")
    if installed is None or installed.problem is not None:
        why = installed.problem if installed else "the native library was not asked"
        return Decision("xla", str(why), unsupported=True)
    candidates = matching_instances(problem, installed.instances, config)
    if not candidates:
        forced = f" with {config}" if config else ""
        why = f"this library has no {problem.op} kernel for {problem.dtype} {_layout(problem)}"
        return Decision("xla", why + forced, unsupported=True)
    record = None
    if config is None or config == Config():
        record = tuning.find(problem, device_kind, candidates)
    if record is not None:
        return _by_record(record, implementation)
    return _by_model(problem, candidates, implementation, config or Config(), device_kind)


def _by_record(record: _tuning.Record, implementation: str | None) -> Decision:
    """What was measured decides."""
    numbers: dict[str, Any] = {"sm_margin": 0, **dict(record.numbers)}
    chosen = Plan(
        record.instance,
        chunk_bytes=0,
        expected_ns=max(1, round(1e3 * record.fused_us)),
        **numbers,
    )
    if implementation is None and not record.fused_wins:
        return Decision("xla", record.sentence(), source=record.source)
    reason = "supported, and asked for" if implementation else record.sentence()
    return Decision("fused", reason, chosen, source=record.source)


def _by_model(
    problem: Problem,
    candidates: list[Instance],
    implementation: str | None,
    config: Config,
    device_kind: str | None,
) -> Decision:
    """The kernel of the least predicted time, where that is not longer than XLA's."""
    device = _cost.device(device_kind)
    on = device or _cost.REFERENCE
    margin = config.sm_margin or 0
    candidates = _measured(problem, candidates)
    # Of equals the one whose CTAs share w: measured, it is never slower and up to 5 % faster.
    expected, _, name, packed, transport = min(
        (ns, row.cluster[1], row.name, row.packed, transport)
        for row in candidates
        for ns, transport in [_carried(problem, row, config, on)]
    )
    chosen = Plan(
        name,
        sm_margin=margin,
        chunk_bytes=0,
        expected_ns=max(1, round(expected)),
        transport=transport,
        **config.numbers(),
    )
    source = f"the cost model's figures of {on.kind}"
    carrier = "; copy engines carry the gather" if transport == "copy" else ""
    if implementation is not None:
        return Decision("fused", f"supported, and asked for{carrier}", chosen, source=source)
    if device is None:
        return Decision("xla", _no_figures(device_kind), source="no figures")
    reason = _slower(problem, expected, packed, on)
    if reason is not None:
        return Decision("xla", reason, source=source)
    reason = f"supported, and not expected to lose{carrier}"
    return Decision("fused", reason, chosen, source=source)


def _measured(p: Problem, candidates: list[Instance]) -> list[Instance]:
    """Without kernels that are not for so many rows, or so few; all where none is left."""
    few = p.batch * p.m * p.world <= _cost_packed.MOST_ROWS

    def serves(row: Instance) -> bool:
        return few if row.packed else p.m >= _cost.MIN_ROWS

    return [row for row in candidates if serves(row)] or candidates


def _carried(p: Problem, row: Instance, config: Config, on: _cost.Device) -> tuple[float, str]:
    """Expected ns of a kernel, and who brings the peers' shards: as forced, else the cost model."""
    margin = config.sm_margin or 0
    tma = _cost.fused_ns(p, row, margin, on)
    if "copy" not in row.transports or config.transport == "tma":
        return tma, "tma"
    copy = _cost.fused_ns(p, row, margin, on, "copy")
    if config.transport == "copy" or _cost.copy_wins(p, copy, tma):
        return copy, "copy"
    return tma, "tma"


def _no_figures(device_kind: str | None) -> str:
    return (
        f"the cost model has no figures of {device_kind}, so nothing says that the kernel is "
        'faster there: `python -m jax_flux tune` measures, implementation="fused" insists'
    )


def require_fused(op: str, decision: Decision, given: str) -> None:
    """Raises ImplementationError where "fused" was demanded and the decision is the reference."""
    if decision.implementation != "fused":
        raise errors.ImplementationError(
            errors.message(
                op,
                f'{given}, implementation="fused"',
                f"The fused kernel cannot run here: {decision.reason}",
                "Pass implementation=None to take the XLA reference where that is so, or 'xla'",
            )
        )


def _sizes(p: Problem) -> tuple[Any, ...]:
    return p.batch, p.m, *p.n, *p.k


def _structural_limit(p: Problem) -> str | None:
    """Why the shapes and dtypes alone rule the fused kernel out; None where they do not."""
    if p.world > MAX_WORLD:
        return f"the axis has size {p.world}, and the kernels serve at most {MAX_WORLD} ranks"
    if p.op not in FUSED_OPS:
        return f"{p.op} has no fused kernel in version {_version.__version__}"
    if not all(isinstance(size, int) for size in _sizes(p)):
        return "the shapes are symbolic (jax.export), and a kernel's plan needs numbers"
    if p.dtype not in FUSED_DTYPES:
        return f"dtype {p.dtype} is not one of {', '.join(FUSED_DTYPES)}"
    if p.out_dtype != p.dtype:
        return f"the output dtype {p.out_dtype} is not the operands' {p.dtype}"
    if len(p.biases) > MOST_BIASES:
        return f"{len(p.biases)} weights with biases are more than the {MOST_BIASES} of one call"
    unit = TMA_ALIGN_BYTES // 2
    for name, size in (("k", sum(p.k)), *(("n", n) for n in p.n)):
        if size % unit:
            return (
                f"{name} = {size} is not a multiple of {unit} "
                f"(TMA rows are multiples of {TMA_ALIGN_BYTES} bytes)"
            )
    return None


def _layout(p: Problem) -> str:
    return "nt" if p.transpose_w else "nn"


def matching_instances(
    p: Problem, instances: tuple[Instance, ...], config: Config | None
) -> list[Instance]:
    """The compiled kernels that compute ``p`` and fit every part that ``config`` forces.

    An axis of size 1 has nothing to move: the plain kernel serves both ops.
    """
    config = config or Config()
    op = "plain" if p.world == 1 else p.op
    return [
        row
        for row in instances
        if (row.op, row.dtype, row.layout) == (op, p.dtype, _layout(p))
        and (not row.packed or _cost_packed.fits(p, row))
        and config.tile in (None, row.tile)
        and config.cluster in (None, row.cluster)
        and (p.world == 1 or config.transport in (None, *row.transports))
        and config.instance in (None, row.name)
    ]


def _slower(p: Problem, expected_ns: float, packed: bool, on: _cost.Device) -> str | None:
    """Why XLA is expected to be faster; None where it is not."""
    if p.m < _cost.MIN_ROWS and not packed:
        return (
            f"{p.m} rows per rank are fewer than {_cost.MIN_ROWS}: "
            "the kernel's tiles would be mostly padding"
        )
    other_ns = _cost.xla_ns(p, on)
    if expected_ns <= other_ns:
        return None
    return (
        f"expected to lose: about {expected_ns / 1e3:.0f} us fused, {other_ns / 1e3:.0f} us by XLA"
    )


def hash63(*parts: Any) -> int:
    """A 63-bit hash that is the same in every process (never Python's salted ``hash``).

    Example:
      >>> hash63("a", 1) == hash63("a", 1), 0 <= hash63("a", 1) < 2**63
      (True, True)
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & (2**63 - 1) or 1  # 0 means "no call" to the kernels


def plan_hash(problem: Problem, chosen: Plan, channel: int, digest: str = "") -> int:
    """Hash of everything that the ranks of a group must agree on before they may exchange data.

    ``digest`` is that of the tuning records, `_tuning.Tuning.digest`.
    """
    return hash63(
        dataclasses.astuple(problem),
        dataclasses.astuple(chosen),
        channel,
        _version.__version__,
        digest,
    )
