# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Each layer three times on the same parameters: plain Flax on one device, ours in nnx and linen.

All take one tree of parameters with the names and shapes of plain Flax, which is the contract.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx
from jax.sharding import PartitionSpec as P

from jax_flux import linen as flux_linen
from jax_flux import nnx as flux_nnx
from tests.cpu import programs

D, F, S, B, V, HEADS, KV_HEADS, HEAD_DIM = 16, 32, 8, 2, 32, 8, 4, 4
BIAS = nnx.initializers.normal(0.5)  # zeros would hide a bias that is added twice
QKV = HEADS * HEAD_DIM


class PlainMLP(nnx.Module):
    """What users write with ``nnx.Linear``."""

    def __init__(self, gated, rngs, **keywords):
        if gated:
            self.gate_proj = nnx.Linear(D, F, rngs=rngs, **keywords)
        self.up_proj = nnx.Linear(D, F, rngs=rngs, **keywords)
        self.down_proj = nnx.Linear(F, D, rngs=rngs, **keywords)
        self.gated = gated

    def __call__(self, x):
        if self.gated:
            return self.down_proj(nnx.silu(self.gate_proj(x)) * self.up_proj(x))
        return self.down_proj(nnx.gelu(self.up_proj(x)))


class PlainAttention(nnx.MultiHeadAttention):
    """Causal, as the parallel layer below."""

    def __init__(self, rngs, **keywords):
        super().__init__(HEADS, D, QKV, None, KV_HEADS, decode=False, rngs=rngs, **keywords)

    def __call__(self, x):
        mask = nnx.make_causal_mask(jnp.ones(x.shape[:-1]))
        return super().__call__(x, mask=mask)


class LinenPlainMLP(nn.Module):
    gated: bool

    @nn.compact
    def __call__(self, x):
        if self.gated:
            gate = nn.silu(nn.Dense(F, name="gate_proj", bias_init=BIAS)(x))
            return nn.Dense(D, name="down_proj", bias_init=BIAS)(
                gate * nn.Dense(F, name="up_proj", bias_init=BIAS)(x)
            )
        h = nn.gelu(nn.Dense(F, name="up_proj", bias_init=BIAS)(x))
        return nn.Dense(D, name="down_proj", bias_init=BIAS)(h)


@dataclasses.dataclass(frozen=True)
class Kind:
    """One layer. ``x_spec`` and ``y_spec`` are for a user's shard_map, sequence-parallel."""

    name: str
    plain: Callable[..., Any]
    nnx: Callable[..., Any]
    linen: Callable[..., Any]
    plain_linen: Callable[[], Any]
    x: Callable[[], jax.Array]
    x_spec: P
    y_spec: P
    x_whole: P  # without sequence parallelism
    y_whole: P

    def __str__(self):
        return self.name


def _x(width):
    return lambda: programs.normal(1, (B, S, width))


def ids():
    return jnp.asarray(programs.normal(2, (B, S)) * 100, jnp.int32) % V


ROWS, WHOLE, FEATURES = P("dp", "tp"), P("dp"), P("dp", None, "tp")
BLOCK = dict(x=_x(D), x_spec=ROWS, y_spec=ROWS, x_whole=WHOLE, y_whole=WHOLE)

