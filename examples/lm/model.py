# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""A byte-level decoder whose linear layers are handed in: tensor-parallel or on one device.

Shapes inside a tensor-parallel block, W = size of the tp axis, s = whole sequence:

    residual stream   [b, s/W, d]      sequence-sharded; norms work on it without communication
    -> column         [b, s, d/W]      one gather for q, k, v (or gate, up): heads are sharded
    -> attention, or silu(gate) * up   whole sequence, own heads or features: no communication
    -> row            [b, s/W, d]      partial sums added and scattered over the sequence

Nothing here asks for its position in the mesh: rotary positions are applied after the gather, and
the loss is a mean over tokens. So the same code with plain matmuls is the unsharded reference, and
with an ``attend`` that keeps keys and values it is what decoding runs (decode.py).
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

import jax_flux

VOCAB = 256
Params = dict[str, Any]
# Queries, keys and values -> (what the heads saw, anything that the caller of `block` collects).
Attend = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, Any]]

# What is computed again in the backward pass instead of being stored.
REMAT = {
    "none": "store everything",
    "attention": "compute the s x s probabilities again (default)",
    "linears": "store the results of the linear layers only; no communication runs again",
    "block": "store the residual stream only; matmuls and communication run again",
}
_LINEAR = "linear"  # name of those results


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of the model and the dtype of its matmuls (parameters are kept in f32)."""

    layers: int
    d_model: int
    heads: int
    dtype: str = "float32"
    kv_heads: int | None = None
    remat: str = "attention"

    @property
    def kv_width(self) -> int:
        """Width of all keys, and of all values."""
        return (self.kv_heads or self.heads) * self.head_dim

    @property
    def head_dim(self) -> int:
        return self.d_model // self.heads

    @property
    def d_ff(self) -> int:
        # About the usual 8/3 of a gated MLP, and divisible by tp wherever d_model is.
        return 3 * self.d_model


class Linears(NamedTuple):
    """The two linear layers a tensor-parallel block is made of.

    Attributes:
        column: (x [b, s/W, k], weights each [k, n/W]) -> one [b, s, n/W] per weight.
        row: (x [b, s, k/W], weight [k/W, n]) -> [b, s/W, n].
    """

    column: Callable[[jax.Array, tuple[jax.Array, ...]], tuple[jax.Array, ...]]
    row: Callable[[jax.Array, jax.Array], jax.Array]


def tensor_parallel(axis_name: str, implementation: str | None = None) -> Linears:
    """Linear layers for use inside ``shard_map``: communication and matmul are one op."""

    def column(x: jax.Array, weights: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        return jax_flux.ag_matmul(x, weights, axis_name=axis_name, implementation=implementation)

    def row(x: jax.Array, weight: jax.Array) -> jax.Array:
        return jax_flux.matmul_rs(x, weight, axis_name=axis_name, implementation=implementation)

    return Linears(column, row)


UNSHARDED = Linears(
    column=lambda x, weights: tuple(jnp.matmul(x, w) for w in weights),
    row=jnp.matmul,
)


@dataclasses.dataclass(frozen=True)
class Param:
    """One parameter: global shape, sharding, initial deviation (None: a norm's scale, ones)."""

    shape: tuple[int, ...]
    spec: P
    stddev: float | None


def param_table(config: Config) -> Params:
    """Returns the tree of ``Param`` from which initial values, specs and the decay mask derive.

    Blocks are stacked on a leading layer dimension for ``lax.scan``: one block is compiled,
    whatever the depth.

    Embedding and output head are replicated over tp. With 256 rows there is nothing to win by
    sharding the vocabulary: both are small matmuls on the local s/W tokens without any
    communication, while a vocabulary-parallel loss would gather the tokens and add two reductions.
    """
    n, d, f = config.layers, config.d_model, config.d_ff
    columns, rows, replicated = P(None, None, "tp"), P(None, "tp", None), P()
    # Each of the 2n additions to the residual stream starts with a variance of 1 / 2n.
    residual = (2 * n) ** -0.5
    blocks = {
        "attention_norm": Param((n, d), replicated, None),
        "wq": Param((n, d, d), columns, d**-0.5),
        "wk": Param((n, d, config.kv_width), columns, d**-0.5),
        "wv": Param((n, d, config.kv_width), columns, d**-0.5),
        "wo": Param((n, d, d), rows, d**-0.5 * residual),
        "mlp_norm": Param((n, d), replicated, None),
        "w_gate": Param((n, d, f), columns, d**-0.5),
        "w_up": Param((n, d, f), columns, d**-0.5),
        "w_down": Param((n, f, d), rows, f**-0.5 * residual),
    }
    return {
        "embedding": Param((VOCAB, d), replicated, 1.0),
        "blocks": blocks,
        "final_norm": Param((d,), replicated, None),
        # Small, so that training starts at the loss of a uniform guess, ln 256 = 5.55.
        "head": Param((d, VOCAB), replicated, 0.1 * d**-0.5),
    }


def init_params(key: jax.Array, config: Config) -> Params:
    """Returns f32 parameters; the values do not depend on how the caller shards them."""
    leaves, treedef = jax.tree.flatten(param_table(config))
    keys = jax.random.split(key, len(leaves))
    values = [
        jnp.ones(p.shape) if p.stddev is None else p.stddev * jax.random.normal(k, p.shape)
        for p, k in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(treedef, values)


def token_losses(
    params: Params, inputs: jax.Array, targets: jax.Array, config: Config, linears: Linears
) -> jax.Array:
    """Returns -ln p(target), [b, s_local] f32, for int32 inputs and targets of that shape."""
    logits = token_logits(params, inputs, config, linears)
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets)


def token_logits(params: Params, inputs: jax.Array, config: Config, linears: Linears) -> jax.Array:
    """Returns the logits of the byte that follows each input, [b, s_local, VOCAB] f32."""

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, None]:
        causal = lambda *qkv: jax.nn.dot_product_attention(*qkv, is_causal=True)
        if config.remat == "attention":
            causal = jax.checkpoint(causal)
        return causal(rotary(q), rotary(k), v), None

    def body(x: jax.Array, p: Params) -> tuple[jax.Array, None]:
        return block(x, p, config, linears, attend)

    # Inside a scan nothing can be merged across the checkpoint anyway.
    if config.remat == "linears":
        policy = jax.checkpoint_policies.save_only_these_names(_LINEAR)
        body = jax.checkpoint(body, policy=policy, prevent_cse=False)
    elif config.remat == "block":
        body = jax.checkpoint(body, prevent_cse=False)
    x, _ = jax.lax.scan(body, embed(params, inputs, config), params["blocks"])
    return head(params, x, config)


