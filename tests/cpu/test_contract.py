# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Import without side effects; the arrows; sizes of files; every public name is documented."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import os
import pathlib
import subprocess
import sys
import typing

import pytest

import jax_flux
from jax_flux import ops
from tests.cpu.messages import OPS

PACKAGE = pathlib.Path(jax_flux.__file__).parent


def in_fresh_process(code):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(PACKAGE.parent)}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env=environment)


def test_import_touches_no_cuda_and_no_native_library():
    code = (
        "import sys, jax_flux; "
        "bad = [m for m in sys.modules if m == 'jax_flux._native' or m.startswith('cuda.')]; "
        "import jax._src.xla_bridge as xb; "
        "assert not bad, bad; assert not xb._backends, xb._backends"
    )
    in_fresh_process(code)


def test_cpu_calls_never_load_the_native_library():
    code = (
        "import sys, jax, jax.numpy as jnp, jax_flux; from jax.sharding import PartitionSpec as P; "
        "mesh = jax.make_mesh((8,), ('tp',), axis_types=(jax.sharding.AxisType.Auto,)); "
        "f = jax.shard_map(lambda x: jax_flux.ag_matmul(x, x, axis_name='tp'), mesh=mesh, "
        "in_specs=P(), out_specs=P('tp')); "
        "jax.block_until_ready(f(jnp.ones((8, 8), jnp.bfloat16))); "
        "assert 'jax_flux._native' not in sys.modules"
    )
    in_fresh_process(code)


LAYERS = (
    ("_compat", "errors", "_version", "_config", "py"),
    (
        "_stats",
        "_probes",
        "_cost",
        "_problem",
        "_records",
        "_tuning",
        "_plan",
        "reference",
        "_topology",
    ),
    ("_ffi",),
    ("_dispatch", "_checks"),
    ("_lowering",),
    ("_primitives",),
    ("_vjp",),
    ("_calls",),
    ("ops", "_specs", "_explain", "_internal", "export"),
    ("sharded",),
)


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "jax_flux":
                yield from (alias.name for alias in node.names)
            elif node.module.startswith("jax_flux."):
                yield node.module.split(".")[1]


def test_imports_go_downward_only():
    rank = {name: i for i, layer in enumerate(LAYERS) for name in layer}
    for name, level in rank.items():
        path = PACKAGE / f"{name}.py"
        if not path.exists():
            continue
        for used in imports(path):
            if used in rank:
                allowed = (
                    rank[used] < level
                    or (level == 0 and rank[used] == 0)
                    or (rank[used] == level == 1)
                )
                assert allowed, f"{name} imports {used}, which is not below it"


def test_only_compat_reaches_into_jaxs_private_modules():
    for path in PACKAGE.rglob("*.py"):
        if path.name != "_compat.py":
            assert "jax._src" not in path.read_text(), path


def test_files_and_functions_stay_small():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert len(text.splitlines()) <= 300, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                first = node.body[1 if ast.get_docstring(node) and len(node.body) > 1 else 0]
                assert node.end_lineno - first.lineno < 60, (path, node.name)


def test_files_of_tests_stay_small():
    for path in (PACKAGE.parent / "tests").rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 400, path


@pytest.mark.parametrize("name", sorted(set(jax_flux.__all__) - {"__version__"}))
def test_public_name_is_documented(name):
    assert inspect.getdoc(getattr(jax_flux, name))


def doctested_modules():
    return sorted(
        p.stem for p in PACKAGE.glob("*.py") if ">>>" in p.read_text() and p.stem != "__main__"
    )


@pytest.mark.parametrize("name", doctested_modules())
def test_doctests_run(name):
    result = doctest.testmod(importlib.import_module(f"jax_flux.{name}"))
    assert (result.attempted > 0, result.failed) == (True, 0)


def test_overloads_of_ag_matmul_offer_every_keyword():
    real = inspect.signature(jax_flux.ag_matmul).parameters
    rest = set(ops.Keywords.__annotations__)
    assert len(typing.get_overloads(jax_flux.ag_matmul)) == 5
    for overload in typing.get_overloads(jax_flux.ag_matmul):
        named = set(inspect.signature(overload).parameters) - {"rest"}
        assert named | rest == set(real)
        assert not named & rest


@pytest.mark.parametrize("name", OPS + tuple(f"{op}_sharded" for op in OPS))
def test_every_op_has_a_doctest(name):
    assert ">>>" in getattr(jax_flux, name).__doc__
