# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""examples/train_lm.py: it learns, its parity check holds and catches errors, its flags explain."""

import contextlib
import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jax_flux

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MODULES = ("data", "flags", "model", "parity", "ranks", "report", "training")
SIZES = {"steps": 24, "batch": 8, "seq": 64, "layers": 2, "d_model": 64, "heads": 4, "lr": 1e-2}
TINY = [f"--{name.replace('_', '-')}={value}" for name, value in SIZES.items()]


@pytest.fixture(scope="module")
def lm():
    """The example's modules; its folder is on the path only as long as they are imported."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        modules = {name: importlib.import_module(f"lm.{name}") for name in MODULES}
        return SimpleNamespace(main=importlib.import_module("train_lm").main, **modules)
    finally:
        sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def tiny_run(lm, tmp_path_factory):
    """One whole run on the default mesh of 8 host devices."""
    out = tmp_path_factory.mktemp("train_lm")
    with contextlib.redirect_stdout(io.StringIO()) as log:
        status = lm.main([*TINY, "--out", str(out)])
    metrics = json.loads((out / "metrics.json").read_text())
    return SimpleNamespace(status=status, log=log.getvalue(), out=out, metrics=metrics)


def _mesh(dp, tp):
    devices = jax.devices()[: dp * tp]
    return jax.make_mesh((dp, tp), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2, devices=devices)


def _resolve(lm, text, platform="cpu", devices=8):
    return lm.flags.resolve(lm.flags.parse(text.split(), None), platform, devices)


# The whole job


def test_tiny_run_succeeds_with_falling_losses(tiny_run):
    losses = tiny_run.metrics["train_loss"]
    assert tiny_run.status == 0
    assert losses[0] == pytest.approx(np.log(256), abs=0.1)
    assert np.mean(losses[-4:]) < losses[0] - 1.5
    assert tiny_run.metrics["held_out_loss"]["24"] < losses[0] - 1.5


def test_tiny_run_compares_the_loss_and_every_gradient(tiny_run, lm):
    table = lm.model.param_table(lm.model.Config(layers=2, d_model=64, heads=4))
    rows = {row["name"]: row for row in tiny_run.metrics["parity"]}
    assert len(rows) == 2 + len(jax.tree.leaves(table))
    assert {"loss", "token losses", "d blocks/wq", "d blocks/w_down", "d head"} <= rows.keys()
    assert all(row["passed"] and row["limit"] == 1e-5 for row in rows.values())


def test_tiny_run_reports_first_and_last_step_and_every_op(tiny_run):
    assert "mesh: dp=2 x tp=4 on 8 x cpu" in tiny_run.log
    assert re.search(r"step  1/24  loss 5\.\d+ nats/byte  [\d,]+ tokens/s  [\d,]+ ms", tiny_run.log)
    assert "step 24/24" in tiny_run.log
    for op in ("ag_matmul", "matmul_rs"):
        assert re.search(rf"│ {op} +│ +0 │ +[1-9]", tiny_run.log), tiny_run.log
    assert "parity holds for all" in tiny_run.log


def test_tiny_run_writes_a_png(tiny_run):
    assert (tiny_run.out / "loss.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_script_in_a_fresh_process_repeats_the_losses_bit_for_bit(tiny_run, tmp_path):
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    env |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    script = [sys.executable, str(EXAMPLES / "train_lm.py"), *TINY, "--out", str(tmp_path)]
    done = subprocess.run(script, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["train_loss"] == tiny_run.metrics["train_loss"]
    assert metrics["held_out_loss"] == tiny_run.metrics["held_out_loss"]


# Parity


@pytest.mark.parametrize(
    ("dp", "tp", "heads"), [(1, 1, 2), (8, 1, 2), (2, 3, 3)], ids=lambda value: str(value)
)
def test_parity_holds_on_other_meshes(lm, dp, tp, heads):
    rows = _parity_rows(lm, dp, tp, heads)
    assert [row for row in rows if not row.passed] == []


def test_parity_in_bf16_has_rows_bounded_by_the_error_of_xla(lm):
    rows = [row for row in _parity_rows(lm, 1, 2, 2, with_bf16=True) if row.dtype == "bf16"]
    assert all(row.passed and 1e-5 < row.limit < 0.1 for row in rows)
    assert "token losses" in {row.name for row in rows}


def test_gradient_wrong_by_a_ten_thousandth_fails_the_run(lm, tmp_path, monkeypatch, capsys):
    matmul_rs = jax_flux.matmul_rs

    def wrong_gradient(x, w, **keywords):
        y = matmul_rs(x, w, **keywords)
        return 1.0001 * y - jax.lax.stop_gradient(0.0001 * y)

    monkeypatch.setattr(jax_flux, "matmul_rs", wrong_gradient)
    status = lm.main([*TINY, "--steps", "1", "--layers", "1", "--out", str(tmp_path)])
    rows = {
        row["name"]: row for row in json.loads((tmp_path / "metrics.json").read_text())["parity"]
    }
    assert status == 1
    assert "parity FAILED" in capsys.readouterr().out
    assert rows["loss"]["passed"] and rows["d head"]["passed"]
    for name in ("d blocks/wo", "d blocks/w_down", "d blocks/wq", "d blocks/w_gate"):
        assert not rows[name]["passed"]
        assert rows[name]["error"] > 5e-5


def test_parity_row_without_a_number_fails(lm):
    assert not lm.parity.Row("f32", "loss", float("nan"), 1e-5).passed


def _parity_rows(lm, dp, tp, heads, *, with_bf16=False):
    config = lm.model.Config(layers=1, d_model=16 * heads, heads=heads)
    params = lm.model.init_params(jax.random.key(0), config)
    text = np.random.default_rng(0).integers(0, 256, 4096).astype(np.uint8)
    batch = lm.data.sample_batch(text, dp, 8 * tp, seed=0, step=0)
    return lm.parity.check(_mesh(dp, tp), config, params, batch, None, with_bf16=with_bf16)


# Parts


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
    clip = lm.training.clip_by_global_norm(1.0, specs)

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
    optimizer = lm.training.make_optimizer(config, learning_rate=1e-3, steps=10)
    specs = lm.training.state_specs(config, optimizer)
    (adam,) = (s for s in jax.tree.leaves(specs.opt_state, is_leaf=_has_moments) if _has_moments(s))
    assert adam.mu == adam.nu == specs.params
    assert adam.count == P()


def _has_moments(node):
    return hasattr(node, "mu")


def test_corpus_splits_by_file_and_repeats(lm):
    first, again = (lm.data.load_corpus(128, max_bytes=1 << 20) for _ in range(2))
    assert len(first.train) + len(first.held_out) == 1 << 20
    np.testing.assert_array_equal(first.train, again.train)
    np.testing.assert_array_equal(first.held_out, again.held_out)


def test_corpus_without_sources_says_what_to_use(lm, tmp_path):
    (tmp_path / "only.py").write_text("pass\n")
    with pytest.raises(lm.data.NoTextError, match="a Python that ships its standard library"):
        lm.data.load_corpus(128, folder=tmp_path)


def test_targets_are_the_inputs_one_byte_later(lm):
    text = np.arange(100, dtype=np.uint8)
    inputs, targets = lm.data.sample_batch(text, 4, 16, seed=3, step=5)
    np.testing.assert_array_equal(targets, inputs + 1)


def test_progress_on_a_terminal_shows_the_first_loss_and_a_bar(lm, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    console = lm.report.Console(file=io.StringIO(), force_terminal=True, width=120)
    with lm.report.progress(console, 2) as on_step:
        on_step(1, 5.5, 1e4, 200.0)
        on_step(2, 5.4, 1e4, 200.0)
    text = console.file.getvalue()
    assert "first loss 5.5000 nats/byte" in re.sub(r"\x1b\[[\d;]*m", "", text)
    assert "10,000 tokens/s" in text


def test_progress_on_a_dumb_terminal_is_lines(lm, monkeypatch, capsys):
    monkeypatch.setenv("TERM", "dumb")
    console = lm.report.Console(file=io.StringIO(), force_terminal=True, width=120)
    with lm.report.progress(console, 2) as on_step:
        on_step(1, 5.5, 1e4, 200.0)
        assert "step 1/2  loss 5.5000 nats/byte" in capsys.readouterr().out


# Flags


@pytest.mark.parametrize(
    ("text", "platform", "devices", "mesh"),
    [
        ("", "cpu", 8, (2, 4)),
        ("", "gpu", 1, (1, 1)),
        ("", "gpu", 2, (1, 2)),
        ("--heads 6 --d-model 96", "gpu", 4, (2, 2)),
        ("--tp 2", "cpu", 8, (4, 2)),
        ("--dp 8", "cpu", 8, (8, 1)),
        ("--dp 1 --tp 2", "cpu", 8, (1, 2)),
    ],
)
def test_mesh_uses_as_much_tp_as_the_heads_allow(lm, text, platform, devices, mesh):
    flags = _resolve(lm, text, platform, devices)
    assert (flags.dp, flags.tp) == mesh


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--dp 4 --tp 4", r"needs 16 devices, and this process has 8.*Choose dp and tp with"),
        ("--tp 3", r"--heads is 4 and --tp is 3.*Use --heads 3 or change --tp"),
        ("--seq 126 --tp 4", r"--seq is 126 and --tp is 4.*Use --seq 124"),
        ("--batch 15", r"--batch is 15 and --dp is 2.*Use --batch 14"),
        ("--d-model 100", r"--d-model is 100 and 2 \* --heads is 8.*Use --d-model 96"),
        ("--heads 5 --tp 1", r"2 \* --heads is 10.*Use --d-model 120 or change --heads\.$"),
        ("--layers 0", r"--layers is 0.*at least 1"),
        ("--dp 0", r"--dp is 0.*at least 1"),
        ("--lr nan", r"^--lr is nan\. .*greater than 0 and finite\.$"),
        ("--seed -1", r"^--seed is -1\. A seed is 0 or more and less than 2\*\*63\.$"),
        (f"--seed {2**63}", r"--seed is 9223372036854775808.*less than 2\*\*63"),
    ],
)
def test_flags_that_cannot_work_name_rule_and_remedy(lm, text, message):
    with pytest.raises(ValueError, match=message):
        _resolve(lm, text)


def test_main_reports_bad_flags_on_stderr_with_status_2(lm, capsys):
    assert lm.main(["--tp", "3"]) == 2
    assert "train_lm: --heads is 4 and --tp is 3" in capsys.readouterr().err


def test_fused_on_cpu_reports_the_error_of_the_op_with_status_2(lm, tmp_path, capsys):
    assert lm.main([*TINY, "--implementation", "fused", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "train_lm: ag_matmul:" in said and "platform 'cpu'" in said
    assert "--implementation auto and --implementation xla" in said


def test_out_that_is_no_folder_is_reported_before_the_training(lm, tmp_path, capsys):
    path = tmp_path / "file"
    path.write_text("")
    assert lm.main([*TINY, "--out", str(path)]) == 2
    captured = capsys.readouterr()
    assert f"train_lm: --out is {path}" in captured.err
    assert "step" not in captured.out


def test_ctrl_c_ends_the_script_without_a_traceback(tmp_path):
    env = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    script = [sys.executable, str(EXAMPLES / "train_lm.py"), *TINY, "--out", str(tmp_path)]
    with subprocess.Popen(
        [*script, "--steps=1000000"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline().startswith(b"text: ")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert b"interrupted" in err and b"Traceback" not in err


# Two ranks on one GPU


def _choose(lm, monkeypatch, flags, gpus, nccl):
    monkeypatch.setattr(lm.ranks, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(lm.ranks, "shared_gpu_nccl", lambda: nccl)
    return lm.ranks.choose(lm.flags.parse(flags.split(), None))


def test_one_gpu_starts_two_ranks_where_nccl_lets_them_share_it(lm, monkeypatch):
    assert _choose(lm, monkeypatch, "", 1, "libnccl.so.2").library == "libnccl.so.2"
    assert _choose(lm, monkeypatch, "--tp 2 --dp 1", 1, "libnccl.so.2").library is not None
    note = _choose(lm, monkeypatch, "", 1, None).note
    assert "nothing is fused" in note and "nvidia-nccl-cu13>=2.30" in note


@pytest.mark.parametrize("flags, gpus", [("--tp 1", 1), ("--dp 2", 1), ("", 0), ("", 2)])
def test_other_meshes_and_machines_run_in_this_process(lm, monkeypatch, flags, gpus):
    assert _choose(lm, monkeypatch, flags, gpus, "libnccl.so.2") == (None, None)


@pytest.mark.parametrize(
    "visible, count", [(None, 2), ("", 0), ("-1", 0), ("1", 1), ("0, 1", 2)], ids=str
)
def test_visible_gpus_are_those_that_cuda_shows(lm, monkeypatch, visible, count):
    answer = SimpleNamespace(stdout="GPU 0: NVIDIA H200\nGPU 1: NVIDIA H200\n")
    monkeypatch.setattr(lm.ranks.shutil, "which", lambda name: name)
    monkeypatch.setattr(lm.ranks.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(lm.ranks.subprocess, "run", lambda *args, **kwargs: answer)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert lm.ranks.visible_gpus() == count


def test_a_rank_does_not_start_ranks(lm, monkeypatch):
    monkeypatch.setenv(lm.ranks.VARIABLE, "0 127.0.0.1:1")
    assert _choose(lm, monkeypatch, "", 1, "libnccl.so.2") == (None, None)


def test_ranks_that_fail_end_the_run_with_their_status_and_log(lm, monkeypatch, tmp_path, capfd):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, time\n"
        "rank = os.environ['TRAIN_LM_RANK'].split()[0]\n"
        "print('flags of rank', rank, sys.argv[1:], flush=True)\n"
        "if rank == '1': sys.exit(3)\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setattr(lm.ranks, "GRACE_S", 0.5)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("LD_PRELOAD", "")
    argv = ["--steps=7", f"--out={tmp_path / 'out'}"]
    assert lm.ranks.launch(argv, lm.flags.parse(argv, None), "") == 3
    out, err = capfd.readouterr()
    assert "flags of rank 0" in out and "--implementation=fused" in out
    assert "rank 1 ended with status 3" in err and "flags of rank 1" in err