def embed(params: Params, inputs: jax.Array, config: Config) -> jax.Array:
    """Vectors of the bytes, [b, s, d].

    A lookup whose gradient is a matmul: indexing would scatter-add it, on GPUs in random order.
    """
    dtype = jnp.dtype(config.dtype)
    return jax.nn.one_hot(inputs, VOCAB, dtype=dtype) @ params["embedding"].astype(dtype)


def head(params: Params, x: jax.Array, config: Config) -> jax.Array:
    """Logits [..., VOCAB] in f32 of the residual stream [..., d]."""
    x = rms_norm(x, params["final_norm"])
    weight = params["head"].astype(jnp.dtype(config.dtype))
    return jnp.matmul(x, weight, preferred_element_type=jnp.float32)


def block(
    x: jax.Array, p: Params, config: Config, linears: Linears, attend: Attend
) -> tuple[jax.Array, Any]:
    """One block with the parameters ``p`` of its layer; also what ``attend`` gave beside y.

    ``attend`` gets q [b, s, heads_local, h] and k, v [b, s, kv_heads_local, h], the whole sequence
    without positions.
    """
    dtype = jnp.dtype(config.dtype)
    w = {name: p[name].astype(dtype) for name in p if name.startswith("w")}

    def column(x: jax.Array, *weights: jax.Array) -> list[jax.Array]:
        return [checkpoint_name(y, _LINEAR) for y in linears.column(x, weights)]

    def row(x: jax.Array, weight: jax.Array) -> jax.Array:
        return checkpoint_name(linears.row(x, weight), _LINEAR)

    h = rms_norm(x, p["attention_norm"])
    q, k, v = column(h, w["wq"], w["wk"], w["wv"])
    split_heads = (*q.shape[:2], -1, config.head_dim)
    y, extra = attend(*(a.reshape(split_heads) for a in (q, k, v)))
    x = x + row(y.reshape(q.shape), w["wo"])
    h = rms_norm(x, p["mlp_norm"])
    gate, up = column(h, w["w_gate"], w["w_up"])
    return x + row(jax.nn.silu(gate) * up, w["w_down"]), extra


def rotary(x: jax.Array, positions: jax.Array | None = None) -> jax.Array:
    """Rotates the pairs (x[i], x[i + h/2]) by position * 10000^(-2i/h) (arXiv 2104.09864).

    Args:
        x: [b, s, heads, h], h even.
        positions: int [b, s] or [s]; None: position 0 first.
    """
    half = x.shape[-1] // 2
    if positions is None:
        positions = jnp.arange(x.shape[1])
    frequency = 10000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = positions.astype(jnp.float32)[..., None, None] * frequency
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1).astype(x.dtype)


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """x / sqrt(mean(x²) + 1e-6) * scale over the last axis, in f32 (arXiv 1910.07467)."""
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + 1e-6)
    return (y * scale).astype(x.dtype)
