# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a right answer is: float64 results, error ratios, equal bits, collectives in HLO.

Independent of the package: nothing here calls jax_flux.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

COLLECTIVES = (
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "collective-permute",
    "all-to-all",
)
_OPCODE = re.compile(rf"= .*?\s({'|'.join(COLLECTIVES)})(?:-start)?\(")


def optimized_hlo(fn: Callable[..., Any], *args: Any) -> str:
    """HLO after all of XLA's passes."""
    return jax.jit(fn).lower(*args).compile().as_text()


def collective_counts(fn: Callable[..., Any], *args: Any) -> dict[str, int]:
    """How often each collective appears in the compiled program; absent ones are left out."""
    found = (_OPCODE.search(line) for line in optimized_hlo(fn, *args).splitlines())
    return dict(collections.Counter(match.group(1) for match in found if match))


_GROUPS = re.compile(
    r"replica_groups=(\{\{.*?\}\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?|mesh\[.*?\] \{.*?\})"
)


def _expand(text: str) -> list[list[int]]:
    """HLO's spellings: {{0,1},{2,3}}; [2,2]<=[4], maybe transposed; mesh['a'=2,'b'=4] {'b'}."""
    if text.startswith("mesh"):
        axes = re.findall(r"'(\w+)'=(\d+)", text)
        named = re.findall(r"'(\w+)'", text[text.index("]") :])
        names, sizes = [a for a, _ in axes], [int(s) for _, s in axes]
        order = [i for i, n in enumerate(names) if n not in named] + [names.index(n) for n in named]
        members = int(np.prod([sizes[names.index(n)] for n in named]))
        ids = np.arange(np.prod(sizes)).reshape(sizes)
        return ids.transpose(order).reshape(-1, members).tolist()
    if text.startswith("{"):
        return [[int(v) for v in g.split(",")] for g in re.findall(r"\{([\d,]+)\}", text)]
    shape, reshape, *order = (
        [int(v) for v in part.split(",")] for part in re.findall(r"[\[(]([\d,]+)[\])]", text)
    )
    ids = np.arange(np.prod(reshape)).reshape(reshape)
    return (ids.transpose(order[0]) if order else ids).reshape(shape).tolist()


def replica_groups(fn: Callable[..., Any], *args: Any) -> list[list[list[int]]]:
    """Replica groups of every collective in the compiled program, in its order."""
    lines = [line for line in optimized_hlo(fn, *args).splitlines() if _OPCODE.search(line)]
    found = (_GROUPS.search(line) for line in lines)
    return [_expand(match.group(1)) for match in found if match]


def f64(x: Any) -> np.ndarray:
    """The operand's exact value as float64."""
    return np.asarray(jax.numpy.asarray(x).astype(jax.numpy.float32)).astype(np.float64)


def error(result: Any, exact: np.ndarray) -> float:
    """Relative Frobenius error against a float64 result."""
    exact = np.asarray(exact, np.float64)
    norm = np.linalg.norm(exact)
    return float(np.linalg.norm(f64(result) - exact) / (norm if norm else 1.0))


def assert_no_worse(ours: Any, *, than: Any, exact: np.ndarray, slack: float = 1.1) -> None:
    """The error of ``ours`` is at most ``slack`` times that of ``than``."""
    mine, theirs = error(ours, exact), error(than, exact)
    assert mine <= slack * theirs, f"error {mine:.3e} > {slack} x {theirs:.3e}"


def assert_same_bits(a: Any, b: Any) -> None:
    """Equal shape, dtype and every bit; says where and what the first difference is."""
    a, b = np.asarray(a), np.asarray(b)
    assert (a.shape, a.dtype) == (b.shape, b.dtype), (a.shape, a.dtype, b.shape, b.dtype)
    raw_a, raw_b = (v.reshape(-1).view(np.uint8).reshape(v.size, -1) for v in (a, b))
    different = np.flatnonzero((raw_a != raw_b).any(axis=1))
    if different.size:
        where = np.unravel_index(different[0], a.shape)
        raise AssertionError(
            f"{different.size} of {a.size} differ, first at {where}: {a[where]!r} != {b[where]!r}"
        )


def assert_close(ours: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    """Same structure, shapes and dtypes; values within ``tolerance`` of the largest magnitude."""
    flat_ours, tree_ours = jax.tree.flatten(ours)
    flat_theirs, tree_theirs = jax.tree.flatten(theirs)
    assert tree_ours == tree_theirs, (tree_ours, tree_theirs)
    for a, b in zip(flat_ours, flat_theirs, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), (a.shape, a.dtype, b.shape, b.dtype)
        if a.size:
            exact = f64(b)
            scale = max(1.0, float(np.abs(exact).max()))
            np.testing.assert_allclose(f64(a), exact, rtol=0, atol=tolerance * scale)
