# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ranks on the GPUs of this machine: one each where there are enough, else sharing the first."""

from collections.abc import Callable, Iterator

import pytest

from jax_flux.tools import shared_gpu
from tests.conftest import gpus
from tests.gpu import ranks

Pool = Callable[..., ranks.Ranks]
COMMAND_BUFFERS = {
    "command-buffers": "--xla_gpu_enable_command_buffer=FUSION,CUSTOM_CALL",
    "op-by-op": "--xla_gpu_enable_command_buffer=",
}


def place(world: int, one_process: bool = False) -> ranks.Placement:
    """W ranks on this machine, or a skip that says what it lacks."""
    if one_process:
        return ranks.Placement(world, 1, shared=False)
    if len(gpus()) >= world:
        return ranks.Placement(world, world, shared=False)
    if shared_gpu.nccl() is None:
        pytest.skip(
            f"needs {world} GPUs, or NCCL >= 2.30 to share one: install nvidia-nccl-cu13 2.30.7 or "
            "set JAX_FLUX_TEST_NCCL to its libnccl.so.2"
        )
    return ranks.Placement(world, world, shared=world > 1)


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """pool(world, ...) -> running `Ranks`, kept for the next test that wants the same."""
    current: list[tuple[object, ranks.Ranks]] = []

    def get(
        world: int, *, one_process: bool = False, flags: str = "command-buffers"
    ) -> ranks.Ranks:
        key = (world, one_process, flags)
        if current and current[0][0] == key and current[0][1].alive:
            return current[0][1]
        while current:
            current.pop()[1].close()
        started = ranks.Ranks(place(world, one_process), {"XLA_FLAGS": COMMAND_BUFFERS[flags]})
        current.append((key, started))
        return started

    yield get
    while current:
        current.pop()[1].close()


@pytest.fixture(params=[2, 3, 4, 8], ids=lambda world: f"tp{world}", scope="session")
def world(request: pytest.FixtureRequest) -> int:
    """W. Of the session, so that pytest sorts all files by it: ranks are started once per W."""
    size: int = request.param
    return size


@pytest.fixture
def fresh() -> Iterator[Pool]:
    """fresh(world, env) -> `Ranks` of one test's own: for tests that break them."""
    started: list[ranks.Ranks] = []

    def get(world: int, **env: str | list[str]) -> ranks.Ranks:
        started.append(ranks.Ranks(place(world), env))
        return started[-1]

    yield get
    for each in started:
        each.close()
