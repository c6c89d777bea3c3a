# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

"""Paced link: overlap measured with one rank alone on one GPU, over an emulated link.

What a rank sends leaves at a given rate, and by symmetry of the ranks brings the peers' flags
(paced_link.cuh). All figures are emulated: no skew between ranks, one link per GPU.
"""

import itertools
import random
import statistics
import time

import torch
from preset_rank import EPOCH, SITE, PresetCall, Rank, paced_link
from preset_record import LAUNCHES

SLEEP_CYCLES = 300_000
UP = 1 << 40  # an epoch that no call reaches


def wire_us(op, row, world, rate):
    """Time for what one rank sends, at `rate` GB/s."""
    m, n, k = row
    return (world - 1) / world * m * (k if op == "ag" else n) * 2 / rate / 1000


class Calls:
    """Calls of one op and shape whose plans may move flags: they share tensors and workspaces."""

    def __init__(self, library, op, row, world, rate):
        self.kernels, self.op, self.world, self.rank = library, op, world, 1
        m, n, k = row
        self.problem = (world, self.rank, 1, m // world, n, k)
        options = {"dtype": torch.bfloat16, "device": "cuda"}
        self.full = torch.randn(m, k, **options)
        self.x = self.full[: m // world] if op == "ag" else self.full
        self.w = torch.randn(k, n, **options)
        self.y = torch.empty(m, n, **options)
        self.record = torch.zeros(64, dtype=torch.int64).pin_memory()
        self.link = paced_link(rate)
        half = m * (k if op == "ag" else n)
        # Random numbers wherever data may lie; the front, rewritten per call, has room for flags.
        self.spaces = [torch.randn(2 * half + (1 << 22), **options) for _ in range(world)]

    def launcher(self, name, **plan):
        """Functions that make the workspace ready for a plan's calls, and that enqueue one."""
        fields = dict(zip(("world", "rank", "batch", "rows", "columns", "depth"), self.problem,
                          strict=True))  # fmt: skip
        call = PresetCall(instance=name.encode(), site=SITE, fail_ns=2_000_000_000, **fields)
        self.kernels.touch(name)
        self.kernels.plan(call)
        for key, value in plan.items():
            setattr(call, key, value)
        call.x, call.w, call.y = (t.data_ptr() for t in (self.x, self.w, self.y))
        call.record = self.record.data_ptr()
        call.link = self.link.data_ptr()
        for rank, space in enumerate(self.spaces):
            call.base[rank] = space.data_ptr()
        front = self._front(self.kernels.layout(call), paced="_paced_" in name)
        own = self.spaces[self.rank].view(torch.uint8)[: front.numel()]
        return call, lambda: own.copy_(front), lambda: self.kernels.launch(call)

    def _front(self, at, paced):
        if at["total"] > 2 * self.spaces[0].numel():
            raise ValueError("the plan has more flags than the workspace has room for")
        front = torch.zeros(at["data"], dtype=torch.uint8)
        Rank.words(front, at["epoch"], 1)[0] = EPOCH - 1
        for source in range(self.world):
            for parity in range(2):
                entry = Rank.words(front, at["entries"] + (2 * source + parity) * 128, 2)
                entry[0], entry[1] = UP, SITE
            if not paced:
                row = at[f"{self.op}_flags"] + source * at[f"{self.op}_row"]
                Rank.words(front, row, at[f"{self.op}_count"])[:] = UP
        return front.cuda()


def plan_text(call):
    if call.instance.decode().endswith("ag"):
        outer = "k first" if call.depth_outer else "rows first"
        return (f"raster {call.raster_group} sweep {call.sweep_segments} chunk {call.chunk_rows}x"
                f"{call.chunk_depth} {outer} peers {call.push_peers} ctas "
                f"{min(call.push_ctas, 999)}")  # fmt: skip
    return f"raster {call.raster_group} sweep {call.sweep_segments}"


def measure(runs, repetitions, inner=LAUNCHES):
    """Samples in us of every entry (ready, run), interleaved."""
    samples = {key: [] for key in runs}
    for repetition in range(repetitions + 1):
        for key, (ready, run) in runs.items():
            ready()
            torch.cuda._sleep(SLEEP_CYCLES)  # the launches are queued when the clock starts
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(inner):
                run()
            end.record()
            end.synchronize()
            if repetition:  # the first one warms up
                samples[key].append(start.elapsed_time(end) * 1000 / inner)
    return samples


def medians(runs, repetitions):
    return {k: statistics.median(v) for k, v in measure(runs, repetitions).items()}


def plain_launcher(library, calls, row):
    """The unsplit GEMM of the product's own kernel."""
    name = next(n for n in library.instances() if "_bf16_nn_" in n and n.endswith("_plain"))
    call = PresetCall(instance=name.encode(), world=1, rank=0, batch=1, rows=row[0],
                      columns=row[1], depth=row[2])  # fmt: skip
    library.touch(name)
    library.plan(call)
    call.x, call.w, call.y = (t.data_ptr() for t in (calls.full, calls.w, calls.y))
    return lambda: library.launch(call)


def time_row(library, op, row, world, rate, wanted, repetitions=9):
    """Medians of one row: every paced instance with flags up and paced, cuBLAS, and plain."""
    calls = Calls(library, op, row, world, rate)
    nothing = lambda: None
    runs = {"cublas": (nothing, lambda: torch.mm(calls.full, calls.w, out=calls.y))}
    runs["plain"] = (nothing, plain_launcher(library, calls, row))
    plans = {}
    for paced in library.instances(paced=True):
        if not paced.endswith(f"_{op}") or (wanted and not any(w in paced for w in wanted)):
            continue
        name = paced.replace("_paced_", "_")
        call, *runs[f"{name} up"] = calls.launcher(name)
        plans[name] = plan_text(call)
        _, *runs[f"{name} paced"] = calls.launcher(paced)
    us = medians(runs, repetitions)
    return {
        "op": op, "m": row[0], "n": row[1], "k": row[2], "world": world,
        "wire_us": wire_us(op, row, world, rate), "cublas_us": us["cublas"],
        "plain_us": us["plain"],
        "instances": {
            name: {"up_us": us[f"{name} up"], "paced_us": us[f"{name} paced"], "plan": plan}
            for name, plan in plans.items()
        },
    }  # fmt: skip


def judge(record, peak):
    """Adds exposed time, E_wire and the ratio to the limit; `peak` in flop/us."""
    flops = 2 * record["m"] * record["n"] * record["k"]
    limit = record["limit_us"] = max(flops / peak, record["wire_us"])
    for values in record["instances"].values():
        exposed = values["paced_us"] - record["cublas_us"]
        values["ect_us"] = exposed
        values["e_wire"] = 1 - exposed / record["wire_us"]
        values["of_limit"] = limit / values["paced_us"]
        values["of_wire"] = values["paced_us"] / record["wire_us"]


def lines(record):
    head = f"{record['op']} {record['m']}x{record['n']}x{record['k']} W{record['world']}"
    yield (f"{head}: cublas {record['cublas_us']:.1f} plain {record['plain_us']:.1f} wire "
           f"{record['wire_us']:.1f} limit {record['limit_us']:.1f}")  # fmt: skip
    for name, v in sorted(record["instances"].items(), key=lambda item: item[1]["paced_us"]):
        short = name.removeprefix("sm90_bf16_nn_").rsplit("_", 1)[0]
        yield (f"   {short:22s} up {v['up_us']:7.1f} paced {v['paced_us']:7.1f} ECT "
               f"{v['ect_us']:6.1f} E_wire {v['e_wire']:6.3f} limit {v['of_limit']:.3f} "
               f"[{v['plan']}]")  # fmt: skip


def candidates(library, calls, op, wanted, grid):
    """Every instance with its default plan and every plan of the grid that it can run."""
    runs, text = {}, {}
    for name in library.instances(paced=True):
        if not name.endswith(f"_{op}") or (wanted and not any(w in name for w in wanted)):
            continue
        for values in [None, *itertools.product(*grid.values())]:
            plan = {} if values is None else dict(zip(grid, values, strict=True))
            try:
                call, *run = calls.launcher(name, **plan)
                run[0]()
                run[1]()  # says so if the kernel cannot
            except (ValueError, RuntimeError):
                continue
            _, *up = calls.launcher(name.replace("_paced_", "_"), **plan)
            runs[name, values] = (run, up)
            text[name, values] = plan_text(call) + ("" if values else " (default)")
    return runs, text


def search(library, op, row, world, rate, wanted, grid, seconds, keep=4):
    """Best plans of a grid under the paced link: all once, the better third again, and so on."""
    calls = Calls(library, op, row, world, rate)
    runs, text = candidates(library, calls, op, wanted, grid)
    keys = list(runs)
    random.Random(0).shuffle(keys)
    defaults = [key for key in keys if key[1] is None]
    samples = {key: [] for key in keys}
    end = time.monotonic() + seconds
    while True:
        for key, values in measure({key: runs[key][0] for key in keys}, 2, 1).items():
            samples[key] += values
        keys.sort(key=lambda key: statistics.median(samples[key]))
        if len(keys) <= keep or time.monotonic() > end:
            break
        keys = keys[: max(keep, len(keys) // 3)]
    keys = keys[:keep] + [key for key in defaults if key not in keys[:keep]]
    last = {"cublas": (lambda: None, lambda: torch.mm(calls.full, calls.w, out=calls.y))}
    for key in keys:
        last[key, "paced"], last[key, "up"] = runs[key]
    us = medians(last, 7)
    wire = wire_us(op, row, world, rate)
    print(f"{op} {'x'.join(map(str, row))} W{world}: cublas {us['cublas']:.1f} wire {wire:.1f}, "
          f"{len(runs)} plans")  # fmt: skip
    for key in sorted(keys, key=lambda key: us[key, "paced"]):
        paced, short = us[key, "paced"], key[0].removeprefix("sm90_paced_bf16_nn_")
        e_wire = 1 - (paced - us["cublas"]) / wire
        print(f"   {paced:7.1f} up {us[key, 'up']:7.1f} E_wire {e_wire:6.3f} "
              f"{short.rsplit('_', 1)[0]:20s} {text[key]}")  # fmt: skip
