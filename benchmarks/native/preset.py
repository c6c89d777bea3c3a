# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

"""Preset mode: one rank of the fused kernels alone on one GPU, checked and timed against cuBLAS.

Peers' workspaces lie in local memory, entries and flags are set to the call's epoch, peers' shards
or partials are filled in. So the kernel runs its whole path, pushes included, and never waits.
No link is involved: times say what the kernel costs, not what overlap gains.

    python preset.py LIBRARY check [INSTANCE ...]   each instance in a process of its own
    python preset.py LIBRARY time [--json FILE]     medians beside torch.mm in the same run
"""

import argparse
import ctypes
import json
import os
import signal
import sys
import time
import traceback

import torch

MAX_WORLD = 8
EPOCH = 6  # epoch of the first call; its parity is 0
SITE = 0x5EED
POISON = float("nan")
SLACK = 1.1  # error against float64, as a multiple of the unfused bf16 result's


PROBLEM_FIELDS = ("world", "rank", "batch", "rows", "columns", "depth")
PLAN_FIELDS = ("raster_group", "chunk_rows", "chunk_depth", "depth_outer", "sm_margin")
LAYOUT_FIELDS = (
    *("total", "epoch", "entries", "data", "ag_flags", "ag_row", "ag_count"),
    *("rs_flags", "rs_row", "rs_count", "ag_half0", "ag_half1", "rs_half0", "rs_half1"),
)


