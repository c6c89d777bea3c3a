# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

"""The records of `preset.py time`: their rows, what they say of the run, and how they are kept.

Needs neither torch nor a GPU. What the records look like: benchmarks/results/*_h200.json.
"""

import datetime
import functools
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile

LAUNCHES = 3  # of one repetition, one after the other


def times(repetitions):
    return f"medians in us of {repetitions} x {LAUNCHES} launches"


def gather(bodies, run):
    """Rows that the named bodies yield, and the names of those that failed.

    `run(body)` runs one in a process of its own, so rows come through a file, each when it is done.
    """
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        part = pathlib.Path(folder, "rows.jsonl")
        part.touch()
        for name, body in bodies.items():
            if run(functools.partial(_append, part, body)):
                failed.append(name)
        return [json.loads(line) for line in part.read_text().splitlines()], failed


def _append(part, body):
    for row in body():
        with part.open("a") as file:
            file.write(json.dumps(row) + "\n")


def row(shape, us):
    """One of `time` without a link; `us` has a median per label."""
    m, n, k = shape
    return {"m": m, "n": n, "k": k, "us": {label: round(value, 1) for label, value in us.items()}}


def gpu():
    """What nvidia-smi says of the first GPU; empty where it says nothing: the times are kept."""
    query = "name,driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu"
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    said = answer.stdout.strip()
    return dict(zip(query.split(","), said.split(", "), strict=False)) if said else {}


def taken(arguments, torch, failed):
    """How and when, and the parts that a record lacks because they failed."""
    said = {
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": arguments.commit,
    }
    return {**said, "failed": failed} if failed else said


def command():
    return shlex.join(["python", "benchmarks/native/preset.py", *sys.argv[1:]])


def unlinked(rows, arguments, torch, failed, card):
    return {
        "what": "preset mode: one rank of the fused kernels alone, its peers' workspaces in local "
        f"memory, every flag up, no link; {times(arguments.repetitions)}, interleaved with "
        "torch.mm (cuBLAS) in one process; m over all ranks, n and k per GPU",
        "label": "preset: no link",
        "command": command(),
        "machine": f"one {card.get('name', 'unknown GPU')}",
        "driver": card.get("driver_version", "unknown"),
        **taken(arguments, torch, failed),
        "rows": rows,
    }  # fmt: skip


def linked(rows, arguments, torch, failed, card, peak):
    return {
        "label": "emulated: one rank alone, its peers by symmetry, one link of the given rate",
        "link_gb_per_s": arguments.link,
        "command": command(),
        "gpu_after_the_run": card,
        **taken(arguments, torch, failed),
        "times": f"{times(arguments.repetitions)}, all of a row in turns",
        "peak_tflops": peak / 1e6,
        "rows": rows,
    }


def write(path, record):
    """Never half a record, whenever it is killed."""
    path = pathlib.Path(path)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(record, indent=1) + "\n")
    part.replace(path)
