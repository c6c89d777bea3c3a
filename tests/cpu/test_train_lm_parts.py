# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parts of examples/train_lm.py: optimiser, accumulation, rematerialisation, metrics, decoding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from tests.cpu.train_lm import mesh as _mesh
from tests.cpu.train_lm import quick_compiler


@pytest.fixture(autouse=True, scope="module")
def quickly():
    with quick_compiler():
        yield


# ---- optimiser -----------------------------------------------------------------------------------


def test_clip_by_global_norm_of_shards_equals_optax_on_global_arrays(lm):
    specs = {"columns": P(None, "tp"), "both": P("dp", "tp"), "replicated": P()}
    grads = {"columns": (3, 8), "both": (4, 8), "replicated": (5,)}
    keys = dict(zip(grads, jax.random.split(jax.random.key(0), len(grads)), strict=True))
    grads = {name: jax.random.normal(keys[name], shape) for name, shape in grads.items()}
    expected, _ = optax.clip_by_global_norm(1.0).update(grads, optax.EmptyState())
    ours = _clip_on_mesh(lm, _mesh(2, 4), grads, specs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours, expected)


def test_clip_by_global_norm_leaves_small_gradients_alone(lm):
    grads = {"w": jnp.array([0.3, 0.4])}
    clipped = _clip_on_mesh(lm, _mesh(1, 2), grads, {"w": P("tp")})
    np.testing.assert_array_equal(clipped["w"], grads["w"])


def _clip_on_mesh(lm, mesh, grads, specs):
    clip = lm.optimizer.clip_by_global_norm(1.0, specs)

    def update(shards):
        return clip.update(shards, clip.init(shards))[0]

    return jax.jit(jax.shard_map(update, mesh=mesh, in_specs=(specs,), out_specs=specs))(grads)


def test_forward_of_a_block_gathers_twice_and_scatters_twice(lm):
    config = lm.model.Config(layers=3, d_model=16, heads=4)
    params = jax.eval_shape(lambda: lm.model.init_params(jax.random.key(0), config))
    tokens = jax.ShapeDtypeStruct((4, 8), jnp.int32)
    evaluate = lm.training.make_eval_step(_mesh(2, 4), config, None)
    program = evaluate.lower(params, tokens, tokens).as_text()
    # q, k, v share a gather, gate and up another; the all-reduce is the mean of the loss.
    for collective, count in {"all_gather": 2, "reduce_scatter": 2, "all_reduce": 1}.items():
        assert program.count(f'"stablehlo.{collective}"') == count


def test_state_specs_shard_the_moments_like_their_parameters(lm):
    config = lm.model.Config(layers=1, d_model=16, heads=2)
    optimizer = lm.optimizer.make_optimizer(
        config, optax.constant_schedule(1e-3), clip=1.0, weight_decay=0.1
    )
    specs = lm.training.state_specs(config, optimizer)
    (adam,) = (s for s in jax.tree.leaves(specs.opt_state, is_leaf=_has_moments) if _has_moments(s))
    assert adam.mu == adam.nu == specs.params
    assert adam.count == P()


def _has_moments(node):
    return hasattr(node, "mu")


@pytest.mark.parametrize(
    ("name", "middle", "end"), [("cosine", 0.55, 0.1), ("linear", 0.55, 0.1), ("constant", 1, 1)]
)
def test_schedule_warms_up_and_decays_to_a_tenth(lm, name, middle, end):
    schedule = lm.optimizer.make_schedule(name, peak=2.0, warmup=10, decay_steps=110)
    rates = [float(schedule(step)) / 2 for step in (0, 10, 60, 110, 500)]
    assert rates == pytest.approx([0.1, 1, middle, end, end])


# ---- gradients -----------------------------------------------------------------------------------


def _program(lm, config, mesh, accumulate=1):
    """(jitted (params, inputs, targets) -> ((loss, token losses), gradients), its operands)."""
    specs, tokens = lm.training.param_specs(config), lm.training.TOKENS
    fn = functools.partial(
        lm.training.loss_and_grads, config=config, implementation=None, accumulate=accumulate
    )
    sharded = jax.shard_map(
        fn, mesh=mesh, in_specs=(specs, tokens, tokens), out_specs=((P(), tokens), specs)
    )
    text = np.random.default_rng(0).integers(0, 256, 4096).astype(np.uint8)
    batch = lm.data.sample_batch(text, 8, 16, seed=0, step=0)
    return jax.jit(sharded), (lm.model.init_params(jax.random.key(0), config), *batch)


def _assert_close(ours, expected):
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    jax.tree.map(close, ours, expected)


def test_accumulated_gradients_are_those_of_the_whole_batch(lm):
    config = lm.model.Config(layers=2, d_model=16, heads=4, kv_heads=4)
    program, operands = _program(lm, config, _mesh(2, 4))
    accumulated, _ = _program(lm, config, _mesh(2, 4), accumulate=4)
    _assert_close(accumulated(*operands), program(*operands))


