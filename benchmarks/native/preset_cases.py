# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

"""The calls that preset.py's modes check and waits run, by instance."""

from preset_rank import COPY


def packed_cases(op):
    """Short segments, several to a tile: ragged rows, batches, every world, edges of n and k."""
    worlds = [(2, 0), (3, 1), (8, 5), (4, 3), (8, 7), (2, 1), (5, 4)]
    widths = [(8, 8), (200, 72), (1000, 520), (1544, 264), (392, 64), (6144, 192), (768, 2056)]
    for number, rows in enumerate((1, 7, 8, 9, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128)):
        for turn in range(3):
            world, rank = worlds[(number + 3 * turn) % len(worlds)]
            columns, depth = widths[(number + 2 * turn + turn) % len(widths)]
            yield {"world": world, "rank": rank, "batch": 1 + turn % 2, "rows": rows,
                   "columns": columns, "depth": depth}  # fmt: skip
    # Many tiles per cluster: on few SMs, and with fewer and more k blocks than stages.
    base = {"world": 8, "rank": 2, "batch": 1, "columns": 2048}
    for rows, depth in ((8, 64), (16, 192), (20, 256), (32, 320), (64, 512), (128, 1152)):
        yield {**base, "rows": rows, "depth": depth, "plan": {"sm_margin": 128}}
    if op == "ag":  # small chunks, both orders
        base = {"world": 3, "rank": 2, "batch": 2, "rows": 100, "columns": 640, "depth": 1544}
        for outer in (0, 1):
            yield {**base, "plan": {"chunk_rows": 64, "chunk_depth": 256, "depth_outer": outer}}


def cases(name):
    """Ragged rows, batches, edges of n and k, every world."""
    op = name.rsplit("_", 1)[1]
    if "_pack_" in name:
        yield from packed_cases(op)
        return
    shapes = [  # batch, rows, columns, depth
        (1, 128, 192, 64), (1, 256, 384, 512), (1, 1, 8, 8), (1, 7, 200, 72), (1, 130, 1000, 520),
        (2, 300, 776, 1000), (3, 129, 1544, 264), (1, 513, 4096, 2048), (2, 1024, 768, 1152),
        # Several tiles of 3 and 4 blocks of k per cluster: two tiles in the stages at once.
        (1, 1024, 6144, 192), (1, 1024, 6144, 256),
    ]  # fmt: skip
    worlds = [(1, 0)] if op == "plain" else [(2, 0), (3, 1), (4, 3), (8, 5), (2, 1)]
    keys = ("batch", "rows", "columns", "depth")
    for number, shape in enumerate(shapes):
        picked = worlds if number in (3, 5) else [worlds[number % len(worlds)]]
        for world, rank in picked:
            yield {"world": world, "rank": rank, **dict(zip(keys, shape, strict=True))}
    if op == "ag":  # small chunks, both orders; few SMs
        base = {"world": 3, "rank": 2, "batch": 2, "rows": 200, "columns": 640, "depth": 1544}
        for outer in (0, 1):
            yield {**base, "plan": {"chunk_rows": 64, "chunk_depth": 256, "depth_outer": outer}}
        # Copied: one piece, pieces across batches and tiles, more pieces than rows of a tile.
        for rows in (None, 72, 1):
            yield {**base, "plan": {**COPY, **({"chunk_rows": rows} if rows else {})}}
        yield {"world": 2, "rank": 1, "batch": 1, "rows": 1024, "columns": 776, "depth": 1152,
               "plan": {**COPY, "chunk_rows": 128}}  # fmt: skip
        yield {"world": 8, "rank": 3, "batch": 2, "rows": 130, "columns": 200, "depth": 72,
               "plan": {**COPY, "sm_margin": 130}}  # fmt: skip
    # Bias and activation: ragged columns, several tiles, batches.
    world = worlds[0]
    base = {"world": world[0], "rank": world[1], "batch": 2, "rows": 300, "depth": 264}
    for activation in (None, "relu", "gelu", "silu") if op != "rs" else (None,):
        for bias, columns in ((True, 1544), (False, 776)):
            if bias or activation:
                yield {**base, "columns": columns, "bias": bias, "activation": activation}
    # Many tiles per cluster, fewer and more k blocks than stages.
    base = {"world": 1 if op == "plain" else 2, "rank": 0, "batch": 1, "rows": 640}
    for depth in (64, 192, 256, 320, 512):
        yield {**base, "columns": 2048, "depth": depth, "plan": {"sm_margin": 128}}
    if op != "plain":
        yield {"world": 2, "rank": 1, "batch": 1, "rows": 640, "columns": 2048, "depth": 512,
               "plan": {"sm_margin": 130}}  # fmt: skip
        # More partials than the last tile has slots and stages for, at one to four clusters.
        for world, rank, margin in ((8, 2, 130), (8, 7, 128), (5, 0, 126), (3, 1, 124)):
            yield {"world": world, "rank": rank, "batch": 1, "rows": 260, "columns": 1544,
                   "depth": 264, "plan": {"sm_margin": margin}}  # fmt: skip


def late_cases(name):
    """Peers that come while the kernel waits; on all SMs and on few."""
    base = {"world": 3, "rank": 1, "batch": 2, "rows": 300, "columns": 1544, "depth": 2056}
    op = name.rsplit("_", 1)[1]
    packed = "_pack_" in name
    for rows in (1, 20, 40, 128) if packed else (300,):
        for plan in ({}, {"sm_margin": 128 if packed else 130}):
            if op != "plain":
                yield {**base, "rows": rows, "plan": plan, "late": True}
            if op == "ag" and not packed:
                yield {**base, "plan": {**plan, **COPY}, "late": True}
