# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

"""The timeline of one call of a rank alone, over the emulated link: `preset.py trace`.

Needs jax_flux on the path (PYTHONPATH=.), whose tools read and draw the trace. Draws what
`preset.py trace --json STEM` has kept, with notes where one wants them:

    python preset_trace.py STEM_ag_1024_w4.npz PICTURE.png [US,ROW,TEXT ...]
"""

import ast
import pathlib
import sys

import numpy as np

from jax_flux.tools import timeline, timeline_plot


def traced_call(library, name, op, row, world, rate, plan, calls=4):
    """(tracks, plan in words) of the last of some calls."""
    import torch  # not where pictures are drawn
    from preset_link import Calls, plan_text

    state = Calls(library, op, row, world, rate)
    call, ready, run = state.launcher(name, **plan)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    trace = torch.zeros(timeline.trace_bytes(sms), dtype=torch.uint8, device="cuda")
    call.trace = trace.data_ptr()
    for _ in range(calls):
        ready()
        trace.zero_()
        run()
    torch.cuda.synchronize()
    return timeline.decode(trace.cpu().numpy()), plan_text(call)


def trace_row(library, name, op, row, world, rate, plan, stem):
    """Prints where the time went; with a stem its spans go to a file, for pictures."""
    tracks, words = traced_call(library, name, op, row, world, rate, plan)
    about = {
        "row": f"{op}-{'x'.join(map(str, row))}", "world": world, "device": name,
        "label": f"emulated link of {rate:g} GB/s, one rank alone, plan: {words}",
    }  # fmt: skip
    head, body, notes = timeline_plot.summary({1: tracks}, about)
    print(head)
    for line in body:
        print("   " + "".join(c.ljust(10) if i < 2 else c.rjust(11)
                              for i, c in enumerate(line[:5])))  # fmt: skip
    print(*notes, sep="\n", flush=True)
    if stem:
        save(f"{stem}_{op}_{row[0]}_w{world}.npz", tracks, about)


def save(path, tracks, about):
    """Spans of every track in one array, with what they are of."""
    count = [len(t.spans) for t in tracks]
    heads = np.array([(t.cta, timeline.ROLES.index(t.role), t.sm, t.begin, n, t.lost)
                      for t, n in zip(tracks, count, strict=True)], np.int64)  # fmt: skip
    spans = np.concatenate([t.spans for t in tracks])
    np.savez_compressed(path, heads=heads, spans=spans, about=np.array(str(about)))


def load(path):
    """What `save` wrote: tracks, and what they are of in words."""
    stored = np.load(path)
    tracks, at = [], 0
    for cta, role, sm, begin, count, lost in stored["heads"].tolist():
        spans = stored["spans"][at : at + count]
        tracks.append(timeline.Track(cta, timeline.ROLES[role], sm, begin, spans, lost))
        at += count
    return tracks, ast.literal_eval(str(stored["about"]))


def main():
    source, target, *notes = sys.argv[1:]
    tracks, about = load(source)
    title = f"{about['row']}, W = {about['world']}: {about['label']}"
    placed = []
    for note in notes:
        us, row, text = note.split(",", 2)
        placed.append((float(us), float(row), text))
    timeline_plot.draw(tracks, title, pathlib.Path(target), 4, placed)


if __name__ == "__main__":
    main()
