# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

"""The flags of preset.py, and the shapes, instances and calls that they pick.

Needs neither torch nor a GPU, so a CPU test holds the records' commands to the records.
"""

import argparse
import os

SHAPES = [  # m over all ranks, n, k
    *((m, n, k) for m in (16, 64, 128, 256, 512) for n, k in ((6144, 12288), (12288, 6144))),
    (1024, 6144, 12288), (8192, 6144, 12288), (1024, 12288, 6144), (8192, 12288, 6144),
    (8192, 4096, 8192), (8192, 8192, 4096),
]  # fmt: skip
LINKED = {  # m over all ranks, n and k per rank
    "ag": [
        (1024, 6144, 12288), (2048, 6144, 12288), (4096, 6144, 12288), (8192, 6144, 12288),
        (8192, 2048, 4096), (8192, 4096, 8192), (2048, 4096, 4096),
    ],
    "rs": [
        (1024, 12288, 6144), (2048, 12288, 6144), (4096, 12288, 6144), (8192, 12288, 6144),
        (8192, 4096, 2048), (8192, 8192, 4096), (4096, 4096, 4096),
    ],
}  # fmt: skip
PACKED_ROWS = 128  # of one rank, at most
EPILOGUES = ("bias", "bias+relu", "bias+gelu", "bias+silu")


def _plan_fields(text):
    return {key: int(value) for key, value in (part.split("=") for part in text.split(","))}


def _grid_field(text):
    key, values = text.split("=")
    return key, [int(value) for value in values.split(",")]


def parser(description):
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("preset", metavar="library", help="libpreset.so, built by Bazel")
    add("mode", choices=["check", "waits", "time", "search", "trace"])
    add("names", nargs="*", help="parts of instance names; all by default")
    add("--without", nargs="*", default=[], metavar="PART",
        help="time without --link: no instance whose name has one of these parts")  # fmt: skip
    add(
        "--json",
        type=os.path.expanduser,
        metavar="FILE",
        help="time: the record, written as a whole at the end; trace: the stem of its files",
    )
    add("--commit", default="unknown", help="of the library, for the record")
    add("--worlds", type=int, nargs="*", default=[2, 8])
    add(
        "--plan",
        type=_plan_fields,
        nargs="*",
        metavar="FIELD=N[,FIELD=N]",
        help="variants of the default plan: fields that do not move flags, and transport "
        "(0 tma, 1 copy), copies (1: of the own shard too, before the GEMM)",
    )
    add("--epilogues", choices=EPILOGUES, nargs="*", default=[],
        help="also time with a bias and maybe an activation (rs: the first of these)")  # fmt: skip
    add("--rows", type=int, nargs="*", help="only shapes of these m")
    add("--columns", type=int, nargs="*", help="only shapes of these n")
    add("--repetitions", type=int, default=9, help="time")
    add("--seconds", type=float, default=25, help="before a process with a part is ended")
    add("--link", type=float, metavar="GB_PER_S", help="pace of an emulated link")
    add("--grid", type=_grid_field, nargs="*", metavar="FIELD=N,N,...",
        help="search: plan fields and their values")  # fmt: skip
    add("--budget", type=float, default=60, help="search: seconds for all rows")
    return parser


def shapes(arguments):
    """Those of `time` without a link."""
    return [s for s in SHAPES if _picked(arguments, s)]


def linked_rows(arguments):
    """(op, row) of the paced tables that the flags pick."""
    for op, rows in LINKED.items():
        if not arguments.names or any(f"_{op}" in name for name in arguments.names):
            yield from ((op, row) for row in rows if _picked(arguments, row))


def _picked(arguments, shape):
    m, n, _ = shape
    return (not arguments.rows or m in arguments.rows) and (
        not arguments.columns or n in arguments.columns
    )


def instances(arguments, names):
    """Those of `names` that the flags pick."""
    has = lambda name, parts: any(part in name for part in parts)
    wanted = (n for n in names if not arguments.names or has(n, arguments.names))
    return [n for n in wanted if not has(n, arguments.without)]


def linked_parts(arguments):
    """Parts of instance names, without those that stand for an op."""
    return [name for name in arguments.names if name not in ("_ag", "_rs")]


def calls(names, m, worlds):
    """(instance, world, its label in a record) of every call with m rows over all ranks."""
    for name in names:
        for world in [1] if name.endswith("_plain") else worlds:
            if "_pack_" not in name or m // world <= PACKED_ROWS:
                yield name, world, f"{name.removeprefix('sm90_')} W{world}"
