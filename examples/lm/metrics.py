# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""``metrics.jsonl``: one JSON object per line, each with its step, written as the run goes.

{"step": 7, "loss": 3.1, "learning_rate": 0.004, "grad_norm": 0.9, "tokens_per_s": ..., ...}
{"step": 50, "held_out_loss": 2.2, "perplexity": 9.0}
{"step": 200, "parity": [{"dtype": "f32", "name": "loss", "error": ..., ...}, ...]}
{"step": 200, "samples": [{"prompt": "def ", "text": "..."}, ...]}
"""

import json
from pathlib import Path
from typing import Any

from lm import processes

NAME = "metrics.jsonl"


class Log:
    """Appends to the file; what a resumed run will do again is dropped from it."""

    def __init__(self, path: Path, *, resumed_from: int):
        self._path = path if processes.is_first() else None
        self.records: list[dict[str, Any]] = []
        if self._path is not None:
            for record in read(path) if resumed_from else []:
                if record["step"] <= resumed_from and {"loss", "held_out_loss"} & record.keys():
                    self.records.append(record)
            self._path.write_text("".join(json.dumps(record) + "\n" for record in self.records))

    def write(self, step: int, **values: Any) -> None:
        """Adds a line; it survives a kill of the process that comes later."""
        record = {"step": step, **values}
        self.records.append(record)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(record) + "\n")

    def series(self, name: str) -> dict[int, float]:
        """Values of that name by step."""
        return {r["step"]: r[name] for r in self.records if name in r}


def read(path: Path) -> list[dict[str, Any]]:
    """Records of a file, none where there is no file; a torn last line does not count."""
    records = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records
