# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tune` on two ranks, and other processes that obey what it wrote; ranks with other files."""

import json
import re

import pytest

from tests.conftest import gpus

pytestmark = pytest.mark.gpus(1)

AG, RS = "ag-256x512x1024", "rs-256x512x1024"


@pytest.mark.timeout(300)
def test_tune_writes_what_other_processes_obey(fresh, tmp_path):
    file = tmp_path / "tuning.json"
    ranks = fresh(2)
    argv = ["--rows", AG, RS, "--budget", "8", "--out", str(file)]
    answers = ranks.run("run_tune", argv=argv, timeout_s=180)
    assert [answer["status"] for answer in answers] == [0, 0], answers
    assert f"2 of 2 rows recorded in {file}" in answers[0]["said"]
    assert answers[1]["said"] == ""
    assert "WRONG" not in answers[0]["said"]
    print(answers[0]["said"])
    assert ranks.exits(30) == [0, 0]
    whole = json.loads(file.read_text())
    print(json.dumps(whole["records"]))
    shared = len(gpus()) < 2
    for record in whole["records"]:
        assert (record["world"], record["shared_gpus"]) == (2, shared)
        assert record["fused_us"] > 0
        assert record["xla_us"] > 0
        # Both outcomes, whatever this machine measured.
        record["xla_us"] = record["fused_us"] * (2 if record["op"] == "ag_matmul" else 0.5)
    file.write_text(json.dumps(whole))

    allow = {"JAX_FLUX_TUNING_SHARED": "1"} if shared else {}
    again = fresh(2, JAX_FLUX_TUNING=str(file), **allow)
    for name, words in ((AG, "us fused against"), (RS, "us by XLA against")):
        told = again.run("explained", name=name)
        assert told[0] == told[1]
        assert told[0]["source"] == str(file)
        print(told[0]["reason"])
        ran = again.run("obeyed", name=name, timeout_s=60)
        for row in ran:
            assert row["error"] < 2e-2
            assert any(reason.startswith("tuned: ") for reason in row["reasons"]), row
            assert any(words in reason for reason in row["reasons"]), row
    assert again.run("explained", name=AG)[0]["ran"] == "fused"
    assert again.exits(30) == [0, 0]


def test_ranks_with_other_files_are_told_on_the_host_and_by_the_kernels(fresh, tmp_path):
    for rank in range(2):
        text = f'{{"format": "jax_flux tuning", "version": 1, "records": [], "rank": {rank}}}'
        (tmp_path / f"{rank}.json").write_text(text)
    files = [str(tmp_path / f"{rank}.json") for rank in range(2)]
    ranks = fresh(2, JAX_FLUX_TUNING=files)
    answers = ranks.run("explained", name=AG, errors=True)
    told = [answer.error for answer in answers if answer.error]
    assert told, answers
    for text in told:
        assert re.search(r"TuningError.*process \d has tuning records .*Copy one file", text), text
    each = [("with_digest", {"name": AG, "digest": f"digest{rank}"}) for rank in range(2)]
    for answer in ranks.run_each(each, errors=True, timeout_s=60):
        assert answer.error, answer
        assert re.search(
            r"differ in the digest of the tuning tables.*Give every host the same tuning file",
            answer.error,
        ), answer
    assert ranks.exits(30) == [0, 0]
