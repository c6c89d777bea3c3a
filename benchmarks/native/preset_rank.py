# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

"""ctypes view of the preset library, and one rank with all that its peers would have sent."""

import ctypes
import time

import torch

MAX_WORLD = 8
EPOCH = 6  # epoch of the first call; its parity is 0
SITE = 0x5EED
POISON = float("nan")
FLAG_NS = 1800  # a store's acknowledgement over the link, then the flag: 3 x 0.6 us one way


PROBLEM_FIELDS = ("world", "rank", "batch", "rows", "columns", "depth")
PLAN_FIELDS = (
    *("raster_group", "sweep_segments", "chunk_rows", "chunk_depth", "depth_outer", "sm_margin"),
    *("push_peers", "push_ctas"),
    *("transport", "copies"),
)
COPY = {"transport": 1, "copies": 1}  # plan of a gather that copies carry
LAYOUT_FIELDS = (
    *("total", "epoch", "entries", "data", "ag_flags", "ag_row", "ag_count"),
    *("rs_flags", "rs_row", "rs_count", "ag_half0", "ag_half1", "rs_half0", "rs_half1"),
    *("copy_flags", "copy_row", "copy_count", "copy_data"),
)


ACTIVATIONS = {  # in the order of kernels::Activation
    None: lambda y: y,
    "relu": torch.relu,
    "gelu": lambda y: torch.nn.functional.gelu(y, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}


def dtype_of(name):
    return torch.float16 if "_f16_" in name else torch.bfloat16


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
        ("link", ctypes.c_void_p),
        ("trace", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("activation", ctypes.c_int32),
    ]


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        for name in ("plan", "layout", "touch", "launch"):
            getattr(self.lib, f"preset_{name}").restype = ctypes.c_char_p

    def instances(self, paced=False, traced=False):
        """Names of the product's instances, of those over the emulated link, with timestamps."""
        names = (ctypes.c_char_p * 64)()
        count = self.lib.preset_instances(names, 64)
        found = (names[i].decode() for i in range(count))
        return [n for n in found if (("_paced_" in n), ("_traced_" in n)) == (paced, traced)]

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


def paced_link(gb_per_s):
    """State of an emulated link (paced_link.cuh): eighths of a nanosecond, and 1 GB/s = 1 B/ns."""
    state = torch.zeros(18, dtype=torch.int64)
    state[16:17].view(torch.float64)[0] = 8 / gb_per_s
    state[17] = 8 * FLAG_NS
    return state.cuda()


class Rank:
    """One rank's call with everything its peers would have sent.

    With a link rate (GB/s; instances that pace only) their flags come as the own ones go.
    """

    def __init__(
        self, library, name, world, rank, batch, rows, columns, depth, plan=None, link=None,
        bias=False, activation=None,
    ):  # fmt: skip
        self.kernels, self.name = library, name
        self.op = name.rsplit("_", 1)[1]
        transpose = "_nt_" in name
        self.shape = (world, rank, batch, rows, columns, depth)
        self.call = PresetCall(
            instance=name.encode(), world=world, rank=rank, batch=batch, rows=rows,
            columns=columns, depth=depth, site=SITE, fail_ns=3_000_000_000,
            transport=(plan or {}).get("transport", 0),
        )  # fmt: skip
        self.kind = "copy" if self.call.transport else "rs" if self.op == "rs" else "ag"
        library.touch(name)
        library.plan(self.call)
        for key, value in (plan or {}).items():
            setattr(self.call, key, value)
        self.dtype = dtype_of(name)
        options = {"dtype": self.dtype, "device": "cuda"}
        scale = depth**-0.5
        self.w = torch.randn((columns, depth) if transpose else (depth, columns), **options) * scale
        self.wt = self.w.T if transpose else self.w  # [k, n]
        self.bias = torch.randn(columns, **options) if bias else None
        self.activation = activation
        self.call.bias = self.bias.data_ptr() if bias else None
        self.call.activation = list(ACTIVATIONS).index(activation)
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
        self.link = paced_link(link) if link else None
        self.call.link = self.link.data_ptr() if link else None
        if self.op != "plain":
            self._workspaces()

    def _workspaces(self):
        world, rank, batch, rows, columns, depth = self.shape
        self.layout = at = self.kernels.layout(self.call)
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
        width, kind = columns if self.op == "rs" else depth, self.kind
        for source in range(world):
            if source == rank or self.link is not None:
                continue
            row = at[f"{kind}_flags"] + source * at[f"{kind}_row"]
            self.words(own, row, at[f"{kind}_count"])[:] = EPOCH + 1
        if self.op == "rs":
            self.partials = [
                torch.randn(batch, rows, columns, dtype=self.dtype, device="cuda")
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
        copied = self.kind == "copy"
        offset = self.layout["copy_data" if copied else f"{self.kind}_half{parity}"]
        size = 2 * world * batch * rows * width
        return space[offset : offset + size].view(self.dtype).view(world, batch, rows, width)

    def endless(self):
        """Presets flags and entries for any number of calls."""
        if self.op == "plain":
            return
        world, rank = self.shape[:2]
        at, own, kind = self.layout, self.spaces[rank], self.kind
        for source in range(world):
            if source != rank:
                row = at[f"{kind}_flags"] + source * at[f"{kind}_row"]
                self.words(own, row, at[f"{kind}_count"])[:] = 1 << 40
                for parity in range(2):
                    self.words(own, at["entries"] + (2 * source + parity) * 128, 1)[0] = 1 << 40

    def finish(self, y):
        """What the kernel does to a sum, in y's dtype."""
        y = y if self.bias is None else y + self.bias.to(y.dtype)
        return ACTIVATIONS[self.activation](y)

    def launch(self):
        self.kernels.launch(self.call)

    def launcher(self, **plan):
        """A launch with some plan fields replaced that do not move flags."""
        call = PresetCall.from_buffer_copy(self.call)
        for key, value in plan.items():
            setattr(call, key, value)
        return lambda: self.kernels.launch(call)

    def epilogue(self, text):
        """Fields of a call that ends with `text`, "bias" or "bias+relu" ..."""
        _, _, activation = text.partition("+")
        if self.bias is None:
            self.bias = torch.randn(self.shape[4], dtype=self.dtype, device="cuda")
        index = list(ACTIVATIONS).index(activation or None)
        return {"bias": self.bias.data_ptr(), "activation": index}

    def withhold(self):
        """Takes the peers' data and flags back; deliver() brings them while the kernel waits."""
        world, rank, _, _, columns, depth = self.shape
        width, kind = columns if self.op == "rs" else depth, self.kind
        own, at = self.spaces[rank], self.layout
        slots = self.slots(own, EPOCH & 1, width)
        self.late, self.side = [], torch.cuda.Stream()
        for step in range(1, world):
            source = (rank - step) % world
            row = at[f"{kind}_flags"] + source * at[f"{kind}_row"]
            flags = self.words(own, row, at[f"{kind}_count"])
            self.late.append([(part, part.cpu().pin_memory()) for part in (slots[source], flags)])
            slots[source] = POISON
            flags[:] = EPOCH - 1
        # While the kernel waits nothing may be created: that would wait for the kernel.
        with torch.cuda.stream(self.side):
            scratch, source = torch.empty_like(flags), self.late[0][1][1]
            scratch.copy_(source, non_blocking=True)
        self.side.synchronize()

    def deliver(self, pause_s):
        """From pinned memory, so that copy engines do it: the kernel holds every SM."""
        with torch.cuda.stream(self.side):
            for parts in self.late:
                time.sleep(pause_s)
                for target, source in parts:
                    target.copy_(source, non_blocking=True)
        self.side.synchronize()

    def failure(self):
        """Fields of the fatal record (protocol/record.h): kind, wait, op, rank, peer, index."""
        return self.record.view(torch.int32)[16:22].tolist()
