# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a run: orbax files of parameters and optimiser, and the flags they came from.

Each process writes its own shards, and a checkpoint appears under its final name only when it is
complete, so a run may be killed at any time. Arrays are global: a file written on one mesh loads
onto any other. Nothing else needs saving: batches, samples and initial values are functions of
(seed, step).
"""

import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import optax
import orbax.checkpoint as ocp
from absl import logging
from jax.sharding import Mesh, NamedSharding

from lm import data, model, processes, training
from lm.flags import Flags

FOLDER = "checkpoints"
MODEL = ("layers", "d_model", "heads", "kv_heads", "dtype")
# What the numbers of a run depend on. The mesh is not among them: it changes their rounding only.
TRAINING = ("batch", "seq", "accumulate", "lr", "schedule", "warmup", "decay_steps", "clip")
FIXED = (*MODEL, *TRAINING, "weight_decay", "seed")


class CheckpointError(Exception):
    """There is no checkpoint, or it is another run's."""


def describe_run(flags: Flags, corpus: data.Corpus) -> dict[str, Any]:
    """What a checkpoint says about its run."""
    fixed = {name: getattr(flags, name) for name in FIXED}
    return {"flags": fixed, "steps": flags.steps, "text": zlib.crc32(corpus.train.tobytes())}


class Store:
    """The checkpoints in a folder, the newest ``keep`` of them."""

    def __init__(self, folder: Path, *, keep: int = 2):
        self.folder = folder.resolve()
        logging.set_verbosity(logging.ERROR)  # orbax notes each of its defaults
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=True)
        self._manager = ocp.CheckpointManager(self.folder, options=options)

    def latest(self) -> int | None:
        """The newest complete checkpoint's step."""
        step: int | None = self._manager.latest_step()
        return step

    def save(self, step: int, state: training.State, run: Mapping[str, Any]) -> None:
        """Copies the state to the host; the files are written while training goes on."""
        items = ocp.args.Composite(
            params=ocp.args.StandardSave(state.params),
            optimizer=ocp.args.StandardSave(state.opt_state),
            run=ocp.args.JsonSave(dict(run)),
        )
        self._manager.save(step, args=items)

    def run(self, step: int) -> dict[str, Any]:
        """What `describe_run` said when that checkpoint was written."""
        items = ocp.args.Composite(run=ocp.args.JsonRestore())
        run: dict[str, Any] = self._manager.restore(step, args=items).run
        return run

    def restore(
        self,
        step: int,
        mesh: Mesh,
        config: model.Config,
        optimizer: optax.GradientTransformation,
    ) -> training.State:
        """Returns the state of that step on this mesh."""
        specs = training.state_specs(config, optimizer)
        shapes = training.state_shapes(config, optimizer)
        target = _placed(mesh, shapes, specs)
        items = ocp.args.Composite(
            params=ocp.args.StandardRestore(target.params),
            optimizer=ocp.args.StandardRestore(target.opt_state),
        )
        found = self._manager.restore(step, args=items)
        return training.State(found.params, found.optimizer)

    def close(self) -> None:
        """Waits until all files are written."""
        self._manager.close()


def _placed(mesh: Mesh, shapes: Any, specs: Any) -> Any:
    place = lambda a, spec: jax.ShapeDtypeStruct(
        a.shape, a.dtype, sharding=NamedSharding(mesh, spec)
    )
    return jax.tree.map(place, shapes, specs)


def open_store(flags: Flags, run: Mapping[str, Any]) -> tuple[Store, int]:
    """(store, step to go on from, 0 for a new run) of the folder of results.

    A new run replaces the checkpoints of a finished one, and those of an unfinished one only where
    ``--restart`` says so.

    Raises:
        CheckpointError: an unfinished run is in the way, or ``--resume`` finds another run.
    """
    folder = flags.out / FOLDER
    store = Store(folder, keep=flags.keep)
    latest = store.latest()
    if latest is None:
        return store, 0
    there = store.run(latest)
    if flags.resume:
        _check_same_run(folder, latest, there, run)
        return store, latest
    if latest < there["steps"] and not flags.restart:
        raise CheckpointError(
            f"{folder} holds step {latest} of a run of {there['steps']} steps. A new run would"
            " delete it. Use --resume to go on with it, --restart to discard it, or another --out."
        )
    store.close()
    processes.barrier("all have looked")
    if processes.is_first():
        shutil.rmtree(folder)
    processes.barrier("the old checkpoints are gone")
    return Store(folder, keep=flags.keep), 0


def _check_same_run(
    folder: Path, step: int, there: Mapping[str, Any], run: Mapping[str, Any]
) -> None:
    differing = [
        f"--{name.replace('_', '-')} was {there['flags'][name]} and is {run['flags'][name]}"
        for name in FIXED
        if there["flags"][name] != run["flags"][name]
    ]
    if there["text"] != run["text"]:
        differing.append("the text was another one (another Python?)")
    if differing:
        raise CheckpointError(
            f"{folder} holds step {step} of another run: {'; '.join(differing)}. Resuming would"
            " give numbers that belong to neither. Give the flags it was made with, or another"
            " --out."
        )


def load_params(folder: Path, make_mesh: Any) -> tuple[model.Config, Mesh, model.Params, int]:
    """(config, mesh, parameters, step) of the newest checkpoint, without the optimiser.

    Args:
        folder: of the run (``--out``), or its checkpoints.
        make_mesh: config -> mesh with axes "dp" and "tp".

    Raises:
        CheckpointError: there is none.
    """
    folder = folder / FOLDER if (folder / FOLDER).is_dir() else folder
    logging.set_verbosity(logging.ERROR)
    steps = [int(path.name) for path in folder.glob("*") if path.name.isdigit()]
    if not steps:
        raise CheckpointError(
            f"{folder} holds no checkpoint. Train first, `python examples/train_lm.py`, or name the"
            " --out folder of a run."
        )
    options = ocp.CheckpointManagerOptions(read_only=True)
    with ocp.CheckpointManager(folder.resolve(), options=options) as manager:
        step = max(steps)
        run = manager.restore(step, args=ocp.args.Composite(run=ocp.args.JsonRestore())).run
        config = model.Config(**{name: run["flags"][name] for name in MODEL})
        mesh = make_mesh(config)
        shapes = jax.eval_shape(lambda key: model.init_params(key, config), jax.random.key(0))
        target = _placed(mesh, shapes, training.param_specs(config))
        items = ocp.args.Composite(params=ocp.args.StandardRestore(target))
        return config, mesh, manager.restore(step, args=items).params, step
