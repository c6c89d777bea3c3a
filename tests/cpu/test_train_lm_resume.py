# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""examples/train_lm.py: killed and resumed, its checkpoints, and inference from them."""

import re
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from tests.cpu.train_lm import QUICK, SCRIPT, TINY, environment, mesh, quick_compiler, series


@pytest.fixture(autouse=True, scope="module")
def quickly():
    with quick_compiler():
        yield


def _started(*flags):
    """A tiny run in a process of its own, whose lines can be read as they come."""
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *TINY, *flags],
        env=environment(**QUICK),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def resumed_run(lm, tmp_path_factory):
    """(records before the kill, output of the resumed run, records after it)."""
    out = tmp_path_factory.mktemp("killed")
    flags = ["--checkpoint-every=4", f"--out={out}"]
    with _started(*flags) as process:
        for line in process.stdout:
            step = re.match(r"step +(\d+)/", line)
            if step and int(step[1]) >= 6 and any((out / "checkpoints").glob("[0-9]")):
                process.send_signal(signal.SIGKILL)
                break
    assert process.returncode == -signal.SIGKILL
    before = lm.metrics.read(out / "metrics.jsonl")
    command = [sys.executable, str(SCRIPT), *TINY, *flags, "--resume"]
    done = subprocess.run(
        command, env=environment(**QUICK), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return before, done.stdout, lm.metrics.read(out / "metrics.jsonl")


def test_a_run_that_is_killed_goes_on_from_its_newest_checkpoint(resumed_run):
    before, output, after = resumed_run
    killed_at = max(series(before, "loss"))
    resumed_at = int(re.search(r"from the checkpoint of step (\d+)", output)[1])
    assert 4 <= resumed_at <= killed_at < 24 and resumed_at % 4 == 0
    assert list(series(after, "loss")) == list(range(1, 25))


@pytest.mark.parametrize("name", ["loss", "grad_norm", "learning_rate", "held_out_loss", "samples"])
def test_a_killed_and_resumed_run_has_every_bit_of_one_that_was_not(name, resumed_run, tiny_run):
    _, _, after = resumed_run
    assert series(after, name) == series(tiny_run.records, name) != {}


def test_sigterm_ends_a_run_with_a_checkpoint_of_the_step_it_was_in(lm, tmp_path):
    with _started("--steps=2000", f"--out={tmp_path}") as process:
        for line in process.stdout:
            if line.startswith("step "):
                process.send_signal(signal.SIGTERM)
                break
        rest = process.stdout.read()
    assert process.returncode == 143, rest
    ended = int(re.search(r"SIGTERM: ended after step (\d+), which .*checkpoints holds", rest)[1])
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [str(ended)]
    assert max(series(lm.metrics.read(tmp_path / "metrics.jsonl"), "loss")) == ended < 2000


def test_sigterm_after_the_last_question_is_not_lost():
    code = (
        f"import os, signal, sys; sys.path.insert(0, {str(SCRIPT.parent)!r})\n"
        "from lm import preemption\n"
        "with preemption.notice(0) as stop:\n"
        "    assert not stop(1)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "print('goes on')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stdout) == (-signal.SIGTERM, ""), ended


# ---- checkpoints ---------------------------------------------------------------------------------


def _main(lm, out, *flags):
    return lm.main([*TINY, "--sample=0", "--out", str(out), *flags])


@pytest.fixture(scope="module")
def unfinished(lm, tiny_run, tmp_path_factory):
    """A folder with the checkpoint of step 12 of a run of 24, as a kill would leave it."""
    out = tmp_path_factory.mktemp("unfinished")
    flags = lm.flags.resolve(lm.flags.parse([*TINY, "--out", str(out)], None), "cpu", 8)
    described = lm.checkpoints.describe_run(flags, lm.data.load_corpus(flags.seq))
    state, _, _ = _state(lm, mesh(2, 4))
    store = lm.checkpoints.Store(out / "checkpoints")
    store.save(12, state, described)
    store.close()
    return out, state


def _state(lm, on):
    config = lm.model.Config(layers=2, d_model=64, heads=4, kv_heads=4)
    schedule = lm.optimizer.make_schedule("cosine", peak=1e-2, warmup=2, decay_steps=24)
    optimizer = lm.optimizer.make_optimizer(config, schedule, clip=1.0, weight_decay=0.1)
    return lm.training.init_state(on, config, optimizer, seed=0), config, optimizer


def test_a_new_run_does_not_delete_an_unfinished_one(lm, unfinished, capsys):
    out, _ = unfinished
    assert _main(lm, out) == 2
    said = capsys.readouterr().err
    assert "holds step 12 of a run of 24 steps" in said
    assert "--resume" in said and "--restart" in said
    assert (out / "checkpoints" / "12").is_dir()


@pytest.mark.parametrize(
    ("flag", "words", "remedy"),
    [
        ("--lr=0.02", "--lr was 0.01 and is 0.02.", "Add --lr 0.01, or"),
        ("--kv-heads=2", "--kv-heads was 4 and is 2.", "Add --kv-heads 4, or"),
        ("--heads=8", "--heads was 4 and is 8.", "Add --heads 4, or"),
        (
            "--steps=50",
            "--steps was 24 and is 50, from which",
            "Add --warmup 2 --decay-steps 24, or",
        ),
        ("--warmup=5", "--warmup was 2 and is 5.", "Add --warmup 2, or"),
    ],
)
def test_resuming_with_other_flags_is_refused_and_names_what_was_typed(
    lm, unfinished, flag, words, remedy, capsys
):
    assert _main(lm, unfinished[0], "--resume", "--tp=2", flag) == 2
    said = capsys.readouterr().err
    assert f"of another run: {words}" in said and remedy in said and "another --out" in said


def _resolve(lm, out, *flags):
    typed = lm.flags.parse([*TINY, "--out", str(out), *flags], None)
    return lm.flags.resolve(typed, "cpu", 8)


def test_a_value_that_the_platform_chose_is_said_to_be_a_default(lm, unfinished):
    out, _ = unfinished
    typed = lm.flags.parse(["--resume", f"--out={out}", *TINY[:-2]], None)
    flags = lm.flags.resolve(typed, "cpu", 8)
    described = lm.checkpoints.describe_run(flags, lm.data.load_corpus(flags.seq))
    with pytest.raises(
        lm.checkpoints.CheckpointError, match=r"--lr was 0.01 and is 0.004 by default"
    ):
        lm.checkpoints.open_store(flags, described, print)


def test_what_the_remedy_names_goes_on(lm, unfinished):
    out, _ = unfinished
    flags = _resolve(lm, out, "--resume", "--steps=50", "--warmup=2", "--decay-steps=24")
    described = lm.checkpoints.describe_run(flags, lm.data.load_corpus(flags.seq))
    store, step = lm.checkpoints.open_store(flags, described, print)
    store.close()
    assert step == 12


def test_resuming_with_fewer_steps_than_are_done_is_refused(lm, unfinished, capsys):
    assert _main(lm, unfinished[0], "--resume", "--steps=8") == 2
    said = capsys.readouterr().err
    assert "holds step 12 of a run of 24 steps, and --steps is 8" in said
    assert "Give --steps 24" in said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda run: run["flags"].pop("accumulate"), "it does not say --accumulate."),
        (lambda run: run.pop("steps"), "it does not say --steps."),
        (lambda run: run.pop("text"), "it does not say the text."),
        (lambda run: run["flags"].update(experts=8), "it says --experts, which is not known here"),
        (lambda run: run.clear(), "--layers, --d-model, --heads"),
    ],
    ids=["flag", "steps", "text", "newer", "nothing"],
)
def test_a_checkpoint_of_another_version_is_refused_in_words(
    lm, unfinished, change, words, tmp_path, capsys
):
    flags = _resolve(lm, tmp_path)
    described = lm.checkpoints.describe_run(flags, lm.data.load_corpus(flags.seq))
    change(described)
    store = lm.checkpoints.Store(tmp_path / "checkpoints")
    store.save(12, unfinished[1], described)
    store.close()
    assert _main(lm, tmp_path, "--resume") == 2
    said = capsys.readouterr().err
    assert "another version of train_lm" in said and words in said
    assert "--restart" in said and "another --out" in said
    assert _main(lm, tmp_path) == 2  # nor is it deleted
    assert "holds step 12 of a run of" in capsys.readouterr().err
    if "--layers" in words:
        assert lm.infer(["--checkpoint", str(tmp_path)]) == 2
        assert "does not say --layers" in capsys.readouterr().err


