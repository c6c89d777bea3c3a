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
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import jax
import optax
import orbax.checkpoint as ocp
from absl import logging
from jax.sharding import Mesh, NamedSharding

from lm import data, model, processes, training
from lm.flags import Flags, follow

FOLDER = "checkpoints"
MODEL = ("layers", "d_model", "heads", "kv_heads", "dtype")
# What the numbers of a run depend on. The mesh is not among them: it changes their rounding only.
TRAINING = ("batch", "seq", "accumulate", "lr", "schedule", "warmup", "decay_steps", "clip")
FIXED = (*MODEL, *TRAINING, "weight_decay", "seed")


# Of those, what follows from --steps where it is not given.
SCHEDULED = ("warmup", "decay_steps")


class CheckpointError(Exception):
    """A checkpoint is another run's, or another version's."""


class NoCheckpointError(CheckpointError):
    """There is none."""


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
        """What `describe_run` said when that checkpoint was written; empty if nothing."""
        return _said(self._manager, step)

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


def _said(manager: ocp.CheckpointManager, step: int) -> dict[str, Any]:
    try:
        items = ocp.args.Composite(run=ocp.args.JsonRestore())
        run: dict[str, Any] = manager.restore(step, args=items).run
    except (KeyError, ValueError):  # other items, or a single one without a name
        return {}
    return run


def _placed(mesh: Mesh, shapes: Any, specs: Any) -> Any:
    place = lambda a, spec: jax.ShapeDtypeStruct(
        a.shape, a.dtype, sharding=NamedSharding(mesh, spec)
    )
    return jax.tree.map(place, shapes, specs)


def open_store(
    flags: Flags, run: Mapping[str, Any], say: Callable[[str], None]
) -> tuple[Store, int]:
    """(store, step to go on from, 0 for a new run) of the folder of results.

    A new run replaces the checkpoints of a finished one, and those of an unfinished one only where
    ``--restart`` says so; ``say`` is told so before they are deleted.

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
        _check_same_run(f"{folder} holds step {latest}", latest, there, run, flags.typed)
        return store, latest
    steps = there.get("steps")
    finished = steps is not None and latest >= steps
    whose = "a run of another version of train_lm" if steps is None else f"a run of {steps} steps"
    if not finished and not flags.restart:
        go_on = "" if steps is None else "--resume to go on with it, "
        raise CheckpointError(
            f"{folder} holds step {latest} of {whose}. A new run would delete it. Use {go_on}"
            "--restart to discard it, or another --out."
        )
    store.close()
    say(f"deleting {folder}: step {latest} of {whose}{', finished' if finished else ''}")
    processes.barrier("all have looked")
    if processes.is_first():
        shutil.rmtree(folder)
    processes.barrier("the old checkpoints are gone")
    return Store(folder, keep=flags.keep), 0


def _check_same_run(
    where: str,
    done: int,
    there: Mapping[str, Any],
    run: Mapping[str, Any],
    typed: Collection[str],
) -> None:
    """Raises CheckpointError where ``run`` is not the one that wrote ``there`` at step ``done``."""
    old, new = there.get("flags", {}), run["flags"]
    unsaid = [_flag(name) for name in FIXED if name not in old]
    unsaid += [
        what for name, what in {"steps": "--steps", "text": "the text"}.items() if name not in there
    ]
    unknown = [_flag(name) for name in old if name not in FIXED]
    if unsaid or unknown:
        told = [f"it does not say {', '.join(unsaid)}"] if unsaid else []
        told += [f"it says {', '.join(unknown)}, which is not known here"] if unknown else []
        raise CheckpointError(
            f"{where} of a run of another version of train_lm: {'; '.join(told)}. Whether this run"
            " would go on with the same numbers cannot be told. Resume it with the version that"
            " made it, discard it with --restart in place of --resume, or give another --out."
        )
    if run["steps"] < done:
        raise CheckpointError(
            f"{where} of a run of {there['steps']} steps, and --steps is {run['steps']}: all of"
            f" them are done. Give --steps {max(done, there['steps'])}, or --restart in place of"
            " --resume, or another --out."
        )
    # A value that follows from another flag is not a difference of its own.
    followed = follow({"heads": old["heads"], "steps": there["steps"]})
    differing = [name for name in FIXED if old[name] != new[name]]
    implied = [n for n in differing if n not in typed and old[n] == followed.get(n)]
    named = [name for name in differing if name not in implied]
    changed = [
        f"{_flag(n)} was {old[n]} and is {new[n]}{'' if n in typed else ' by default'}"
        for n in named
    ]
    again = [f"{_flag(name)} {old[name]}" for name in named]
    if set(implied) & set(SCHEDULED) and run["steps"] != there["steps"]:
        changed.append(
            f"--steps was {there['steps']} and is {run['steps']}, from which the schedule of the"
            " learning rate follows"
        )
        again += [f"{_flag(name)} {old[name]}" for name in SCHEDULED if name in implied]
    if there["text"] != run["text"]:
        changed.append("the text was another one (another Python?)")
    if changed:
        remedy = f"Add {' '.join(again)}, or give" if again else "Use that text, or give"
        raise CheckpointError(
            f"{where} of another run: {'; '.join(changed)}. Resuming would give numbers that"
            f" belong to neither. {remedy} another --out."
        )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def load_params(folder: Path, make_mesh: Any) -> tuple[model.Config, Mesh, model.Params, int]:
    """(config, mesh, parameters, step) of the newest checkpoint, without the optimiser.

    Args:
        folder: of the run (``--out``), or its checkpoints.
        make_mesh: config -> mesh with axes "dp" and "tp".

    Raises:
        NoCheckpointError: there is none.
        CheckpointError: it does not say what its model is.
    """
    folder = folder / FOLDER if (folder / FOLDER).is_dir() else folder
    logging.set_verbosity(logging.ERROR)
    steps = [int(path.name) for path in folder.glob("*") if path.name.isdigit()]
    if not steps:
        raise NoCheckpointError(
            f"{folder} holds no checkpoint. Train first, `python examples/train_lm.py`, or name the"
            " --out folder of a run."
        )
    options = ocp.CheckpointManagerOptions(read_only=True)
    with ocp.CheckpointManager(folder.resolve(), options=options) as manager:
        step = max(steps)
        said = _said(manager, step).get("flags", {})
        unsaid = [_flag(name) for name in MODEL if name not in said]
        if unsaid:
            raise CheckpointError(
                f"{folder} holds step {step} of another version of train_lm: it does not say"
                f" {', '.join(unsaid)}, so its model is not known. Use the version that made it, or"
                " train again: `python examples/train_lm.py --restart`."
            )
        config = model.Config(**{name: said[name] for name in MODEL})
        mesh = make_mesh(config)
        shapes = jax.eval_shape(lambda key: model.init_params(key, config), jax.random.key(0))
        target = _placed(mesh, shapes, training.param_specs(config))
        items = ocp.args.Composite(params=ocp.args.StandardRestore(target))
        return config, mesh, manager.restore(step, args=items).params, step
