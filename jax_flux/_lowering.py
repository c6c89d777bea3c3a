# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Lowering rules of the primitives: the reference everywhere, the FFI custom call on CUDA.

Attributes of every target ``jax_flux_<op>_v1`` (int64 unless said): ``groups`` (array: all groups
of the mesh axis as logical ids, flattened row-major), ``world``, ``channel``, ``site``,
``plan_hash``, ``tuning_digest``, ``instance`` (string), ``chunk_bytes``, ``sm_margin``; the GEMMs
add ``transpose_w``, the plan's numbers, `NUMBERS` of _config.py (0: the library's own choice),
``depth_outer`` (-1: the same) and ``transport`` (index into `TRANSPORTS`); where there is an
epilogue ``biases`` (bit i: result i has a bias, which follows the weights in their order) and
``activation`` (string). Operands and results are row-major in the primitives' canonical shapes.

Invariant: the attributes are equal on all ranks. ``site`` hashes the plan and the program's name,
so it does not depend on what a rank traced before, and ranks in different programs can tell. Calls
of one plan in one program share a site: JAX lowers equal equations once, and XLA may merge them.
Route: _primitives.py -> here -> cuda/ffi/<op>.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_flux import _compat, _cost, _dispatch, _ffi, _plan, _topology, _tuning, errors, reference
from jax_flux._config import NUMBERS, TRANSPORTS

Rule = Callable[..., Any]
COPY_INSTANCE = "all_gather_copy"
_MIN_CHUNK_BYTES, _MAX_CHUNK_BYTES, _CHUNKS = 16 << 10, 1 << 20, 32


def split_ag(args: Sequence[Any], biases: tuple[bool, ...]) -> tuple[Any, Any, list[Any]]:
    """(x,), ws and a bias or None per weight, out of ag_matmul_p's flat operands."""
    return _split(args, 1, biases)


