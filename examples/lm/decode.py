# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Text from the model: a sequence-parallel prefill, then greedy or sampled decoding with a cache.

The prompts of a batch may differ in length. They are padded on the right, and every row counts for
itself: its prompt is in slots 0 to length - 1 of the cache, each new byte goes into the next slot
(over the padding), and no query looks behind its own slot. So a slot's number is its rotary
position, and no row sees the padding.

    prefill   ag_matmul, matmul_rs   many rows: the residual stream is split over the sequence
    decode    matmul_ar              one row per prompt: it is whole on every rank
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jax_flux
from lm import model, training


class Cache(NamedTuple):
    """Keys and values [layers, b, slots, kv_heads/W, h], and how many slots each row fills [b]."""

    keys: jax.Array
    values: jax.Array
    lengths: jax.Array


CACHE = Cache(P(None, "dp", None, "tp"), P(None, "dp", None, "tp"), P("dp"))


def whole_rows(axis_name: str, implementation: str | None) -> model.Linears:
    """Linear layers for a residual stream that is whole on every rank: one sum, no gather.

    "fused" is for the ops of training and prefill; a decoding step's few rows are left to choose,
    since matmul_ar has no kernel yet.
    """
    implementation = "xla" if implementation == "xla" else None

    def row(x: jax.Array, weight: jax.Array) -> jax.Array:
        return jax_flux.matmul_ar(x, weight, axis_name=axis_name, implementation=implementation)

    return model.Linears(lambda x, weights: tuple(jnp.matmul(x, w) for w in weights), row)


def make_prefill(
    mesh: Mesh, config: model.Config, slots: int, implementation: str | None
) -> Callable[[model.Params, jax.Array, jax.Array], tuple[jax.Array, Cache]]:
    """Returns the jitted (params, prompts [b, s], lengths [b]) -> (next logits [b, VOCAB], cache).

    s is a multiple of tp and at most ``slots``; prompts are padded on the right.
    """
    linears = model.tensor_parallel("tp", implementation)

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, Any]:
        k = model.rotary(k)
        y = jax.nn.dot_product_attention(model.rotary(q), k, v, is_causal=True)
        return y, (k, v)

    def prefill(
        params: model.Params, prompts: jax.Array, lengths: jax.Array
    ) -> tuple[jax.Array, Cache]:
        body = lambda x, p: model.block(x, p, config, linears, attend)
        x, cached = lax.scan(body, model.embed(params, prompts, config), params["blocks"])
        fill = lambda a: jnp.pad(a, ((0, 0), (0, 0), (0, slots - a.shape[2]), (0, 0), (0, 0)))
        keys, values = jax.tree.map(fill, cached)
        # The last byte of a row lies in one rank's piece of the sequence; the others add zeros.
        position = lax.axis_index("tp") * x.shape[1] + jnp.arange(x.shape[1])
        is_last = position == lengths[:, None] - 1
        last = lax.psum(jnp.where(is_last[..., None], x, 0).sum(axis=1), "tp")
        return model.head(params, last, config), Cache(keys, values, lengths)

    return _on_mesh(prefill, mesh, config, (P("dp", "tp"), P("dp")), (P("dp"), CACHE))


def decode_step(
    params: model.Params,
    cache: Cache,
    tokens: jax.Array,
    config: model.Config,
    linears: model.Linears,
) -> tuple[jax.Array, Cache]:
    """Adds one byte per row, tokens [b]; returns (logits of the next [b, VOCAB], cache)."""
    rows, slots = jnp.arange(tokens.shape[0]), cache.keys.shape[2]
    position = cache.lengths[:, None]
    visible = (jnp.arange(slots) <= position)[:, None, None, :]

    def layer(carry: Any, scanned: Any) -> tuple[Any, None]:
        x, keys, values = carry
        p, number = scanned

        def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, Any]:
            # Into the whole cache, which the loops carry: it stays where it is.
            new_keys = keys.at[number, rows, cache.lengths].set(model.rotary(k, position)[:, 0])
            new_values = values.at[number, rows, cache.lengths].set(v[:, 0])
            q = model.rotary(q, position)
            y = jax.nn.dot_product_attention(q, new_keys[number], new_values[number], mask=visible)
            return y, (new_keys, new_values)

        x, (keys, values) = model.block(x, p, config, linears, attend)
        return (x, keys, values), None

    start = (model.embed(params, tokens[:, None], config), cache.keys, cache.values)
    scanned = (params["blocks"], jnp.arange(config.layers))
    (x, keys, values), _ = lax.scan(layer, start, scanned)
    return model.head(params, x[:, 0], config), Cache(keys, values, cache.lengths + 1)


