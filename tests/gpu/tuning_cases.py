# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What test_tuning.py asks a rank: tune, obey a file, say what a call would run."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import jax
import numpy as np

import jax_flux
from jax_flux import _tuning
from jax_flux.tools import cases, contenders, group, measure, trials, tune


def run_tune(argv: list[str]) -> dict[str, Any]:
    """The tool in this process of the group: its status and what it printed."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = tune.main(argv)
    _tuning.use(None)
    return {"status": status, "said": said.getvalue()}


def explained(name: str) -> dict[str, Any]:
    """What the row's call would run by the file that this process reads, and why."""
    (case,) = cases.select(name)
    world, device = jax.device_count(), jax.devices()[0]
    told = jax_flux.explain(
        case.op,
        case.x_shape(world),
        case.w_shape,
        "bfloat16",
        world,
        device_kind=device.device_kind,
    )
    plan = None if told.plan is None else told.plan.instance
    return {"ran": told.implementation, "reason": told.reason, "source": told.source, "plan": plan}


def obeyed(name: str) -> dict[str, Any]:
    """Runs the row as a program would: error against XLA, and what was counted."""
    (case,) = cases.select(name)
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), (group.AXIS,))
    ranks = group.Group(mesh, group.SHARED, "")
    arrays = measure.operands(ranks, "bfloat16", case.x_shape(ranks.world), case.w_shape)
    jax_flux.stats_reset()
    ours, theirs = contenders.flux(case, None), trials.flux(case, False, None)
    error = measure.difference(ranks, ours, theirs, arrays)
    return {"error": error, "reasons": jax_flux.stats()[case.op]["reasons"]}


def with_digest(name: str, digest: str) -> dict[str, Any]:
    """Runs the row, fused, as if the processes had not compared their files on the host."""
    tuning = _tuning.Tuning({}, digest, f"{digest}.json")
    _tuning._state.update(tuning=tuning, compared=True)
    (case,) = cases.select(name)
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), (group.AXIS,))
    ranks = group.Group(mesh, group.SHARED, "")
    x, w = measure.operands(ranks, "bfloat16", case.x_shape(ranks.world), case.w_shape)
    program = measure.compiled(ranks, contenders.flux(case, "fused"), x, w, 1)
    return {"seconds": program.once()}
