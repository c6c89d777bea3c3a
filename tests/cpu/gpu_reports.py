# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Made-up records of a report: what bench, stress and a block leave behind, with chosen times."""

from __future__ import annotations

from benchmarks.gpu_report import parts
from jax_flux.tools import bench, group

TWO = parts.Machine(("NVIDIA H200", "NVIDIA H200"))
ONE = parts.Machine(("NVIDIA H200",), "/nccl/libnccl.so.2")


def row(name, world=2, gemm=200.0, xla=281.0, lhs=279.0, ours=204.0, ran="fused", **rest):
    """A measured row; times in us."""
    m, n, k = map(int, name.split("-")[1].split("x"))
    times = {"gemm": gemm, "xla": xla, "xla-lhs": lhs, "jax_flux": ours, **rest}
    entries = {key: {"samples_s": [t * 1e-6] * 9} for key, t in times.items()}
    plan = dict(instance="sm90_ag", expected_ns=200_000)
    entries["jax_flux"] |= dict(ran=ran, reason="", plan=plan, wrong=False, error_to_xla=1e-3)
    return dict(
        name=name,
        m=m,
        n=n,
        k=k,
        world=world,
        tags=["gpt3", name[:2]],
        flops=2.0 * m * n * k,
        wire_bytes=1e6,
        implementations=entries,
    )


def bench_record(*rows, real=True, mesh=None, against=("xla", "xla-lhs", "pallas")):
    """A record of bench with figures and goals, as its own code makes them."""
    ceilings = bench._finished(list(rows), 790e12, 350e9, real)
    label = group.REAL if real else group.SHARED
    return dict(
        group=dict(world=2, mesh=mesh or {"tp": 2}, processes=1, label=label, note=""),
        machine=dict(device_kind="NVIDIA H200", driver="580"),
        versions=dict(jax="0.11.2", nccl="2.28.9", jax_flux="0.1.0"),
        settings=dict(dtype="bfloat16", against=list(against)),
        ceilings=ceilings,
        rows=list(rows),
        stopped=None,
    )


def stress_record(failure=None):
    counts = {"rounds": 30, "judged": 200, "executions": 1200, "fused call sites": 40}
    counts["call sites"] = 60
    return dict(seed=0, done=failure is None, failure=failure, counts=counts)


def block_record(speed_up=1.1):
    entry = dict(median_s=0.02, fused_call_sites=0, xla_call_sites=0)
    own = entry | dict(speed_up=speed_up, fused_call_sites=8, gradient_to_xla=1e-2, wrong=False)
    return dict(sizes=dict(width=8192, seq=4096), contenders={"xla": entry, "jax_flux": own})


def part(name, kind, model="one", status="held", **rest):
    return dict(name=name, title=name, kind=kind, model=model, status=status, seconds=1.0) | rest


def report(real=True, **changed):
    """A whole report of two GPUs, or of ranks on one."""
    rows = [
        row("ag-2048x6144x12288", pallas=290.0),
        row("ag-1024x6144x12288", gemm=100, xla=150, lhs=151, ours=160.0),
        row("rs-2048x12288x6144", ran="xla", ours=282.0),
    ]
    made = dict(
        date="2026-01-02",
        code="abc",
        commit="1234",
        stem=TWO.stem,
        gpus=list((TWO if real else ONE).gpus),
        real=real,
        quick=False,
        bench={"bench-a": bench_record(*rows, real=real)},
        stress={"stress-one": stress_record()},
        block={"block-one": block_record()},
        tests={"tests-tp2": dict(passed=9, failed=1, skipped=2, failures=["t.one"])},
        parts=[
            part("bench-a", "bench", "one" if real else "shared"),
            part("stress-one", "stress"),
            part("block-one", "block"),
            part("tests-tp2", "tests", status="failed", code=1),
            part("bench-b", "bench", status="missing", seconds=None),
        ],
    )
    return made | changed
