# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""examples/train_lm.py: it learns, its parity check holds and catches errors, its flags explain."""

import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import jax_flux
from tests.cpu.train_lm import SCRIPT, TINY, environment, quick_compiler, series
from tests.cpu.train_lm import mesh as _mesh


@pytest.fixture(autouse=True, scope="module")
def quickly():
    with quick_compiler():
        yield


def _resolve(lm, text, platform="cpu", devices=8):
    return lm.flags.resolve(lm.flags.parse(text.split(), None), platform, devices)


# The whole job


def test_tiny_run_succeeds_with_falling_losses(tiny_run):
    losses = list(series(tiny_run.records, "loss").values())
    assert tiny_run.status == 0
    assert losses[0] == pytest.approx(np.log(256), abs=0.1)
    assert np.mean(losses[-4:]) < losses[0] - 1.5
    held_out = series(tiny_run.records, "held_out_loss")
    assert list(held_out) == [4, 8, 12, 16, 20, 24]
    assert held_out[24] < losses[0] - 1.5
    assert series(tiny_run.records, "perplexity")[24] == pytest.approx(np.exp(held_out[24]))


def test_tiny_run_writes_a_line_per_step(tiny_run):
    lines = [record for record in tiny_run.records if "loss" in record]
    assert [record["step"] for record in lines] == list(range(1, 25))
    rates = [record["learning_rate"] for record in lines]
    assert rates[0] == pytest.approx(1e-3) and max(rates) == pytest.approx(1e-2) == rates[2]
    assert all(record["grad_norm"] > 0 and record["tokens_per_s"] > 0 for record in lines)


def test_tiny_run_lets_the_model_write(tiny_run):
    (samples,) = series(tiny_run.records, "samples").values()
    assert [sample["prompt"] for sample in samples] == ["def ", "import ", "class "]
    assert all(len(sample["text"].encode("latin1", "replace")) > 8 for sample in samples)
    assert "Written by the model" in tiny_run.log and "perplexity" in tiny_run.log


def test_tiny_run_compares_the_loss_and_every_gradient(tiny_run, lm):
    table = lm.model.param_table(lm.model.Config(layers=2, d_model=64, heads=4))
    rows = {row["name"]: row for row in series(tiny_run.records, "parity")[24]}
    assert len(rows) == 2 + len(jax.tree.leaves(table))
    assert {"loss", "token losses", "d blocks/wq", "d blocks/w_down", "d head"} <= rows.keys()
    assert all(row["passed"] and row["limit"] == 1e-5 for row in rows.values())


def test_tiny_run_reports_first_and_last_step_and_every_op(tiny_run):
    assert "dp=2 x tp=4 on 8 x cpu" in tiny_run.log
    assert re.search(r"step  1/24  loss 5\.\d+ nats/byte  [\d,]+ tokens/s  [\d,]+ ms", tiny_run.log)
    assert "step 24/24" in tiny_run.log
    for op in ("ag_matmul", "matmul_rs", "matmul_ar"):
        assert re.search(rf"│ {op} +│ +0 │ +[1-9]", tiny_run.log), tiny_run.log
    assert "parity holds for all" in tiny_run.log


def test_tiny_run_writes_a_png(tiny_run):
    assert (tiny_run.out / "loss.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


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
    flags = ["--steps", "1", "--layers", "1", "--sample", "0", "--out", str(tmp_path)]
    status = lm.main([*TINY, *flags])
    parity = series(lm.metrics.read(tmp_path / "metrics.jsonl"), "parity")[1]
    rows = {row["name"]: row for row in parity}
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
        ("--kv-heads 2", "cpu", 8, (4, 2)),
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
        ("--kv-heads 3 --tp 1", r"--heads is 4 and --kv-heads is 3.*Use --heads 3 or change"),
        ("--kv-heads 2 --tp 4", r"--kv-heads is 2 and --tp is 4.*Use --kv-heads 4"),
        ("--accumulate 3", r"--batch is 16 and --dp \* --accumulate is 6.*Use --batch 12"),
        ("--clip 0", r"--clip is 0.0\. A norm is greater than 0"),
        ("--weight-decay -1", r"--weight-decay is -1.0\. It is 0 or more"),
        ("--checkpoint-every -1", r"--checkpoint-every is -1\. Give 0 or more"),
        ("--warmup 9 --decay-steps 9", r"--decay-steps is 9 and --warmup is 9.*larger --decay"),
        ("--resume --restart", r"give one of them"),
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--processes 2", "--processes without --coordinator and --process. .*--distributed under"),
        ("--coordinator a:1 --processes 2 --process 2", "numbered from 0 to 1"),
        ("--coordinator a:1 --processes 2 --process 0 --distributed", "the one or the other"),
    ],
)
def test_flags_of_processes_that_cannot_work_name_rule_and_remedy(lm, text, message):
    with pytest.raises(ValueError, match=message):
        lm.processes.join(lm.flags.parse(text.split(), None))


def test_distributed_without_a_launcher_says_how_to_start_it():
    script = [sys.executable, str(SCRIPT), *TINY, "--distributed"]
    done = subprocess.run(script, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "JAX recognises no launcher here" in done.stderr and "with srun" in done.stderr


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
    script = [sys.executable, str(SCRIPT), *TINY, "--out", str(tmp_path), "--steps=1000000"]
    with subprocess.Popen(
        script, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert b"train_lm" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert b"interrupted" in err and b"Traceback" not in err


# Two ranks on one GPU


def _choose(lm, monkeypatch, flags, gpus, nccl):
    monkeypatch.setattr(lm.ranks, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(lm.ranks.shared_gpu, "nccl", lambda: nccl)
    return lm.ranks.choose(lm.flags.parse(flags.split(), None))


def test_one_gpu_starts_two_ranks_where_nccl_lets_them_share_it(lm, monkeypatch):
    assert _choose(lm, monkeypatch, "", 1, "libnccl.so.2").nccl == "libnccl.so.2"
    assert _choose(lm, monkeypatch, "--tp 2 --dp 1", 1, "libnccl.so.2").nccl is not None
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


def test_sigterm_reaches_ranks_and_their_checkpoint_is_no_failure(lm, monkeypatch, tmp_path, capfd):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, pathlib, signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: sys.exit({lm.preemption.STATUS}))\n"
        "pathlib.Path(__file__).with_name(os.environ['TRAIN_LM_RANK'][0]).touch()\n"
        "time.sleep(60)\n"
    )

    def end_when_ready():
        while not all((tmp_path / rank).exists() for rank in "01"):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("LD_PRELOAD", "")
    argv = [f"--out={tmp_path / 'out'}"]
    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=end_when_ready, daemon=True).start()
    assert lm.ranks.launch(argv, lm.flags.parse(argv, None), "") == 143
    assert "ended with status" not in capfd.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == before