def split_rs(args: Sequence[Any], biases: tuple[bool, ...]) -> tuple[Any, Any, list[Any]]:
    """xs, ws and [bias or None], out of matmul_rs_p's flat operands."""
    return _split(args, (len(args) - sum(biases)) // 2, biases)


def _split(args: Sequence[Any], num_x: int, biases: tuple[bool, ...]) -> tuple[Any, Any, list[Any]]:
    first_bias = len(args) - sum(biases)
    given = iter(args[first_bias:])
    return args[:num_x], args[num_x:first_bias], [next(given) if has else None for has in biases]


def without_gpu(ref: Callable[..., Any]) -> Rule:
    """Rule for every platform but CUDA: the reference, or an error where "fused" was demanded."""

    def rule(ctx: Any, *operands: Any, **params: Any) -> Any:
        if params.get("implementation") == "fused":
            platform = ", ".join(ctx.platforms or ctx.module_context.platforms)
            decision = _plan.Decision("xla", f"the program is lowered for {platform}, not for CUDA")
            _plan.require_fused(params["op"], decision, _shapes(ctx))
        return _compat.lower_function(ref)(ctx, *operands, **params)

    return rule


def ag_matmul(ref: Callable[..., Any]) -> Rule:
    """CUDA rule of ag_matmul_p. The gathered operand, where asked for, is XLA's own gather."""

    def rule(ctx: Any, *operands: Any, **params: Any) -> Any:
        (x_aval,), w_avals, _ = split_ag(ctx.avals_in, params["biases"])
        problem = _dispatch.ag_problem(
            x_aval, w_avals, **{k: params[k] for k in ("world", *_AG_KEYS)}
        )
        plan = _decide(ctx, problem, params)
        if plan is None:
            return _compat.lower_function(ref)(ctx, *operands, **params)
        num_y = len(w_avals)
        call_ctx = ctx.replace(avals_out=ctx.avals_out[:num_y])
        ys = _call(call_ctx, "ag_matmul", problem, plan, params, list(operands))
        if not params["return_gathered"]:
            return ys
        gather_ctx = ctx.replace(avals_in=[x_aval], avals_out=ctx.avals_out[num_y:])
        gather = _compat.lower_function(
            lambda x: [reference.gather_segments(x, params["axis_name"])]
        )
        return [*ys, *gather(gather_ctx, operands[0])]

    return rule


def matmul_rs(ref: Callable[..., Any]) -> Rule:
    """CUDA rule of matmul_rs_p."""

    def rule(ctx: Any, *operands: Any, **params: Any) -> Any:
        xs, ws, _ = split_rs(ctx.avals_in, params["biases"])
        problem = _dispatch.rs_problem(
            xs,
            ws,
            biases=params["biases"],
            world=params["world"],
            transpose_w=params["transpose_w"],
            out_dtype=params["out_dtype"],
        )
        plan = _decide(ctx, problem, params)
        if plan is None:
            return _compat.lower_function(ref)(ctx, *operands, **params)
        ctx, joined = _one_pair(ctx, operands, len(xs), params["transpose_w"])
        return _call(ctx, "matmul_rs", problem, plan, params, joined)

    return rule


def _one_pair(ctx: Any, operands: Any, pairs: int, transpose_w: bool) -> tuple[Any, list[Any]]:
    """Several pairs as one, [x_1 | x_2 ..] . [w_1; w_2 ..]: one sum, one rounding, one transfer.

    XLA copies x and w for it (the planner counts that), where two calls would send and round the
    partials twice.
    """
    if pairs == 1:
        return ctx, list(operands)
    k_axis = 1 if transpose_w else 0

    def joined(*args: Any) -> list[Any]:
        return [
            jnp.concatenate(args[:pairs], axis=-1),
            jnp.concatenate(args[pairs : 2 * pairs], axis=k_axis),
            *args[2 * pairs :],
        ]

    xs, ws, bias = (ctx.avals_in[i : i + pairs] for i in (0, pairs, 2 * pairs))
    depth = sum(x.shape[-1] for x in xs)
    w_shape = (ws[0].shape[0], depth) if transpose_w else (depth, ws[0].shape[1])
    avals = [xs[0].update(shape=(*xs[0].shape[:-1], depth)), ws[0].update(shape=w_shape), *bias]
    join = _compat.lower_function(joined)
    flat = join(ctx.replace(avals_out=avals), *operands)
    return ctx.replace(avals_in=avals), list(flat)


def all_gather_copy(ref: Callable[..., Any]) -> Rule:
    """CUDA rule of all_gather_copy_p: always the kernel, or the reason why it cannot run."""
    del ref

    def rule(ctx: Any, x: Any, **params: Any) -> Any:
        _ffi.register()
        (aval,) = ctx.avals_in
        batch, m, k = aval.shape
        dtype = np.dtype(aval.dtype)
        problem = _plan.Problem(
            op="all_gather_copy",
            batch=batch,
            m=m,
            n=(),
            k=(k,),
            world=params["world"],
            dtype=dtype.name,
            out_dtype=dtype.name,
        )
        shard = batch * m * k * dtype.itemsize
        plan = _plan.Plan(
            instance=COPY_INSTANCE,
            sm_margin=0,
            chunk_bytes=chunk_bytes(shard),
            expected_ns=max(1, round(1e9 * shard * (params["world"] - 1) / _cost.LINK_BYTES_PER_S)),
        )
        return _call(ctx, "all_gather_copy", problem, plan, params, [x])

    return rule


_AG_KEYS = ("transpose_w", "out_dtype", "return_gathered", "biases", "activation")


def chunk_bytes(shard_bytes: int) -> int:
    """Piece of a shard that is pushed and flagged at once: about 1/32, a multiple of 16 KiB."""
    piece = -(-shard_bytes // (_CHUNKS * _MIN_CHUNK_BYTES)) * _MIN_CHUNK_BYTES
    return min(max(piece, _MIN_CHUNK_BYTES), _MAX_CHUNK_BYTES)


def _decide(ctx: Any, problem: _plan.Problem, params: dict[str, Any]) -> _plan.Plan | None:
    """The plan on CUDA, or None for the reference; raises where "fused" was demanded in vain.

    Same planner, same facts as at trace time, except where the program was traced on another
    platform (jax.export): then this is where its kernels are chosen.
    """
    _, _, mesh = _compat.lowering_mesh(ctx)
    platform, device_kind = _compat.mesh_device(mesh)
    decision = _plan.plan(
        problem,
        implementation=params["implementation"],
        config=params["config"],
        platform="cuda",
        device_kind=device_kind if _plan.is_cuda(platform, device_kind) else None,
        installed=_ffi.installed(),
        tuning=_tuning.active(),
    )
    if params["implementation"] == "fused":
        _plan.require_fused(params["op"], decision, _shapes(ctx))
    return decision.plan


def _call(
    ctx: Any,
    op: str,
    problem: _plan.Problem,
    plan: _plan.Plan,
    params: dict[str, Any],
    operands: list[Any],
) -> Any:
    """Emits the custom call ``jax_flux_<op>_v1`` with the attributes of the module docstring."""
    names, sizes, _ = _compat.lowering_mesh(ctx)
    if not names:
        raise errors.AxisError(
            errors.message(
                op,
                f"axis_name = {params['axis_name']!r}, lowered outside a fully manual shard_map",
                "The kernel's peers are logical ids of the shard_map's mesh",
                f"Call it inside jax.shard_map, or use jax_flux.{op}_sharded",
            )
        )
    groups = _topology.groups(names, sizes, params["axis_name"])
    assert groups.shape[1] == params["world"], (groups.shape, params["world"])
    program, transpose_w = _compat.program_name(ctx), params.get("transpose_w")
    told = attributes(groups, problem, plan, params["channel"], program, transpose_w)
    hints = {"latency_metadata": str(plan.expected_ns)}
    return _compat.ffi_custom_call(ctx, f"jax_flux_{op}_v1", operands, told, hints)


def attributes(
    groups: np.ndarray,
    problem: _plan.Problem,
    plan: _plan.Plan,
    channel: int,
    program: str,
    transpose_w: bool | None,
) -> dict[str, Any]:
    """Attributes of a call in ``program``; ``transpose_w`` is None where there is no GEMM."""
    digest = _tuning.active().digest
    agreed = _plan.plan_hash(problem, plan, channel, digest)
    told: dict[str, Any] = dict(
        groups=groups.reshape(-1),
        world=np.int64(groups.shape[1]),
        channel=np.int64(channel),
        site=np.int64(_plan.hash63(agreed, program)),
        plan_hash=np.int64(agreed),
        tuning_digest=np.int64(_plan.hash63(digest)),
        instance=plan.instance,
        chunk_bytes=np.int64(plan.chunk_bytes),
        sm_margin=np.int64(plan.sm_margin),
    )
    if transpose_w is not None:
        told["transpose_w"] = np.int64(transpose_w)
        for name in (*NUMBERS, "depth_outer"):
            told[name] = np.int64(getattr(plan, name))
        told["transport"] = np.int64(TRANSPORTS.index(plan.transport))
    if problem.biases:
        told["biases"] = np.int64(sum(has << i for i, has in enumerate(problem.biases)))
    if problem.activation:
        told["activation"] = problem.activation
    return told


def _shapes(ctx: Any) -> str:
    return ", ".join(f"{a.dtype.name}{list(a.shape)}" for a in ctx.avals_in)