KINDS = (
    Kind(
        "column",
        lambda **kw: nnx.Linear(D, F, bias_init=BIAS, **kw),
        lambda **kw: flux_nnx.ColumnParallelLinear(D, F, bias_init=BIAS, **kw),
        lambda **kw: flux_linen.ColumnParallelLinear(F, bias_init=BIAS, **kw),
        lambda: nn.Dense(F, bias_init=BIAS),
        _x(D),
        ROWS,
        FEATURES,
        WHOLE,
        FEATURES,
    ),
    Kind(
        "row",
        lambda **kw: nnx.Linear(F, D, bias_init=BIAS, **kw),
        lambda **kw: flux_nnx.RowParallelLinear(F, D, bias_init=BIAS, **kw),
        lambda **kw: flux_linen.RowParallelLinear(D, bias_init=BIAS, **kw),
        lambda: nn.Dense(D, bias_init=BIAS),
        _x(F),
        FEATURES,
        ROWS,
        FEATURES,
        WHOLE,
    ),
    Kind(
        "mlp",
        lambda **kw: PlainMLP(False, bias_init=BIAS, **kw),
        lambda **kw: flux_nnx.ParallelMLP(D, F, bias_init=BIAS, **kw),
        lambda **kw: flux_linen.ParallelMLP(F, bias_init=BIAS, **kw),
        lambda: LinenPlainMLP(False),
        **BLOCK,
    ),
    Kind(
        "gated",
        lambda **kw: PlainMLP(True, bias_init=BIAS, **kw),
        lambda **kw: flux_nnx.ParallelMLP(
            D, F, gated=True, activation="silu", bias_init=BIAS, **kw
        ),
        lambda **kw: flux_linen.ParallelMLP(F, gated=True, activation="silu", bias_init=BIAS, **kw),
        lambda: LinenPlainMLP(True),
        **BLOCK,
    ),
    Kind(
        "attention",
        lambda **kw: PlainAttention(bias_init=BIAS, **kw),
        lambda **kw: flux_nnx.ParallelSelfAttention(
            HEADS, D, QKV, None, KV_HEADS, is_causal=True, bias_init=BIAS, **kw
        ),
        lambda **kw: flux_linen.ParallelSelfAttention(
            HEADS,
            qkv_features=QKV,
            num_kv_heads=KV_HEADS,
            is_causal=True,
            bias_init=BIAS,
            **kw,
        ),
        # Linen's own attention has as many key heads as query heads: test_layers.py compares that.
        lambda: None,
        **BLOCK,
    ),
    Kind(
        "embed",
        lambda **kw: nnx.Embed(V, D, **kw),
        lambda **kw: flux_nnx.VocabParallelEmbed(V, D, **kw),
        lambda **kw: flux_linen.VocabParallelEmbed(V, D, **kw),
        lambda: nn.Embed(V, D),
        ids,
        WHOLE,
        ROWS,
        WHOLE,
        WHOLE,
    ),
)


COLUMN = {"kernel": P(None, "tp"), "bias": P("tp")}
ROW = {"kernel": P("tp", None), "bias": P(None)}
PER_HEAD = {"kernel": P(None, "tp", None), "bias": P("tp", None)}
SPECS = {
    "column": COLUMN,
    "row": ROW,
    "mlp": {"up_proj": COLUMN, "down_proj": ROW},
    "gated": {"gate_proj": COLUMN, "up_proj": COLUMN, "down_proj": ROW},
    "attention": {
        "query": PER_HEAD,
        "key": PER_HEAD,
        "value": PER_HEAD,
        "out": {"kernel": P("tp", None, None), "bias": P(None)},
    },
    "embed": {"embedding": P("tp", None)},
}


def params_of(module: nnx.Module) -> dict[str, Any]:
    """Plain nested dict of a module's parameters, the same for nnx and linen."""
    return nnx.to_pure_dict(nnx.state(module, nnx.Param))


def nnx_call(
    make: Callable[..., Any], method: str = "__call__", **keywords: Any
) -> Callable[[Any, Any], Any]:
    """(params, x) -> result of an nnx module that was made with ``keywords``."""
    graphdef, state = nnx.split(make(rngs=nnx.Rngs(0), **keywords))

    def call(params, x):
        own = jax.tree.map(lambda leaf: leaf, state)
        nnx.replace_by_pure_dict(own, params)
        return getattr(nnx.merge(graphdef, own), method)(x)

    return call


def nnx_specs(make: Callable[..., Any], **keywords: Any) -> dict[str, Any]:
    """PartitionSpecs of a module's parameters, as a plain nested dict."""
    module = nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0), **keywords))
    return nnx.to_pure_dict(nnx.get_partition_spec(nnx.state(module, nnx.Param)))


def linen_call(
    make: Callable[..., Any], method: str = "__call__", **keywords: Any
) -> Callable[[Any, Any], Any]:
    """(params, x) -> result of a linen module."""
    module = make(**keywords)
    return lambda params, x: module.apply({"params": params}, x, method=method)


def linen_specs(make: Callable[..., Any], x: jax.Array, **keywords: Any) -> dict[str, Any]:
    variables = jax.eval_shape(make(**keywords).init, jax.random.key(0), x)
    return nn.get_partition_spec(variables)["params"]


def in_shard_map(call, specs, mesh, x_spec, y_spec, check_vma=True):
    """The call in a user's own shard_map, on local shards."""
    in_specs = (specs, x_spec)
    return jax.shard_map(call, mesh=mesh, in_specs=in_specs, out_specs=y_spec, check_vma=check_vma)


def value_and_grads(call, params, x):
    """(result, gradients of all parameters and, unless they are ids, of x)."""

    def loss(params, x):
        y = call(params, x)
        return jnp.vdot(programs.normal(9, y.shape), y.astype(jnp.float32)), y

    argnums = (0,) if jnp.issubdtype(x.dtype, jnp.integer) else (0, 1)
    (_, y), grads = jax.jit(jax.value_and_grad(loss, argnums, has_aux=True))(params, x)
    return y, grads
