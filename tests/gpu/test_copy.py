# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The copy-only all-gather on real ranks: equal bits, however it is launched."""

import pytest

pytestmark = pytest.mark.gpus(1)

# [b, m, k], dtype, chunk_bytes, CTAs (0: all SMs). Planes that are no multiple of 16 bytes take the
# unaligned path; several chunks per plane, and a last one that is cut.
SHAPES = {
    "bf16-even": ([1, 256, 512], "bfloat16", 16384, 0),
    "bf16-batch": ([3, 33, 96], "bfloat16", 4096, 0),
    "f32-odd": ([2, 7, 5], "float32", 16, 0),
    "u8-odd-plane": ([3, 5, 7], "uint8", 16, 0),
    "u8-one-byte": ([1, 1, 1], "uint8", 16384, 0),
    "bool-ragged": ([1, 129, 131], "bool", 2048, 0),
    "c64-tail": ([1, 77, 33], "complex64", 8192, 0),
    "bf16-one-cta": ([2, 100, 264], "bfloat16", 4096, 1),
    "u8-one-cta-odd": ([2, 13, 101], "uint8", 256, 1),
    "f16-three-ctas": ([1, 300, 200], "float16", 1024, 3),
}


@pytest.mark.parametrize("case", SHAPES)
def test_copy_any_shape_equal_bits(pool, world, case):
    shape, dtype, chunk_bytes, ctas = SHAPES[case]
    answers = pool(world).run(
        "copy_equal", shape=shape, dtype=dtype, chunk_bytes=chunk_bytes, ctas=ctas, runs=4
    )
    assert [answer["wrong"] for answer in answers] == [0] * len(answers)


def test_copy_eight_runs_are_replayed(pool, world):
    """Fewer launches than runs: the last ones were replays of a graph with other buffers."""
    answers = pool(world).run("copy_equal", shape=[1, 320, 256], dtype="bfloat16", seed=100)
    for answer in answers:
        assert answer["wrong"] == 0
        assert answer["captured"] > 0, answer
        assert answer["direct"] + answer["captured"] < 8, answer


def test_copy_growth_old_executable_keeps_its_workspace(pool, world):
    answers = pool(world).run("growth", small=[1, 64, 64], large=[2, 1024, 512])
    assert answers == [0] * len(answers)


def test_copy_loop_of_200_calls(pool, world):
    calls, runs = (50, 4)
    answers = pool(world).run(
        "back_to_back", shape=[1, 64, 96], calls=calls, runs=runs, timeout_s=180
    )
    assert answers == [0] * len(answers)


def test_copy_two_channels_in_one_program(pool, world):
    answers = pool(world).run("two_channels", shape=[1, 128, 64])
    assert answers == [0] * len(answers)


def test_copy_primitive_equal_bits(pool, world):
    answers = pool(world).run("primitive", shape=[2, 24, 40], dtype="bfloat16")
    assert answers == [0] * len(answers)


def test_copy_sub_axes_of_a_mesh(pool):
    answers = pool(4).run("sub_axes", shape=[2, 9, 65])
    assert answers == [{"a": 0, "b": 0}] * len(answers)


def test_copy_without_command_buffers_launches_every_run(pool):
    answers = pool(2, flags="op-by-op").run(
        "copy_equal", shape=[1, 320, 256], dtype="bfloat16", seed=100
    )
    for answer in answers:
        assert answer == {"wrong": 0, "direct": 8, "captured": 0}


def test_copy_of_one_rank_needs_no_peer(pool):
    (answer,) = pool(1).run("copy_equal", shape=[2, 33, 17], dtype="float32", chunk_bytes=64)
    assert answer["wrong"] == 0


@pytest.mark.gpus(2)
@pytest.mark.parametrize("case", ["bf16-even", "bf16-one-cta", "u8-odd-plane"])
def test_copy_one_process_two_gpus_equal_bits(pool, case):
    shape, dtype, chunk_bytes, ctas = SHAPES[case]
    (answer,) = pool(2, one_process=True).run(
        "copy_equal", shape=shape, dtype=dtype, chunk_bytes=chunk_bytes, ctas=ctas
    )
    assert answer["wrong"] == 0


@pytest.mark.parametrize(
    "count", [pytest.param(n, marks=pytest.mark.gpus(n), id=f"tp{n}") for n in (2, 4, 8)]
)
def test_copy_one_process_several_gpus_growth_and_loop(pool, count):
    ranks = pool(count, one_process=True)
    assert ranks.run("growth", small=[1, 64, 64], large=[2, 1024, 512]) == [0]
    assert ranks.run("back_to_back", shape=[1, 64, 96], calls=50, runs=4) == [0]
