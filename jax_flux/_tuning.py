# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Recorded measurements: the file, its rules, its digest. What dispatch knows beside the model.

Read once per process, at the first plan for a GPU: the tables shipped in ``jax_flux/data`` and then
the user's file, whose records win. ``JAX_FLUX_TUNING`` names that file ("off": none); by default
it is ``~/.config/jax_flux/tuning.json``, where there is one.

Invariant: what is chosen depends on the records, so ranks with other records are found out: the
digest is in every plan hash, and processes of one job compare it before they choose.
Route: tools/tune.py -> _records.py -> here -> _dispatch.py, _explain.py, _lowering.py -> _plan.py.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import pathlib
import threading
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from jax_flux import _compat, errors
from jax_flux._records import OFF, VARIABLE, Key, Record, malformed, parse

if TYPE_CHECKING:
    from jax_flux._problem import Instance, Problem

SHARED_VARIABLE = "JAX_FLUX_TUNING_SHARED"
_SHIPPED = pathlib.Path(__file__).parent / "data"


@dataclasses.dataclass(frozen=True)
class Tuning:
    """All records that count in this process, the newest source last, and their digest."""

    records: Mapping[Key, Record] = dataclasses.field(default_factory=dict)
    digest: str = "none"
    source: str = ""

    def find(
        self, p: Problem, device_kind: str | None, instances: Iterable[Instance]
    ) -> Record | None:
        """The record of exactly this call whose kernel, and carrier, ``instances`` offer."""
        if device_kind is None or p.return_gathered or not self.records:
            return None
        record = self.records.get(Key.of(p, device_kind))
        if record is None:
            return None
        carrier = dict(record.numbers).get("transport", "tma")
        if any(row.name == record.instance and carrier in row.transports for row in instances):
            return record
        _warn_unknown(record.source)
        return None


NONE = Tuning()


@functools.cache
def _warn_unknown(source: str) -> None:
    warnings.warn(
        errors.message(
            "jax_flux",
            f"{source} has records of kernels that this library does not offer for their calls",
            "They are ignored, and the cost model decides there",
            "Tune those rows again: `python -m jax_flux tune`",
        ),
        errors.TuningWarning,
        stacklevel=2,
    )


# ---- where the records are -----------------------------------------------------------------------


def user_file() -> pathlib.Path | None:
    """The user's tuning file, whether it exists or not; None where it is switched off."""
    given = os.environ.get(VARIABLE)
    if given is not None:
        return None if given in ("", OFF) else _expanded(pathlib.Path(given))
    folder = os.environ.get("XDG_CONFIG_HOME")
    try:
        base = pathlib.Path(folder) if folder else pathlib.Path.home() / ".config"
    except RuntimeError:  # no home at all
        return None
    return base / "jax_flux" / "tuning.json"


def _expanded(path: pathlib.Path) -> pathlib.Path:
    """``~`` resolved; as it is where there is no such home, and so no such file."""
    try:
        return path.expanduser()
    except RuntimeError:
        return path


_lock = threading.Lock()
_state: dict[str, Any] = {"tuning": None, "compared": False}


def active() -> Tuning:
    """The records that count, read once per process and compared with the job's other processes.

    Raises:
      TuningError: a file is malformed, of another version, or not the one of another process.
    """
    with _lock:
        if _state["tuning"] is None:
            _state["tuning"] = load(user_file())
        tuning: Tuning = _state["tuning"]
        if not _state["compared"]:
            _state["compared"] = _compare(tuning)
        return tuning


def use(tuning: Tuning | None) -> None:
    """Replaces what `active` returns; None: read the files again at the next plan."""
    with _lock:
        _state.update(tuning=tuning, compared=False)
    _warn_unknown.cache_clear()


def load(user: pathlib.Path | None) -> Tuning:
    """Shipped tables, then the user's file; records measured on shared GPUs only where allowed."""
    paths = sorted(_SHIPPED.glob("plans_*.json"))
    if user is not None and _reachable(user):
        paths.append(user)
    elif user is not None and VARIABLE in os.environ:
        raise errors.TuningError(
            errors.message(
                "jax_flux",
                f"{VARIABLE} = {str(user)!r}, and no such file can be reached",
                "It names the tuning file that decides which calls run fused",
                f"Write it with `python -m jax_flux tune --out {user}`, or unset {VARIABLE}",
            )
        )
    allowed = os.environ.get(SHARED_VARIABLE, "0") not in ("", "0")
    digest = hashlib.blake2b(digest_size=8)
    found: dict[Key, Record] = {}
    for path in paths:
        text = text_of(path)
        records = parse(text, str(path))
        refused = [record for record in records if record.shared_gpus and not allowed]
        if refused:
            _warn_shared(str(path), len(refused))
        digest.update(text.encode() + b"\0" + (b"shared" if allowed else b""))
        found.update((record.key, record) for record in records if record not in refused)
    if not paths:
        return NONE
    return Tuning(found, digest.hexdigest(), ", ".join(map(str, paths)))


def _reachable(path: pathlib.Path) -> bool:
    """Whether the file is there; no where its folder is closed to us, as another user's home is."""
    try:
        return path.exists()
    except OSError:
        return False


def text_of(path: pathlib.Path) -> str:
    """A tuning file as it is; TuningError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise malformed(str(path), f"it cannot be read ({error})") from error


def _warn_shared(source: str, count: int) -> None:
    warnings.warn(
        errors.message(
            "jax_flux",
            f"{count} record(s) of {source} were measured with ranks sharing a GPU",
            "Such times are those of taking turns, so the records are ignored",
            f"Tune with a GPU for each rank, or allow them with {SHARED_VARIABLE}=1",
        ),
        errors.TuningWarning,
        stacklevel=2,
    )


def _compare(tuning: Tuning) -> bool:
    """Compares digests within a jax.distributed job; True where that has been done.

    Each process posts its own before it looks at the others', and nobody waits: of two that differ
    at least the later one sees it. The kernels' own comparison comes too late where one rank's
    record says XLA and another's says fused.
    """
    board = _compat.distributed_board()
    if board is None:
        return False
    mine = f"{tuning.digest} {tuning.source or 'no tuning file'}"
    others = board.post("jax_flux/tuning", mine)
    for process, theirs in sorted(others.items()):
        if theirs.split(" ", 1)[0] != tuning.digest:
            raise errors.TuningError(
                errors.message(
                    "jax_flux",
                    f"process {board.process} has tuning records {mine}, process {process} has "
                    f"{theirs}",
                    "Records decide which calls run fused and how, so all processes of a job must "
                    "have the same",
                    f"Copy one file to every host, or start every process with {VARIABLE}={OFF}",
                )
            )
    return True