def test_checkpoints_without_a_description_are_another_versions(lm, unfinished, tmp_path):
    bare = ocp.CheckpointManager(tmp_path / "checkpoints")
    bare.save(3, args=ocp.args.StandardSave({"w": jnp.ones(2)}))
    bare.close()
    with pytest.raises(lm.checkpoints.CheckpointError, match="another version of train_lm"):
        lm.checkpoints.open_store(_resolve(lm, tmp_path), {}, print)


def test_a_state_loads_bit_for_bit_onto_another_mesh(lm, unfinished):
    out, state = unfinished
    _, config, optimizer = _state(lm, mesh(1, 1))
    store = lm.checkpoints.Store(out / "checkpoints")
    found = store.restore(12, mesh(4, 2), config, optimizer)
    store.close()
    jax.tree.map(np.testing.assert_array_equal, found, state)
    kernel = found.opt_state[1][0].mu["blocks"]["wq"]
    assert kernel.sharding.mesh.shape == {"dp": 4, "tp": 2}
    assert kernel.addressable_shards[0].data.shape == (2, 64, 32)


def test_a_finished_run_resumes_without_a_step_and_a_new_one_replaces_it(lm, tmp_path, capsys):
    short = ("--steps=2", "--layers=1", "--batch=4", "--accumulate=2", "--dtype=bfloat16")
    assert _main(lm, tmp_path, *short) == 0
    first = lm.metrics.read(tmp_path / "metrics.jsonl")
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["2"]
    capsys.readouterr()
    assert _main(lm, tmp_path, *short, "--resume", "--remat=block") == 0
    again = lm.metrics.read(tmp_path / "metrics.jsonl")
    assert series(again, "loss") == series(first, "loss")
    assert "from the checkpoint of step 2" in capsys.readouterr().out
    typed = lm.flags.parse([*TINY, *short, "--out", str(tmp_path)], None)
    flags = lm.flags.resolve(typed, "cpu", 8)
    said = []
    store, step = lm.checkpoints.open_store(flags, {}, said.append)
    assert (step, store.latest(), list(store.folder.iterdir())) == (0, None, [])
    assert said == [f"deleting {tmp_path}/checkpoints: step 2 of a run of 2 steps, finished"]
    store.close()


