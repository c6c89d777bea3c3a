# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Does the sharded run compute the same loss and the same gradients as one device would?

The oracle is the same model with plain ``jnp.matmul`` on one device, f32 at highest precision.

* f32: every error must be at most 1e-5, about a hundred roundings of f32.
* bf16 (GPUs): every error must be at most 1.1 times the error that ``implementation="xla"`` makes
  in the same dtype, since bf16 itself is some 1e-2 away from the oracle.

An error is ‖ours - oracle‖ / ‖oracle‖ over a whole array (Frobenius norm): the mean loss, the
losses of all tokens, each gradient.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from lm import model, training

F32_LIMIT = 1e-5
BF16_SLACK = 1.1


class Row(NamedTuple):
    """One line of the table: an array, its relative error, and the largest error allowed."""

    dtype: str
    name: str
    error: float
    limit: float

    @property
    def passed(self) -> bool:
        return self.error <= self.limit  # False for NaN


def check(
    mesh: Mesh,
    config: model.Config,
    params: model.Params,
    batch: tuple[np.ndarray, np.ndarray],
    implementation: str | None,
    *,
    accumulate: int = 1,
    with_bf16: bool,
) -> list[Row]:
    """Compares losses and every gradient at ``params`` on one batch; returns one row per array.

    The f32 rows take the implementation that training took if it trained in f32, else "xla": the
    fused kernels take 16-bit operands. The sharded run accumulates as training did.
    """
    f32 = dataclasses.replace(config, dtype="float32")
    bf16 = dataclasses.replace(config, dtype="bfloat16")
    host_params = training.host_copy(params)
    oracle = _unsharded(mesh.local_devices[0], f32, host_params, batch)

    def errors(variant: model.Config, implementation: str | None) -> dict[str, float]:
        ours = _sharded(mesh, variant, host_params, batch, implementation, accumulate)
        return {name: relative_error(ours[name], oracle[name]) for name in oracle}

    ours = errors(f32, implementation if config == f32 else "xla")
    rows = [Row("f32", name, error, F32_LIMIT) for name, error in ours.items()]
    if with_bf16:
        ours, xla = errors(bf16, implementation), errors(bf16, "xla")
        # The mean loss is one number, and xla may hit it by luck; the token losses are the test.
        del ours["loss"]
        rows += [Row("bf16", name, ours[name], BF16_SLACK * xla[name]) for name in ours]
    return rows


def relative_error(ours: np.ndarray, oracle: np.ndarray) -> float:
    """‖ours - oracle‖ / ‖oracle‖ in f64."""
    exact = np.asarray(oracle, np.float64)
    difference = np.linalg.norm(np.asarray(ours, np.float64) - exact)
    return float(difference / max(np.linalg.norm(exact), np.finfo(np.float32).tiny))


def _sharded(
    mesh: Mesh,
    config: model.Config,
    host_params: model.Params,
    batch: tuple[np.ndarray, np.ndarray],
    implementation: str | None,
    accumulate: int,
) -> dict[str, np.ndarray]:
    """Losses and gradients as the training step computes them, by name."""

    def loss_and_grads(params: model.Params, inputs: jax.Array, targets: jax.Array) -> Any:
        return training.loss_and_grads(params, inputs, targets, config, implementation, accumulate)

    specs = training.param_specs(config)
    step = jax.shard_map(
        loss_and_grads,
        mesh=mesh,
        in_specs=(specs, training.TOKENS, training.TOKENS),
        out_specs=((P(), training.TOKENS), specs),
    )
    params = jax.tree.map(lambda p, spec: training.put(mesh, spec, p), host_params, specs)
    with jax.default_matmul_precision("highest"):
        return _by_name(jax.jit(step)(params, *training.put_batch(mesh, batch)))


def _unsharded(
    device: jax.Device,
    config: model.Config,
    host_params: model.Params,
    batch: tuple[np.ndarray, np.ndarray],
) -> dict[str, np.ndarray]:
    """Losses and gradients of the same model on one device, with plain matmuls."""

    def mean_loss(params: model.Params, inputs: jax.Array, targets: jax.Array) -> Any:
        losses = model.token_losses(params, inputs, targets, config, model.UNSHARDED)
        return jnp.mean(losses), losses

    with jax.default_matmul_precision("highest"):
        args = jax.device_put((host_params, *batch), device)
        return _by_name(jax.jit(jax.value_and_grad(mean_loss, has_aux=True))(*args))


def _by_name(loss_and_grads: Any) -> dict[str, np.ndarray]:
    (loss, token_losses), grads = training.host_copy(loss_and_grads)
    named = {"loss": loss, "token losses": token_losses}
    for path, grad in jax.tree_util.tree_leaves_with_path(grads):
        named["d " + jax.tree_util.keystr(path, simple=True, separator="/")] = grad
    return named
