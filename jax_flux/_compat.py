# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The only file that may import ``jax._src``: what jax 0.11.2 .. 0.12 offer no public name for.

Every function is small and says which private fact it relies on, so that a change of jax breaks
here and nowhere else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax._src import config as _config
from jax._src import core as _core
from jax._src import dispatch as _dispatch
from jax._src import distributed as _distributed
from jax._src import mesh as _mesh
from jax._src import sharding_impls as _sharding_impls
from jax._src import xla_bridge as _xla_bridge
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import mlir as _mlir
from jax._src.lib.mlir import ir as _ir

AxisNames = tuple[str, ...]
LoweringContext = _mlir.LoweringRuleContext


# ---- axis environment and meshes -------------------------------------------------------------


def axis_env_sizes() -> dict[Any, int]:
    """Sizes of all axis names bound here: manual mesh axes and ``vmap(axis_name=...)`` axes."""
    return dict(_core.get_axis_env().axis_sizes)


def mesh_device(mesh: Any) -> tuple[str | None, str | None]:
    """(platform, device kind) of an abstract mesh's devices; (None, None) where it has none."""
    device = getattr(mesh, "abstract_device", None)
    if device is None:
        return None, None
    return getattr(device, "platform", None), getattr(device, "device_kind", None)


def lowering_mesh(ctx: LoweringContext) -> tuple[AxisNames, tuple[int, ...], Any]:
    """(axis names, axis sizes, abstract mesh) of the program that is being lowered.

    Relies on: shard_map lowers its body under ``SPMDAxisContext(mesh, manual_axes)``, and logical
    ids count that mesh row-major (as ``lax.all_gather``'s own replica groups do).
    """
    axis_context = ctx.module_context.axis_context
    if not isinstance(axis_context, _sharding_impls.SPMDAxisContext):
        return (), (), None
    mesh = axis_context.mesh
    return tuple(mesh.axis_names), tuple(mesh.axis_sizes), getattr(mesh, "abstract_mesh", mesh)


def concrete_mesh_devices() -> tuple[Any, ...]:
    """Devices of the concrete mesh in scope, () where only an abstract one is known."""
    mesh = _mesh.get_concrete_mesh()
    return tuple(mesh.devices.flat) if mesh is not None and not mesh.empty else ()


@dataclasses.dataclass(frozen=True)
class Board:
    """Words that the processes of a jax.distributed job leave for each other; nobody waits."""

    process: int
    client: Any

    def post(self, topic: str, words: str) -> dict[int, str]:
        """Leaves this process's words and returns every process's, its own among them."""
        self.client.key_value_set(f"{topic}/{self.process}", words, allow_overwrite=True)
        entries = self.client.key_value_dir_get(topic)
        return {int(key.rsplit("/", 1)[1]): value for key, value in entries}


def distributed_board() -> Board | None:
    """The board of the job; None before ``jax.distributed.initialize`` or for one process.

    Relies on: ``global_state.client``, the key-value store of jax.distributed's service.
    """
    state = _distributed.global_state
    if state.client is None or (state.num_processes or 1) < 2:
        return None
    return Board(int(state.process_id or 0), state.client)


def backends_started() -> bool:
    """Whether JAX has chosen its devices in this process, after which it refuses to be told."""
    return bool(_xla_bridge.backends_are_initialized())


# ---- varying manual axes ---------------------------------------------------------------------


def check_vma_enabled() -> bool:
    """Whether the surrounding shard_map tracks varying axes (``check_vma=True``)."""
    return bool(_config._check_vma.value)


def varying(x: Any) -> frozenset[str]:
    """Manual axes over which ``x`` varies; empty outside ``check_vma=True``."""
    return frozenset(jax.typeof(x).mat.varying)


def cast_varying(x: jax.Array, axes: frozenset[str]) -> jax.Array:
    """Casts ``x`` to vary over all of ``axes`` too; nothing outside ``check_vma=True``.

    The cast's transpose is JAX's own psum over exactly the axes added, which is why no backward
    rule of this package sums a cotangent by hand.
    """
    if not check_vma_enabled():
        return x
    missing = axes - varying(x)
    if not missing:
        return x
    names = tuple(n for n in jax.typeof(x).sharding.mesh.axis_names if n in missing)
    names += tuple(sorted(n for n in missing if n not in names))
    return lax.pcast(x, names, to="varying")


