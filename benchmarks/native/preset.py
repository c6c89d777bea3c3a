# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

"""Preset mode: one rank of the fused kernels alone on one GPU, checked and timed against cuBLAS.

Peers' workspaces lie in local memory, entries and flags are set to the call's epoch, peers' shards
or partials are filled in. So the kernel runs its whole path, pushes included, and never waits.
No link is involved: times say what the kernel costs, not what overlap gains.

    python preset.py LIBRARY check [INSTANCE ...]   each instance in a process of its own
    python preset.py LIBRARY waits [INSTANCE ...]   the same with peers that come late, or never
    python preset.py LIBRARY time [PART ...]        medians beside torch.mm in the same run

time writes a record with --json FILE; benchmarks/README.md has the commands of those that are kept.

With --link GB_PER_S the peers' flags come at the pace of an emulated link (preset_link.py): check
and time measure overlap then, and `search` tries a grid of plans:

    python preset.py LIBRARY time --link 350 --json FILE --worlds 2 4 8
    python preset.py LIBRARY search _ag --link 350 --rows 1024 --grid chunk_rows=64,128 push_ctas=32
    python preset.py LIBRARY trace _ag --link 350 --rows 1024 --worlds 4 --json STEM
"""

import sys

import preset_flags


def main():
    parser = preset_flags.parser(__doc__)
    arguments = parser.parse_args()
    if arguments.mode in ("search", "trace") and not arguments.link:
        parser.error(f"{arguments.mode} wants --link GB_PER_S: without a link nothing waits")
    if arguments.without and (arguments.mode != "time" or arguments.link):
        parser.error("--without is for time without --link")
    # These want torch, without which the flags can still be read.
    import preset_time
    from preset_cases import cases, late_cases
    from preset_check import check, check_deadline

    if arguments.mode == "search":
        sys.exit(preset_time.search_linked(arguments))
    if arguments.mode == "trace":
        sys.exit(preset_time.trace_linked(arguments))
    if arguments.mode == "time" and arguments.link:
        sys.exit(preset_time.time_linked(arguments))
    if arguments.mode == "time":
        sys.exit(preset_time.time_unlinked(arguments))
    if arguments.mode == "check" and arguments.link:

        def paced(op):
            # Copy engines send past the emulated link.
            pushed = (c for c in cases(op) if not c.get("plan", {}).get("transport"))
            return ({**case, "link": arguments.link} for case in pushed)

        sys.exit(bool(check(arguments.preset, arguments.names, arguments.seconds, paced, True)))
    if arguments.mode == "check":
        sys.exit(bool(check(arguments.preset, arguments.names, arguments.seconds, cases)))
    failed = check(arguments.preset, arguments.names, arguments.seconds, late_cases)  # waits
    sys.exit(bool(failed + check_deadline(arguments.preset)))


if __name__ == "__main__":
    main()
