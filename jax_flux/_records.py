# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Records of measured calls and the text of a tuning file: one entry per call.

docs/tuning.md has the format. Whatever does not fit is an error in words: nothing is guessed.
Route: tools/tune.py writes with `dumps`; _tuning.py reads with `parse`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from jax_flux import _version, errors
from jax_flux._config import MAX_SM_MARGIN, NUMBERS, TRANSPORTS
from jax_flux._problem import FUSED_DTYPES, FUSED_OPS

if TYPE_CHECKING:
    from jax_flux._problem import Problem

LAYOUTS = ("nn", "nt")
MOST_US = 1e12
FORMAT, FORMAT_VERSION = "jax_flux tuning", 1
VARIABLE, OFF = "JAX_FLUX_TUNING", "off"


@dataclasses.dataclass(frozen=True)
class Key:
    """The call that a record is about: sizes as in `_problem.Problem`, ``m`` rows per rank."""

    op: str
    layout: str
    dtype: str
    world: int
    batch: int
    m: int
    n: tuple[int, ...]
    k: tuple[int, ...]
    device_kind: str

    @classmethod
    def of(cls, p: Problem, device_kind: str) -> Key:
        layout = "nt" if p.transpose_w else "nn"
        return cls(p.op, layout, p.dtype, p.world, p.batch, p.m, p.n, p.k, device_kind)


@dataclasses.dataclass(frozen=True)
class Record:
    """One measured call: the best plan found, its time, and XLA's in the same run."""

    key: Key
    instance: str
    numbers: tuple[tuple[str, int | str], ...]  # of the plan; what is absent: the library's
    fused_us: float
    xla_us: float
    date: str
    shared_gpus: bool
    versions: tuple[tuple[str, str | None], ...] = ()
    source: str = ""

    @property
    def fused_wins(self) -> bool:
        """Whether the plan was not slower than XLA."""
        return self.fused_us <= self.xla_us

    def sentence(self) -> str:
        """The measurement in words, the faster first."""
        both = [f"{self.fused_us:.0f} us fused", f"{self.xla_us:.0f} us by XLA"]
        first, second = both if self.fused_wins else both[::-1]
        shared = " with ranks sharing a GPU" if self.shared_gpus else ""
        return f"tuned: {first} against {second}, record of {self.date}{shared}"


def dumps(records: Iterable[Record]) -> str:
    """The text of a tuning file: sorted, one part a line."""
    entries = [_entry(record) for record in sorted(records, key=lambda record: str(record.key))]
    head = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "note": "m counts rows per rank, n and k one rank's columns and depth; us: medians of one "
        "interleaved run; a number that is absent from a plan is the library's own choice",
    }
    listed = ",\n".join("  {\n" + _lines(entry, "   ") + "\n  }" for entry in entries)
    return "{\n" + _lines(head, " ") + ',\n "records": [\n' + listed + "\n ]\n}\n"


def _lines(parts: dict[str, Any], margin: str) -> str:
    return ",\n".join(f"{margin}{json.dumps(k)}: {json.dumps(v)}" for k, v in parts.items())


def _entry(record: Record) -> dict[str, Any]:
    key = dataclasses.asdict(record.key)
    return {
        **key,
        "n": list(record.key.n),
        "k": list(record.key.k),
        "plan": {"instance": record.instance, **dict(record.numbers)},
        "fused_us": round(record.fused_us, 2),
        "xla_us": round(record.xla_us, 2),
        "faster": "fused" if record.fused_wins else "xla",
        "shared_gpus": record.shared_gpus,
        "date": record.date,
        "versions": dict(record.versions),
    }


def parse(text: str, source: str) -> list[Record]:
    """The records of a file's text.

    Raises:
      TuningError: what is wrong, and in which record.
    """
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise malformed(source, f"it is no JSON ({error})") from error
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise malformed(source, f'it has no "format": "{FORMAT}"')
    if whole.get("version") != FORMAT_VERSION:
        raise malformed(
            source, f"its version is {whole.get('version')!r}, this package's {FORMAT_VERSION}"
        )
    if not isinstance(whole.get("records"), list):
        raise malformed(source, 'it has no list "records"')
    found: dict[Key, Record] = {}
    for at, entry in enumerate(whole["records"]):
        record = _record(entry, at, source)
        if record.key in found:
            raise malformed(source, f"record {at} is of a call that an earlier record has")
        found[record.key] = record
    return list(found.values())


