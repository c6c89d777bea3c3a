# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Several processes, one mesh: joining them, and what only the first one does."""

import argparse

import jax
from jax.experimental import multihost_utils

from lm import ranks, rules


def join(typed: argparse.Namespace) -> None:
    """Takes this process's place among the others; nothing where it is the only one.

    Comes before the first use of a device. ``--coordinator`` says everything by hand;
    ``--distributed`` leaves it to ``jax.distributed``, which knows Slurm, Open MPI, Kubernetes and
    TPU pods by their environment.

    Raises:
        ValueError: the flags contradict each other, or no launcher is recognised.
    """
    rules.check_processes(typed)
    if typed.host_devices is not None:
        jax.config.update("jax_num_cpu_devices", typed.host_devices)
    if ranks.joined():
        ranks.join()
    elif typed.coordinator is not None:
        jax.distributed.initialize(typed.coordinator, typed.processes, typed.process)
    elif typed.distributed:
        try:
            jax.distributed.initialize()
        except ValueError as error:
            raise ValueError(
                f"--distributed, and JAX recognises no launcher here ({error}) Start the processes"
                " with srun, or name --coordinator, --processes and --process."
            ) from None


def is_first() -> bool:
    """Whether this process talks and writes files; checkpoints are written by all."""
    return jax.process_index() == 0


def barrier(name: str) -> None:
    """Waits until every process is here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)