class PresetCall(ctypes.Structure):
    _fields_ = [
        ("instance", ctypes.c_char_p),
        *[(name, ctypes.c_int32) for name in PROBLEM_FIELDS + PLAN_FIELDS],
        ("x", ctypes.c_void_p),
        ("w", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("base", ctypes.c_void_p * MAX_WORLD),
        ("record", ctypes.c_void_p),
        ("site", ctypes.c_uint64),
        ("fail_ns", ctypes.c_uint64),
    ]


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        for name in ("plan", "layout", "touch", "launch"):
            getattr(self.lib, f"preset_{name}").restype = ctypes.c_char_p

    def instances(self):
        names = (ctypes.c_char_p * 64)()
        count = self.lib.preset_instances(names, 64)
        return [names[i].decode() for i in range(count)]

    def _check(self, error):
        if error:
            raise RuntimeError(error.decode())

    def touch(self, name):
        self._check(self.lib.preset_touch(name.encode()))

    def plan(self, call):
        self._check(self.lib.preset_plan(ctypes.byref(call)))

    def layout(self, call):
        out = (ctypes.c_uint64 * len(LAYOUT_FIELDS))()
        self._check(self.lib.preset_layout(ctypes.byref(call), out))
        return dict(zip(LAYOUT_FIELDS, out, strict=True))

    def launch(self, call):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self._check(self.lib.preset_launch(ctypes.byref(call), stream))


class Rank:
    """One rank's call with everything its peers would have sent."""

    def __init__(self, library, name, world, rank, batch, rows, columns, depth, plan=None):
        self.library, self.name = library, name
        self.op = name.rsplit("_", 1)[1]
        transpose = "_nt_" in name
        self.shape = (world, rank, batch, rows, columns, depth)
        self.call = PresetCall(
            instance=name.encode(), world=world, rank=rank, batch=batch, rows=rows,
            columns=columns, depth=depth, site=SITE, fail_ns=3_000_000_000,
        )  # fmt: skip
        library.touch(name)
        library.plan(self.call)
        for key, value in (plan or {}).items():
            setattr(self.call, key, value)
        options = {"dtype": torch.bfloat16, "device": "cuda"}
        scale = depth**-0.5
        self.w = torch.randn((columns, depth) if transpose else (depth, columns), **options) * scale
        self.wt = self.w.T if transpose else self.w  # [k, n]
        if self.op == "rs":
            self.x = torch.randn(batch, world, rows, depth, **options)
            self.y = torch.empty(batch, rows, columns, **options)
        else:
            self.shards = [torch.randn(batch, rows, depth, **options) for _ in range(world)]
            self.x = self.shards[rank]
            self.y = torch.empty(batch, world, rows, columns, **options)
        self.call.x, self.call.w = self.x.data_ptr(), self.w.data_ptr()
        self.call.y = self.y.data_ptr()
        self.record = torch.zeros(64, dtype=torch.int64).pin_memory()
        self.call.record = self.record.data_ptr()
        if self.op != "plain":
            self._workspaces()

    def _workspaces(self):
        world, rank, batch, rows, columns, depth = self.shape
        self.layout = at = self.library.layout(self.call)
        self.spaces = []
        for r in range(world):
            space = torch.full((at["total"],), 0xFF, dtype=torch.uint8, device="cuda")
            space[: at["data"]] = 0
            self.spaces.append(space)
            self.call.base[r] = space.data_ptr()
        own = self.spaces[rank]
        self.words(own, at["epoch"], 1)[0] = EPOCH - 1
        for source in range(world):
            for parity in range(2):
                if source != rank:
                    entry = self.words(own, at["entries"] + (2 * source + parity) * 128, 2)
                    entry[0], entry[1] = EPOCH + parity, SITE
        width, kind = (columns, "rs") if self.op == "rs" else (depth, "ag")
        for source in range(world):
            if source == rank:
                continue
            row = at[f"{kind}_flags"] + source * at[f"{kind}_row"]
            self.words(own, row, at[f"{kind}_count"])[:] = EPOCH + 1
        if self.op == "rs":
            self.partials = [
                torch.randn(batch, rows, columns, dtype=torch.bfloat16, device="cuda")
                for _ in range(world)
            ]
        sent = self.partials if self.op == "rs" else self.shards
        for parity in range(2):
            slots = self.slots(own, parity, width)
            for source in range(world):
                if source != rank:
                    slots[source] = sent[source]

    @staticmethod
    def words(space, offset, count):
        return space[offset : offset + 8 * count].view(torch.int64)

    def slots(self, space, parity, width):
        world, _, batch, rows, _, _ = self.shape
        kind = "rs" if self.op == "rs" else "ag"
        offset = self.layout[f"{kind}_half{parity}"]
        size = 2 * world * batch * rows * width
        return space[offset : offset + size].view(torch.bfloat16).view(world, batch, rows, width)

    def endless(self):
        """Presets flags and entries for any number of calls."""
        if self.op == "plain":
            return
        world, rank = self.shape[:2]
        at, own = self.layout, self.spaces[rank]
        kind = "rs" if self.op == "rs" else "ag"
        for source in range(world):
            if source != rank:
                row = at[f"{kind}_flags"] + source * at[f"{kind}_row"]
                self.words(own, row, at[f"{kind}_count"])[:] = 1 << 40
                for parity in range(2):
                    self.words(own, at["entries"] + (2 * source + parity) * 128, 1)[0] = 1 << 40

    def launch(self):
        self.library.launch(self.call)

    def launcher(self, **plan):
        """A launch with some plan fields replaced that do not move flags."""
        call = PresetCall.from_buffer_copy(self.call)
        for key, value in plan.items():
            setattr(call, key, value)
        return lambda: self.library.launch(call)

    def failure(self):
        fields = self.record.view(torch.int32).tolist()
        return f"record: fatal kind/wait/op/rank/peer/index {fields[20:28]} all {fields[:48]}"


def relative_error(value, exact):
    return ((value.double() - exact).norm() / exact.norm()).item()


def first_bad(value, exact, tolerance=0.05):
    bad = ((value.double() - exact).abs() > tolerance * (1 + exact.abs())) | value.isnan()
    where = bad.nonzero()
    lines = [f"{len(where)} of {bad.numel()} bad, shape {tuple(value.shape)}"]
    for index in where[:4].tolist() + where[-2:].tolist():
        at = tuple(index)
        lines.append(f"  {at}: got {value[at].item():.4f} want {exact[at].item():.4f}")
    return "\n".join(lines)


def expect_close(what, value, exact, reference):
    ours, theirs = relative_error(value, exact), relative_error(reference, exact)
    if not ours <= SLACK * theirs:
        raise AssertionError(f"{what}: error {ours:.3e}, unfused {theirs:.3e}\n"
                             + first_bad(value, exact))  # fmt: skip
    return ours / theirs


def expect_equal(what, value, exact):
    if not torch.equal(value, exact):
        where = (value != exact).nonzero()
        at = tuple(where[0].tolist())
        raise AssertionError(f"{what}: {len(where)} of {value.numel()} differ, first {at}: got "
                             f"{value[at].item()} want {exact[at].item()}")  # fmt: skip


def check_results(state, parity):
    world, rank, _, _, columns, depth = state.shape
    w64 = state.wt.double()
    if state.op != "rs":
        exact = torch.stack([x.double() @ w64 for x in state.shards], 1)
        unfused = torch.stack([x @ state.wt for x in state.shards], 1)
        ratio = expect_close("y", state.y, exact, unfused)
        if state.op == "ag":
            for peer in range(world):
                if peer != rank:
                    slot = state.slots(state.spaces[peer], parity, depth)[rank]
                    expect_equal(f"pushed shard at {peer}", slot.view(torch.int16),
                                 state.x.view(torch.int16))  # fmt: skip
        return ratio
    others = [r for r in range(world) if r != rank]
    exact = state.x[:, rank].double() @ w64 + sum(state.partials[r].double() for r in others)
    unfused = (
        state.x[:, rank].float() @ state.wt.float() + sum(state.partials[r].float() for r in others)
    ).bfloat16()
    ratio = expect_close("y", state.y, exact, unfused)
    for peer in others:
        slot = state.slots(state.spaces[peer], parity, columns)[rank]
        ratio = max(ratio, expect_close(f"partial at {peer}", slot, state.x[:, peer].double() @ w64,
                                        state.x[:, peer] @ state.wt))  # fmt: skip
    return ratio


def check_protocol(state, epoch):
    world, rank = state.shape[:2]
    at = state.layout
    control = state.words(state.spaces[rank], 0, 16 * 8).cpu()[::16].tolist()
    if control != [epoch, 0, 0, 0, 0, 0, 0, 0]:
        raise AssertionError(f"control words {control}, expected epoch {epoch} and zeros")
    kind = "rs" if state.op == "rs" else "ag"
    for peer in range(world):
        if peer == rank:
            continue
        space = state.spaces[peer]
        row = at[f"{kind}_flags"] + rank * at[f"{kind}_row"]
        flags = state.words(space, row, at[f"{kind}_count"])
        expect_equal(f"flags at {peer}", flags, torch.full_like(flags, epoch))
        entry = state.words(space, at["entries"] + (2 * rank + (epoch & 1)) * 128, 2).tolist()
        if entry != [epoch, SITE]:
            raise AssertionError(f"entry at {peer}: {entry}")


def check_case(library, name, case):
    state = Rank(library, name, **case)
    ratio = 0.0
    first = None
    for call in range(2 if state.op != "plain" else 1):
        state.y.fill_(POISON)
        state.launch()
        torch.cuda.synchronize()
        ratio = max(ratio, check_results(state, (EPOCH + call) & 1))
        if state.op != "plain":
            check_protocol(state, EPOCH + call)
        if first is not None:
            expect_equal("second call", state.y.view(torch.int16), first.view(torch.int16))
        first = state.y.clone()
    return ratio


def cases(op):
    """Ragged rows, batches, edges of n and k, every world."""
    shapes = [  # batch, rows, columns, depth
        (1, 128, 192, 64), (1, 256, 384, 512), (1, 1, 8, 8), (1, 7, 200, 72), (1, 130, 1000, 520),
        (2, 300, 776, 1000), (3, 129, 1544, 264), (1, 513, 4096, 2048), (2, 1024, 768, 1152),
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
    if op != "plain":
        yield {"world": 2, "rank": 1, "batch": 1, "rows": 640, "columns": 2048, "depth": 512,
               "plan": {"sm_margin": 130}}  # fmt: skip


def in_child(seconds, body):
    """Runs body in a forked process (CUDA starts there) and ends it after `seconds`."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            body()
            code = 0
        except BaseException:  # the child reports and ends, whatever happened
            print(traceback.format_exc()[-1500:])
            code = 1
        sys.stdout.flush()
        os._exit(code)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    print(f"  HUNG: killed after {seconds} s")
    return -9


def check(path, wanted, seconds):
    names = [n for n in Library(path).instances() if not wanted or any(w in n for w in wanted)]
    failed = []

    def body(name):
        torch.manual_seed(0)
        torch.backends.cuda.matmul.allow_tf32 = False
        library = Library(path)
        done, worst = 0, 0.0
        for case in cases(name.rsplit("_", 1)[1]):
            try:
                worst = max(worst, check_case(library, name, case))
                done += 1
            except AssertionError as error:
                print(f"  FAIL {name} {case}\n    {error}")
            except Exception:
                print(f"  DIED {name} {case} after {done} good")
                raise
        print(f"{name}: {done} cases good, worst error ratio {worst:.3f}")
        if done != len(list(cases(name.rsplit("_", 1)[1]))):
            raise SystemExit(1)

    for name in names:
        if in_child(seconds, lambda name=name: body(name)) != 0:
            failed.append(name)
    print(f"check: {len(names) - len(failed)} of {len(names)} instances good; failed: {failed}")
    return failed


SHAPES = [  # m over all ranks, n, k
    (1024, 6144, 12288), (8192, 6144, 12288), (1024, 12288, 6144), (8192, 12288, 6144),
    (8192, 4096, 8192), (8192, 8192, 4096),
]  # fmt: skip


def measure(runs, repetitions=9, inner=3):
    """Medians in us of every entry, interleaved."""
    for run in runs.values():
        run()
    torch.cuda.synchronize()
    samples = {key: [] for key in runs}
    for _ in range(repetitions):
        for key, run in runs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(inner):
                run()
            end.record()
            end.synchronize()
            samples[key].append(start.elapsed_time(end) * 1000 / inner)
    return {key: sorted(values)[len(values) // 2] for key, values in samples.items()}


def time_shape(library, names, shape, worlds, rasters):
    m, n, k = shape
    x = torch.randn(m, k, dtype=torch.bfloat16, device="cuda")
    w = torch.randn(k, n, dtype=torch.bfloat16, device="cuda")
    wt = torch.randn(n, k, dtype=torch.bfloat16, device="cuda")
    y = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    runs = {
        "cublas nn": lambda: torch.mm(x, w, out=y),
        "cublas nt": lambda: torch.mm(x, wt.T, out=y),
    }
    for name in names:
        op = name.rsplit("_", 1)[1]
        for world in [1] if op == "plain" else worlds:
            state = Rank(library, name, world, min(1, world - 1), 1, m // world, n, k)
            state.endless()
            label = f"{name.removeprefix('sm90_bf16_')} W{world}"
            for group in rasters or [state.call.raster_group]:
                runs[f"{label} g{group}"] = state.launcher(raster_group=group)
    return measure(runs)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("mode", choices=["check", "time"])
    parser.add_argument("names", nargs="*", help="parts of instance names; all by default")
    parser.add_argument("--json")
    parser.add_argument("--worlds", type=int, nargs="*", default=[2, 8])
    parser.add_argument("--rasters", type=int, nargs="*", help="instead of the plan's")
    parser.add_argument("--seconds", type=float, default=25)
    arguments = parser.parse_args()
    if arguments.mode == "check":
        sys.exit(bool(check(arguments.library, arguments.names, arguments.seconds)))

    results = []

    def body(shape):
        library = Library(arguments.library)
        names = [n for n in library.instances()
                 if not arguments.names or any(w in n for w in arguments.names)]  # fmt: skip
        medians = time_shape(library, names, shape, arguments.worlds, arguments.rasters)
        print(f"m, n, k = {shape}")
        keys = list(medians)
        if arguments.rasters:  # only the fastest raster of each
            best = {}
            for key in keys:
                stem = key.rsplit(" g", 1)[0]
                if stem not in best or medians[key] < medians[best[stem]]:
                    best[stem] = key
            keys = list(best.values())
        for key in keys:
            value = medians[key]
            base = medians["cublas nt" if " nt" in f" {key.replace('_', ' ')}" else "cublas nn"]
            print(f"  {key:45s} {value:8.1f} us  {base / value:.3f} of cuBLAS")
        if arguments.json:
            with open(arguments.json, "a") as file:
                file.write(json.dumps({"shape": shape, "us": medians}) + "\n")

    for shape in SHAPES:
        results.append(in_child(arguments.seconds, lambda shape=shape: body(shape)))
    sys.exit(any(results))


if __name__ == "__main__":
    main()