def malformed(source: str, what: str) -> errors.TuningError:
    return errors.TuningError(
        errors.message(
            "jax_flux",
            f"tuning file {source}: {what}",
            "The file decides which calls run fused, so nothing in it is guessed",
            "Write it anew with `python -m jax_flux tune`, remove it, or start with "
            f"{VARIABLE}={OFF}",
        )
    )


def _record(entry: Any, at: int, source: str) -> Record:
    def need(holder: Any, name: str, kind: Any, rule: Any = None) -> Any:
        value = holder.get(name) if isinstance(holder, dict) else None
        good = isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)
        if not good or (rule is not None and not rule(value)):
            raise malformed(source, f'record {at}: "{name}" is {value!r}')
        return value

    def sizes(name: str) -> tuple[int, ...]:
        several = name == ("n" if entry.get("op") == "ag_matmul" else "k")  # as in Problem
        whole = lambda v: isinstance(v, int) and not isinstance(v, bool) and v > 0
        rule = lambda v: all(map(whole, v)) and (v if several else len(v) == 1)
        return tuple(need(entry, name, list, rule))

    positive = lambda value: value > 0
    time = lambda value: 0 < value < MOST_US
    key = Key(
        op=need(entry, "op", str, FUSED_OPS.__contains__),
        layout=need(entry, "layout", str, LAYOUTS.__contains__),
        dtype=need(entry, "dtype", str, FUSED_DTYPES.__contains__),
        world=need(entry, "world", int, positive),
        batch=need(entry, "batch", int, positive),
        m=need(entry, "m", int, positive),
        n=sizes("n"),
        k=sizes("k"),
        device_kind=need(entry, "device_kind", str),
    )
    plan = need(entry, "plan", dict)
    versions = need(entry, "versions", dict)
    if versions.get("jax_flux") != _version.__version__:
        raise malformed(
            source,
            f"record {at} was measured with jax_flux {versions.get('jax_flux')}, this is "
            f"{_version.__version__} with other kernels",
        )
    unknown = set(plan) - {"instance", "sm_margin", "depth_outer", "transport", *NUMBERS}
    if unknown:
        raise malformed(source, f"record {at}: the plan has unknown parts {sorted(unknown)}")
    numbers = {name: _number(plan[name], name, at, source) for name in plan if name != "instance"}
    if numbers.get("transport", "tma") != "tma" and key.op != "ag_matmul":
        raise malformed(source, f"record {at}: only ag_matmul is carried by copy engines")
    return Record(
        key=key,
        instance=need(plan, "instance", str),
        numbers=tuple(sorted(numbers.items())),
        fused_us=float(need(entry, "fused_us", (int, float), time)),
        xla_us=float(need(entry, "xla_us", (int, float), time)),
        date=need(entry, "date", str),
        shared_gpus=need(entry, "shared_gpus", bool),
        versions=tuple(sorted(versions.items())),
        source=source,
    )


def _number(value: Any, name: str, at: int, source: str) -> int | str:
    """A part of the plan: what Config would take, or the value that leaves it to the library."""
    if name == "transport":
        if value in TRANSPORTS:
            return str(value)
        raise malformed(source, f'record {at}: "{name}" is {value!r}, not one of {TRANSPORTS}')
    whole = isinstance(value, int) and not isinstance(value, bool)
    if name == "sm_margin":
        good, rule = whole and 0 <= value <= MAX_SM_MARGIN, f"0 .. {MAX_SM_MARGIN}"
    elif name == "depth_outer":
        good, rule = whole and value in (-1, 0, 1), "-1, 0 or 1"
    else:
        good, rule = whole and (value == 0 or NUMBERS[name].holds(value)), f"0 or {NUMBERS[name]}"
    if not good:
        raise malformed(source, f'record {at}: "{name}" is {value!r}, not {rule}')
    return int(value)
