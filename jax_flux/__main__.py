# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""``python -m jax_flux <tool> ...``; without a tool it lists them.

A tool is a module of ``jax_flux.tools`` with ``main(argv) -> exit status``, imported on demand.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from jax_flux._version import __version__

TOOLS = {
    "bench": "time the ops against XLA, and say how much communication is left to hide",
    "tune": "measure plans for given shapes and write the file that dispatch obeys",
    "doctor": "say what this machine offers, what is missing, and what an op would run here",
    "stress": "run randomly mixed calls with late ranks, and check every result",
    "trace": "one fused call's timeline per CTA and warp role, for Perfetto or as a picture",
}


def usage() -> str:
    """The text that lists the tools."""
    lines = [f"jax_flux {__version__}", "", "usage: python -m jax_flux <tool> [--help]", ""]
    return "\n".join(lines + [f"  {name:<8} {does}" for name, does in TOOLS.items()])


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one tool and returns its exit status; 2 for a tool that does not exist."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    name, *rest = arguments
    if name not in TOOLS:
        print(f"jax_flux: there is no tool {name!r}.\n\n{usage()}", file=sys.stderr)
        return 2
    status: int = importlib.import_module(f"jax_flux.tools.{name}").main(rest)
    return status


if __name__ == "__main__":
    sys.exit(main())
