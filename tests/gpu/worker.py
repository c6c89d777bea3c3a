# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""One process of `ranks.Ranks`: reads cases from stdin, answers on stdout, logs to stderr.

Usage: python -m tests.gpu.worker PROCESS PROCESSES DEVICES PORT
"""

import faulthandler
import json
import signal
import sys
import time
import traceback
from typing import Any

_MARK = "@@jax_flux "


def _answer(value: Any, error: str | None, seconds: float) -> None:
    sys.stdout.write(
        _MARK + json.dumps({"value": value, "error": error, "seconds": seconds}) + "\n"
    )
    sys.stdout.flush()


def main() -> None:
    process, processes, devices, port = (int(part) for part in sys.argv[1:5])
    faulthandler.register(signal.SIGUSR1)
    import jax

    if processes > 1:
        jax.distributed.initialize(
            f"127.0.0.1:{port}",
            num_processes=processes,
            process_id=process,
            local_device_ids=[0],
            # A rank that died must not take the others down before our own deadline speaks.
            heartbeat_timeout_seconds=600,
            shutdown_timeout_seconds=5,
        )
    found = len(jax.devices())
    if found < processes * devices:
        raise SystemExit(f"{found} devices, not {processes * devices}")
    from tests.gpu import cases, gemm_cases, gradient_cases, mixed_cases, tuning_cases

    cases.register()
    _answer(found, None, 0.0)
    for line in sys.stdin:
        request = json.loads(line)
        start = time.monotonic()
        value, error = None, None
        try:
            modules = (cases, gemm_cases, gradient_cases, mixed_cases, tuning_cases)
            module = next(m for m in modules if hasattr(m, request["case"]))
            value = getattr(module, request["case"])(**request["arguments"])
        except Exception as raised:
            traceback.print_exc()
            error = f"{type(raised).__name__}: {raised}"
        _answer(value, error, time.monotonic() - start)


if __name__ == "__main__":
    main()