def make_decode(
    mesh: Mesh,
    config: model.Config,
    new: int,
    implementation: str | None,
    temperature: float = 0.0,
) -> Callable[[model.Params, jax.Array, Cache, jax.Array], jax.Array]:
    """Returns the jitted (params, logits [b, VOCAB], cache, key) -> bytes [b, new].

    Temperature 0 is greedy and reads no key. A row's draws depend on the key, the row's number in
    the batch and the byte's number, so they are the same on every mesh.
    """
    linears = whole_rows("tp", implementation)

    def choose(logits: jax.Array, key: jax.Array, number: jax.Array) -> jax.Array:
        if temperature == 0.0:
            return jnp.argmax(logits, axis=-1).astype(jnp.int32)
        first = lax.axis_index("dp") * logits.shape[0]
        keys = jax.vmap(functools.partial(jax.random.fold_in, jax.random.fold_in(key, number)))(
            first + jnp.arange(logits.shape[0])
        )
        return jax.vmap(jax.random.categorical)(keys, logits / temperature).astype(jnp.int32)

    def decode(params: model.Params, logits: jax.Array, cache: Cache, key: jax.Array) -> jax.Array:
        def step(carry: Any, number: jax.Array) -> tuple[Any, jax.Array]:
            tokens, cache = carry
            logits, cache = decode_step(params, cache, tokens, config, linears)
            return (choose(logits, key, number), cache), tokens

        start = (choose(logits, key, jnp.int32(0)), cache)
        (last, _), tokens = lax.scan(step, start, jnp.arange(1, new))
        return jnp.concatenate([tokens, last[None]]).T

    return _on_mesh(decode, mesh, config, (P("dp"), CACHE, P()), P("dp"))


def make_logits(
    mesh: Mesh, config: model.Config, implementation: str | None
) -> Callable[[model.Params, jax.Array], jax.Array]:
    """Returns the jitted (params, bytes [b, s]) -> logits [b, s, VOCAB], without any cache."""
    linears = model.tensor_parallel("tp", implementation)

    def forward(params: model.Params, inputs: jax.Array) -> jax.Array:
        return model.token_logits(params, inputs, config, linears)

    return _on_mesh(forward, mesh, config, (P("dp", "tp"),), P("dp", "tp"))


def _on_mesh(body: Any, mesh: Mesh, config: model.Config, in_specs: Any, out_specs: Any) -> Any:
    in_specs = (training.param_specs(config), *in_specs)
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs))


def pad_prompts(prompts: Sequence[bytes], mesh: Mesh) -> tuple[np.ndarray, np.ndarray]:
    """(bytes [b, s], lengths [b]): rows padded on the right, sizes to what the mesh divides.

    Raises:
        ValueError: an empty prompt.
    """
    if not prompts or not all(prompts):
        raise ValueError("a prompt is empty: the model needs a byte to go on from.")
    rows = [*prompts, *[prompts[0]] * (-len(prompts) % mesh.shape["dp"])]
    longest = max(map(len, rows))
    width = longest + -longest % mesh.shape["tp"]
    padded = np.zeros((len(rows), width), np.int32)
    for row, prompt in zip(padded, rows, strict=True):
        row[: len(prompt)] = np.frombuffer(prompt, np.uint8)
    return padded, np.array([len(row) for row in rows], np.int32)


def complete(
    mesh: Mesh,
    config: model.Config,
    params: model.Params,
    prompts: Sequence[bytes],
    new: int,
    *,
    implementation: str | None,
    temperature: float = 0.0,
    seed: int = 0,
) -> list[bytes]:
    """Returns ``new`` bytes for every prompt."""
    tokens, lengths = pad_prompts(prompts, mesh)
    # The last byte is written, never read back.
    slots = max(tokens.shape[1], int(lengths.max()) + new - 1)
    prefill = make_prefill(mesh, config, slots, implementation)
    decode = make_decode(mesh, config, new, implementation, temperature)
    logits, cache = prefill(
        params,
        training.put(mesh, P("dp", "tp"), tokens),
        training.put(mesh, P("dp"), lengths),
    )
    result = training.host_copy(decode(params, logits, cache, jax.random.key(seed)))
    return [row.astype(np.uint8).tobytes() for row in result[: len(prompts)]]