# ---- inference -----------------------------------------------------------------------------------


def test_inference_writes_what_the_trained_model_would_choose(lm, tiny_run, capsys):
    assert lm.infer(["--checkpoint", str(tiny_run.out), "--new=8"]) == 0
    output = capsys.readouterr().out
    assert "step 24" in output and "dp=2 x tp=4" in output
    assert "32 of 32 bytes are its choice" in output
    row = lambda phase, op: re.search(rf"│ {phase} .*│ {op}: xla", output)
    assert row("prefill", "ag_matmul") and row("decode", "matmul_ar")
    assert "matmul_rs: xla" in output and "not on NVIDIA GPUs" in output


@pytest.mark.parametrize("sizes", [(1, 1), (3, 2)], ids=str)
def test_inference_runs_on_other_meshes_and_in_bf16(lm, tiny_run, sizes, capsys):
    flags = ["--checkpoint", str(tiny_run.out), "--new=4", f"--dp={sizes[0]}", f"--tp={sizes[1]}"]
    assert lm.infer([*flags, "--prompt=def f(", "--prompt=x", "--dtype=bfloat16"]) == 0
    output = capsys.readouterr().out
    assert "2 of 1 to 6 bytes" in output and "decoding is as the full forward pass" in output


def test_inference_without_a_checkpoint_says_that_its_model_is_untrained(
    lm, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert lm.infer(["--new=2", "--tp=8"]) == 0
    output = capsys.readouterr().out
    assert "untrained: out/train_lm holds no checkpoint" in output and "dp=1 x tp=8" in output


@pytest.mark.parametrize("shift", [0, 7])
def test_inference_with_misplaced_keys_fails_its_check(lm, shift, tmp_path, monkeypatch, capsys):
    init_params, rotary = lm.model.init_params, lm.model.rotary

    def misplaced(x, positions=None):
        return rotary(x, None if positions is None else positions + shift)

    def large(*arguments):  # so that every byte depends on what was read before
        return jax.tree.map(lambda p: 3 * p, init_params(*arguments))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lm.model, "init_params", large)
    monkeypatch.setattr(lm.model, "rotary", misplaced)
    assert lm.infer(["--new=16", "--tp=2"]) == (1 if shift else 0)
    verdict = "NOT as" if shift else "as"
    assert f"decoding is {verdict} the full forward pass" in capsys.readouterr().out


def test_inference_of_a_model_that_is_nan_fails_its_check(lm, tmp_path, monkeypatch, capsys):
    init_params = lm.model.init_params
    broken = lambda *arguments: jax.tree.map(lambda p: p * jnp.nan, init_params(*arguments))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lm.model, "init_params", broken)
    assert lm.infer(["--new=2", "--tp=2", "--dp=1", "--prompt=x"]) == 1
    assert "decoding is NOT as the full forward pass" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--checkpoint=nowhere"], "nowhere holds no checkpoint. Train first"),
        (["--tp=3"], "--tp is 3 and the model has 8 heads of keys"),
        (["--dp=8", "--tp=2"], "needs 16 devices, and there are 8"),
        (["--new=0"], "--new is 0. It counts things"),
        (["--prompt="], "a prompt is empty"),
    ],
)
def test_inference_flags_that_cannot_work_say_why(lm, flags, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert lm.infer(flags) == 2
    assert words in capsys.readouterr().err