def in_forward_mode(operands: Any) -> bool:
    """Whether an operand carries a forward-mode tangent (reverse mode has tracers of its own)."""
    return any(isinstance(a, _ad.JVPTracer) for a in jax.tree.leaves(operands))


# ---- primitives ------------------------------------------------------------------------------


def new_primitive(name: str) -> _core.Primitive:
    """A primitive with several results whose eager evaluation goes through its lowering."""
    primitive = _core.Primitive(name)
    primitive.multiple_results = True

    def impl(*args: Any, **params: Any) -> Any:
        return _dispatch.apply_primitive(primitive, *args, **params)

    primitive.def_impl(impl)
    return primitive


def define_abstract_eval(
    primitive: _core.Primitive,
    rule: Callable[..., Sequence[tuple[tuple[int, ...], Any]]],
    out_varying: Callable[..., frozenset[str]],
) -> None:
    """Sets shapes and dtypes by ``rule(*avals, **params)`` and the varying axes explicitly.

    The named-axis effect is what lax's own collectives carry: it keeps the axis name bound.
    """

    def abstract_eval(*avals: Any, **params: Any) -> Any:
        axes: AxisNames = params["axis_name"]
        bound = axis_env_sizes()
        for name in axes:
            if name not in bound:
                raise NameError(f"{primitive.name}: axis name {name!r} is not bound here.")
        manual = out_varying(*avals, **params) if check_vma_enabled() else frozenset()
        out = [_new_aval(avals[0], shape, dtype, manual) for shape, dtype in rule(*avals, **params)]
        return out, {_core.NamedAxisEffect(name) for name in axes}

    primitive.def_effectful_abstract_eval(abstract_eval)


def _new_aval(like: Any, shape: tuple[int, ...], dtype: Any, manual: frozenset[str]) -> Any:
    sharding = jax.sharding.NamedSharding(
        like.sharding.mesh, jax.sharding.PartitionSpec(*[None] * len(shape))
    )
    return _core.ShapedArray(
        shape, dtype, sharding=sharding, manual_axis_type=like.mat.update(varying=manual)
    )


def define_lowering(
    primitive: _core.Primitive, rule: Callable[..., Any], platform: str | None = None
) -> None:
    _mlir.register_lowering(primitive, rule, platform=platform)


def define_batching(primitive: _core.Primitive, rule: Callable[..., Any]) -> None:
    """``rule(axis_data, args, dims, **params)`` also sees the name of the mapped axis."""
    _batching.fancy_primitive_batchers[primitive] = rule


def define_no_jvp(primitive: _core.Primitive, error: Callable[[], Exception]) -> None:
    def jvp(primals: Any, tangents: Any, **params: Any) -> Any:
        raise error()

    _ad.primitive_jvps[primitive] = jvp


# ---- lowering --------------------------------------------------------------------------------


def lower_function(fun: Callable[..., Any]) -> Callable[..., Any]:
    """A lowering rule out of a traceable function with several results."""
    return _mlir.lower_fun(fun, multiple_results=True)


def program_name(ctx: LoweringContext) -> str:
    """Name of the program being lowered: the same on every rank that lowers the same program.

    Relies on: a module is named after the jitted function.
    """
    return str(ctx.module_context.module.operation.attributes["sym_name"])


def set_frontend_attributes(op: Any, attributes: dict[str, str]) -> None:
    """Adds XLA frontend attributes to an operation that was just built."""
    key = "mhlo.frontend_attributes"
    merged: dict[str, Any] = {}
    if key in op.attributes:
        merged = {entry.name: entry.attr for entry in _ir.DictAttr(op.attributes[key])}
    merged |= {name: _ir.StringAttr.get(value) for name, value in attributes.items()}
    op.attributes[key] = _ir.DictAttr.get(merged)


def ffi_custom_call(
    ctx: LoweringContext,
    target: str,
    operands: Sequence[Any],
    attributes: dict[str, Any],
    frontend_attributes: dict[str, str],
) -> list[Any]:
    """Emits one FFI custom call with row-major operands and results and returns its results."""
    from jax._src import ffi as _ffi

    build = _ffi.build_ffi_lowering_function(target, has_side_effect=False)
    op = build(ctx, *operands, **attributes)
    set_frontend_attributes(op, frontend_attributes)
    return list(op.results)