def test_microbatches_cross_the_data_axis_once_per_step(lm):
    """In the loop over microbatches only the loss is summed; gradients are, after it."""
    config = lm.model.Config(layers=3, d_model=16, heads=4)
    counts = {}
    for accumulate in (1, 2, 4):
        program, operands = _program(lm, config, _mesh(2, 1), accumulate)
        jaxpr = jax.make_jaxpr(program)(*operands)
        loops = [e for e in _equations(jaxpr.jaxpr) if e.params.get("length") == accumulate]
        inside = [e for loop in loops for e in _equations(loop.params["jaxpr"].jaxpr)]
        sums = lambda equations: sum("psum" in str(e.primitive) for e in equations)
        counts[accumulate] = sums(_equations(jaxpr.jaxpr)), sums(inside)
    assert counts[2] == counts[4]
    assert counts[4][0] == counts[1][0] and counts[4][1] == 1


def _equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _equations(inner)


@pytest.fixture(scope="module")
def without_remat(lm):
    config = lm.model.Config(layers=2, d_model=16, heads=4, remat="none")
    program, operands = _program(lm, config, _mesh(2, 4))
    return program(*operands), _collectives(program, operands)


def _collectives(program, operands):
    text = program.lower(*operands).as_text()
    return sum(text.count(f'"stablehlo.{op}"') for op in ("all_gather", "reduce_scatter"))


@pytest.mark.parametrize(("remat", "extra"), [("attention", 0), ("linears", 0), ("block", 3)])
def test_remat_keeps_the_gradients_and_repeats_communication_for_blocks_only(
    lm, remat, extra, without_remat
):
    config = lm.model.Config(layers=2, d_model=16, heads=4, remat=remat)
    program, operands = _program(lm, config, _mesh(2, 4))
    expected, collectives = without_remat
    _assert_close(program(*operands), expected)
    assert _collectives(program, operands) == collectives + extra


# ---- metrics -------------------------------------------------------------------------------------


def test_log_of_a_resumed_run_drops_what_will_be_done_again(lm, tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = lm.metrics.Log(path, resumed_from=0)
    for step in (1, 2, 3):
        log.write(step, loss=float(step))
    log.write(2, held_out_loss=1.5)
    log.write(2, parity=[])
    with path.open("a") as file:
        file.write('{"step": 4, "lo')
    resumed = lm.metrics.Log(path, resumed_from=2)
    assert resumed.series("loss") == {1: 1.0, 2: 2.0}
    assert lm.metrics.read(path) == resumed.records
    assert len(resumed.records) == 3


# ---- decoding ------------------------------------------------------------------------------------


PROMPT_TEXTS = (b"x", b"def f(", b"import numpy as np\n", b"for i")


def _written(lm, dp, tp, prompts=PROMPT_TEXTS, temperature=0.0, kv_heads=4):
    """What a model with large initial weights writes: its bytes differ from step to step."""
    config = lm.model.Config(layers=2, d_model=32, heads=8, kv_heads=kv_heads)
    params = jax.tree.map(lambda p: 3 * p, lm.model.init_params(jax.random.key(3), config))
    return lm.decode.complete(
        _mesh(dp, tp), config, params, prompts, 12, implementation=None, temperature=temperature
    )


@pytest.fixture(scope="module")
def greedy(lm):
    return _written(lm, 1, 1)


def test_greedy_decoding_is_what_full_forward_passes_choose(lm, greedy):
    config = lm.model.Config(layers=2, d_model=32, heads=8, kv_heads=4)
    params = jax.tree.map(lambda p: 3 * p, lm.model.init_params(jax.random.key(3), config))
    for prompt, new in zip(PROMPT_TEXTS, greedy, strict=True):
        text = np.frombuffer(prompt + new, np.uint8)[None].astype(np.int32)
        logits = lm.model.token_logits(params, text, config, lm.model.UNSHARDED)
        chosen = logits.argmax(-1)[0, len(prompt) - 1 : -1]
        assert chosen.astype(np.uint8).tobytes() == new
    assert len({byte for new in greedy for byte in new}) > 8


@pytest.mark.parametrize(("dp", "tp"), [(1, 2), (2, 4), (4, 2)], ids=str)
def test_every_mesh_writes_the_same(lm, dp, tp, greedy):
    assert _written(lm, dp, tp) == greedy


def test_eight_ranks_of_eight_key_heads_write_the_same(lm):
    assert _written(lm, 1, 8, kv_heads=8) == _written(lm, 1, 1, kv_heads=8)


def test_a_prompt_writes_the_same_alone(lm, greedy):
    assert _written(lm, 2, 4, PROMPT_TEXTS[2:3]) == greedy[2:3]


def test_sampling_is_the_same_on_every_mesh_and_differs_by_row(lm):
    same = [b"x"] * 4
    written = _written(lm, 2, 4, same, temperature=1.0)
    assert written == _written(lm, 1, 1, same, temperature=1.0)
    assert len(set(written)) == 4


def test_empty_prompts_are_refused(lm):
    with pytest.raises(ValueError, match="a prompt is empty"):
        _written(lm, 1, 1, [b"a", b""])


@pytest.mark.parametrize(("asked", "given"), [("fused", None), ("xla", "xla"), (None, None)])
def test_decoding_asks_no_kernel_of_matmul_ar(lm, asked, given, monkeypatch):
    seen = []
    spy = lambda x, w, **keywords: seen.append(keywords["implementation"]) or x @ w
    monkeypatch.setattr(lm.decode.jax_flux, "matmul_ar", spy)
    lm.decode.whole_rows("tp", asked).row(jnp.ones((1, 1, 4)), jnp.ones((4, 2)))
    assert seen == [given]
