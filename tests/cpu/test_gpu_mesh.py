# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tracing and lowering for a mesh of GPUs that is described, not present: what users will see.

The library's answer about its kernels is injected; nothing is compiled or run.
"""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import jax_flux
from jax_flux import _ffi, _plan, errors
from jax_flux._plan import Installed, Instance
from tests.cpu.programs import OURS

KERNELS = Installed(
    tuple(
        Instance(f"{op}_{layout}", op, "bfloat16", layout, (256, 192), (2, 1))
        for op in ("plain", "ag_matmul", "matmul_rs")
        for layout in ("nn", "nt")
    )
)
SPECS = {
    "ag_matmul": (P("dp", "tp"), P(None, "tp"), P("dp", None, "tp")),
    "matmul_rs": (P("dp", None, "tp"), P("tp"), P("dp", "tp")),
    "matmul_ar": (P("dp", None, "tp"), P("tp"), P("dp")),
}
LARGE = (2, 8192, 4096), (4096, 4096)


def gpu_mesh(kind="NVIDIA H200"):
    return AbstractMesh(
        (2, 4),
        ("dp", "tp"),
        axis_types=(AxisType.Auto,) * 2,
        abstract_device=AbstractDevice(device_kind=kind, num_cores=None, platform="gpu"),
    )


def trace(op, dtype=jnp.bfloat16, shapes=LARGE, grad=False, mesh=None, **keywords):
    x_spec, w_spec, out_spec = SPECS[op]
    fn = jax.shard_map(
        lambda x, w: OURS[op](x, w, axis_name="tp", **keywords),
        mesh=mesh or gpu_mesh(),
        in_specs=(x_spec, w_spec),
        out_specs=out_spec,
    )
    loss = lambda x, w: fn(x, w).astype(jnp.float32).sum()
    x, w = (jax.ShapeDtypeStruct(s, dtype) for s in shapes)
    return jax.jit(jax.grad(loss, (0, 1)) if grad else fn).trace(x, w)


@pytest.fixture
def kernels(monkeypatch):
    monkeypatch.setattr(_ffi, "installed", lambda: KERNELS)
    monkeypatch.setattr(_plan, "_slower", lambda *_: None)


@pytest.mark.parametrize("op", ["ag_matmul", "matmul_rs"])
def test_supported_call_on_gpus_counts_fused_and_lowers_to_the_kernel(op, kernels):
    text = trace(op).lower(lowering_platforms=("cuda",)).as_text()
    assert f"jax_flux_{op}_v1" in text
    assert "all_gather" not in text.replace(f"jax_flux_{op}_v1", "")
    row = jax_flux.stats()[op]
    assert (row["fused"], row["xla"]) == (1, 0)


@pytest.mark.parametrize("op, mirror", [("ag_matmul", "matmul_rs"), ("matmul_rs", "ag_matmul")])
@pytest.mark.parametrize("implementation", [None, "fused"])
def test_backward_on_gpus_runs_the_mirrored_kernel(op, mirror, implementation, kernels):
    traced = trace(op, grad=True, implementation=implementation)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert f"jax_flux_{mirror}_v1" in text
    assert jax_flux.stats()[f"{op}_backward"]["fused"] == 1


@pytest.mark.parametrize(
    "reason, keywords",
    [
        ("dtype float32", dict(dtype=jnp.float32)),
        ("k = 4100", dict(shapes=((2, 8192, 4100), (4100, 4096)))),
        ("output dtype float32", dict(out_dtype=jnp.float32)),
        ("not NVIDIA A100", dict(mesh=gpu_mesh("NVIDIA A100-SXM4-80GB"))),
        ("no ag_matmul kernel", dict(config=jax_flux.Config(tile=(64, 256)))),
    ],
    ids=["dtype", "shape", "out-dtype", "device", "config"],
)
def test_unsupported_call_on_gpus_warns_once_here_and_takes_xla(reason, keywords, kernels):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            text = trace("ag_matmul", **keywords).lower(lowering_platforms=("cuda",)).as_text()
    (warning,) = caught
    assert warning.filename == __file__
    assert reason in str(warning.message)
    assert "all_gather" in text
    assert jax_flux.stats()["ag_matmul"]["fused"] == 0


def test_warnings_of_wrappers_and_backward_passes_name_the_users_lines(kernels):
    x, w = (jax.ShapeDtypeStruct(s, jnp.float32) for s in LARGE)
    wrapped = lambda x, w: jax_flux.ag_matmul_sharded(x, w, mesh=gpu_mesh(), axis="tp")
    again = lambda x, w: jax_flux.ag_matmul_sharded(x, w, mesh=gpu_mesh(), axis="tp")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for fn in (wrapped, again, wrapped):
            jax.jit(fn).trace(x, w)
        assert [w.filename for w in caught] == [__file__] * 2
        assert len({w.lineno for w in caught}) == 2
        trace("ag_matmul", out_dtype=jnp.float32, grad=True)
    assert [w.filename for w in caught] == [__file__] * 4
    assert "ag_matmul_backward" in str(caught[3].message)


def test_missing_library_on_gpus_warns_with_the_remedy(monkeypatch):
    answer = Installed(problem="the native library is missing: build it with `make native`")
    monkeypatch.setattr(_ffi, "installed", lambda: answer)
    with pytest.warns(errors.FallbackWarning, match="make native"):
        trace("ag_matmul")


@pytest.mark.parametrize(
    "op, keywords", [("matmul_ar", {}), ("ag_matmul", dict(implementation="xla"))]
)
def test_choice_of_xla_on_gpus_does_not_warn(op, keywords, kernels):
    trace(op, **keywords)  # warnings are errors in this suite
    assert jax_flux.stats()[op]["xla"] == 1


def test_empty_call_on_gpus_does_not_warn(kernels):
    trace("ag_matmul", shapes=((2, 0, 64), (64, 64)))  # warnings are errors in this suite
    assert "empty" in next(iter(jax_flux.stats()["ag_matmul"]["reasons"]))


def test_backward_that_has_no_kernel_on_gpus_is_counted(kernels):
    trace("matmul_ar", grad=True)
    assert jax_flux.stats()["matmul_ar_backward"]["xla"] == 1
    fn = jax.shard_map(
        lambda x, w: jax_flux.ag_matmul(x, w, axis_name="tp", return_gathered=True),
        mesh=gpu_mesh(),
        in_specs=(P("dp", "tp"), P(None, "tp")),
        out_specs=(P("dp", None, "tp"), P("dp", "tp")),
    )
    loss = lambda *a: sum(y.astype(jnp.float32).sum() for y in fn(*a))
    jax.jit(jax.grad(loss)).trace(*(jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in LARGE))
    row = jax_flux.stats()["ag_matmul_backward"]
    assert (row["fused"], row["xla"]) == (0, 1)


def test_fused_demanded_on_gpus_that_lack_it_raises_while_tracing(kernels):
    with pytest.raises(errors.ImplementationError, match="sm_90"):
        trace("ag_matmul", mesh=gpu_mesh("NVIDIA A100-SXM4-80GB"), implementation="fused")


def test_weight_mapped_by_vmap_on_gpus_is_counted_as_xla(kernels):
    fn = jax.shard_map(
        lambda x, ws: jax.vmap(lambda w: jax_flux.ag_matmul(x, w, axis_name="tp"))(ws),
        mesh=gpu_mesh(),
        in_specs=(P("tp"), P(None, None, "tp")),
        out_specs=P(None, None, "tp"),
    )
    shape = lambda *s: jax.ShapeDtypeStruct(s, jnp.bfloat16)
    jax.jit(fn).trace(shape(8192, 4096), shape(2, 4096, 4096))
    row = jax_flux.stats()["ag_matmul"]
    assert (row["fused"], row["xla"]) == (0, 1)
