# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a record of `bench` says about the run itself: command, machine, versions, settings."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
from collections.abc import Sequence
from typing import Any

import jax
import jaxlib
import numpy as np

from jax_flux import _probes
from jax_flux._version import __version__
from jax_flux.tools import contenders, group, machine, measure


def run(arguments: Sequence[str], ranks: group.Group, settings: measure.Settings) -> dict[str, Any]:
    """The command, versions, group and settings; ``arguments`` are those of ``bench``."""
    return dict(
        what="times of one op in seconds; method: jax_flux/tools/measure.py",
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=shlex.join(["python", "-m", "jax_flux", "bench", *arguments]),
        versions=versions(),
        group=dict(
            world=ranks.world,
            mesh=dict(ranks.mesh.shape),
            processes=jax.process_count(),
            label=ranks.label,
            note=ranks.note,
        ),
        settings=dict(
            dtype=settings.dtype,
            repeats=settings.repeats,
            against=list(settings.against),
            options={n: o for n, o in contenders.OPTIONS.items() if n in settings.against},
            implementation=settings.implementation or "auto",
            xla_flags=os.environ.get("XLA_FLAGS", ""),
        ),
    )


def machines(before: machine.Machine, after: machine.Machine) -> dict[str, Any]:
    """The machine, with each GPU's SM clock before and after the run."""
    clocks = {gpu.ordinal: gpu.clock_now_mhz for gpu in after.gpus}
    return dict(
        device_kind=jax.devices()[0].device_kind,
        system=f"{platform.system()} {platform.machine()}",
        cpus=os.cpu_count(),
        driver=before.driver,
        gpus=[
            dict(
                name=gpu.name,
                sms=gpu.num_sms,
                nvlinks=gpu.nvlinks,
                clock_max_mhz=gpu.clock_mhz,
                clock_before_mhz=gpu.clock_now_mhz,
                clock_after_mhz=clocks.get(gpu.ordinal),
            )
            for gpu in before.gpus
        ],
        links={f"{a}-{b}": kind for (a, b), kind in before.links.items()},
        not_asked=before.problem,
    )


def versions() -> dict[str, Any]:
    """Of everything that decides a time; None for what is not there."""
    nccl = _probes.Probes().nccl_version()
    return dict(
        jax_flux=__version__,
        jax=jax.__version__,
        jaxlib=jaxlib.__version__,
        numpy=np.__version__,
        python=platform.python_version(),
        nccl=".".join(map(str, nccl)) if nccl else None,
    )
