# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The devices of `bench` and `tune`: one process or several, GPUs that are distinct or shared."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import socket
import sys
import zlib
from typing import Any

import jax
import numpy as np

from jax_flux import _compat

AXIS = "tp"  # the ops' axis; other axes of the mesh hold copies of the group
CPU_DEVICES = 4
_COUNT_FLAG = "--xla_force_host_platform_device_count"
REAL, SHARED, CPU = "one GPU per rank", "ranks share a GPU", "CPU devices, smoke sizes"


@dataclasses.dataclass(frozen=True)
class Group:
    """``label`` is REAL, SHARED or CPU (with what its times are worth); ``mesh`` has `AXIS`."""

    mesh: jax.sharding.Mesh
    label: str
    note: str

    @property
    def world(self) -> int:
        """Number of ranks of one op, W."""
        return int(self.mesh.shape[AXIS])

    @property
    def axes(self) -> tuple[str, ...]:
        """Every axis of the mesh; what is sharded over all of them differs on every device."""
        return tuple(self.mesh.axis_names)

    @property
    def on_gpu(self) -> bool:
        """Whether the ranks are GPUs."""
        return self.label != CPU


class GroupError(Exception):
    """The devices make no group to measure; the text says why and what to do."""

    status = 1  # of the tool that ends by it


class FlagError(GroupError):
    """A flag that these devices do not fit, which is known only when they are."""

    status = 2


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of the group: the mesh, and one process per GPU."""
    parser.add_argument(
        "--mesh",
        type=parse_mesh,
        metavar="A=N,B=N",
        help=f"axes of the mesh; the ops run over {AXIS} in every group at once: dp=2,{AXIS}=4, or "
        f"{AXIS}=4,dp=2 for groups of devices that are not neighbours (default all {AXIS})",
    )
    parser.add_argument(
        "--axis-size",
        type=int,
        metavar="W",
        help=f"ranks of one op: --mesh dp=N/W,{AXIS}=W on all N devices",
    )
    flags = parser.add_argument_group(
        "one process per GPU", "every process runs the same command; process 0 prints"
    )
    flags.add_argument("--coordinator", metavar="HOST:PORT", help="address of process 0")
    flags.add_argument("--processes", type=int, metavar="N", help="number of processes")
    flags.add_argument("--process", type=int, metavar="I", help="this process, 0 to N - 1")
    flags.add_argument(
        "--gpu", type=int, metavar="G", help="this process's GPU, of the visible ones (default all)"
    )
    flags.add_argument(
        "--distributed", action="store_true", help="let jax.distributed ask SLURM or MPI instead"
    )


def parse_mesh(text: str) -> dict[str, int]:
    """Axis sizes in order. Raises argparse's error for anything else."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        if not name.isidentifier() or name in sizes or not size.isdecimal() or int(size) < 1:
            raise argparse.ArgumentTypeError(f"{part!r} is no axis with a size, such as {AXIS}=4")
        sizes[name] = int(size)
    if sizes.get(AXIS, 0) < 2:
        raise argparse.ArgumentTypeError(f"the ops run over {AXIS}: give it two ranks or more")
    return sizes


def may_write(options: argparse.Namespace) -> bool:
    """Whether this process is known to be the one that writes: the first, or the only one."""
    return not options.process and not options.distributed


def complaint(options: argparse.Namespace) -> str | None:
    """What is wrong with the group's flags, in words."""
    if options.axis_size is not None and (options.mesh or options.axis_size < 2):
        return "--axis-size is a whole number from 2, and stands in for --mesh"
    three = (options.coordinator, options.processes, options.process)
    given = [value is not None for value in three]
    if any(given) and not all(given):
        return "--coordinator, --processes and --process belong together: give all three"
    if any(given) and options.distributed:
        return "--distributed asks the cluster: leave --coordinator, --processes, --process out"
    if all(given) and not _is_address(options.coordinator):
        return (
            f"--coordinator {options.coordinator!r} is no HOST:PORT: give the address of process 0 "
            "with a port from 1 to 65535 that is free there, such as 10.0.0.1:12345"
        )
    if all(given) and options.processes < 1:
        return f"--processes {options.processes}: give their number, 1 or more"
    if all(given) and not 0 <= options.process < options.processes:
        last = options.processes - 1
        return f"--process {options.process} is not in 0 .. {last}: processes count from 0"
    if options.gpu is not None and not (all(given) or options.distributed):
        return "--gpu is for one process per GPU; one process takes all GPUs that it sees"
    if options.gpu is not None and options.gpu < 0:
        return f"--gpu {options.gpu} is no GPU: they count from 0"
    return None


def _is_address(text: str) -> bool:
    """Whether it is HOST:PORT; an IPv6 address as host stands in brackets."""
    host, _, port = text.rpartition(":")
    named = re.fullmatch(r"\[[^\s\[\]]+\]|[^\s:/\[\]]+", host)
    return bool(named and re.fullmatch(r"[0-9]{1,5}", port) and 1 <= int(port) <= 65535)


def join(options: argparse.Namespace) -> Group:
    """Starts JAX on the group that the flags name.

    Raises:
      GroupError: fewer than two devices, or devices of a kind that is not measured.
      FlagError: a mesh or an axis size that does not fit the devices.
    """
    several = options.distributed or options.coordinator is not None
    told = _COUNT_FLAG in os.environ.get("XLA_FLAGS", "") or jax.config.jax_num_cpu_devices >= 0
    if not told and not _compat.backends_started():
        # Only where JAX falls to the CPU does it count.
        jax.config.update("jax_num_cpu_devices", 1 if several else CPU_DEVICES)
    if several:
        own: dict[str, Any] = {} if options.gpu is None else {"local_device_ids": [options.gpu]}
        if options.coordinator is not None:
            own |= dict(
                coordinator_address=options.coordinator,
                num_processes=options.processes,
                process_id=options.process,
            )
        try:
            jax.distributed.initialize(**own)
        except Exception as error:  # JAX and its clusters' plug-ins document no types
            raise GroupError(
                f"jax.distributed did not start: {_told(error)}. Start the same command in every "
                "process, 0 to N - 1, where process 0's address is reached"
            ) from error
    try:
        devices = jax.devices()
    except Exception as error:  # RuntimeError, or an AssertionError of JAX's own
        raise GroupError(
            f"JAX has no devices: {_told(error)}. `python -m jax_flux doctor` says what this "
            "machine offers"
        ) from error
    platform = devices[0].platform
    if platform not in ("cpu", "gpu", "cuda"):
        raise GroupError(
            f"JAX runs on {platform!r}: only GPUs and CPU devices are "
            "measured. Set JAX_PLATFORMS=cuda, or JAX_PLATFORMS=cpu for a smoke run"
        )
    if len(devices) < 2:
        raise GroupError(
            f"JAX has one device ({devices[0].device_kind}), and one rank has no peer to talk to. "
            "Run on two or more GPUs, or JAX_PLATFORMS=cpu for a smoke run on CPU devices"
        )
    mesh = _mesh(devices, options.mesh or _around(len(devices), options.axis_size))
    if platform == "cpu":
        note = "times say nothing about GPUs; E is left blank"
        return Group(mesh, CPU, note)
    if _shared():
        return Group(mesh, SHARED, "they take turns, so times say nothing; E is left blank")
    return Group(mesh, REAL, "")


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().rstrip(":.")


def _around(count: int, axis_size: int | None) -> dict[str, int]:
    """All devices in one group, or in groups of ``axis_size``."""
    if axis_size is None or axis_size == count:
        return {AXIS: count}
    if count % axis_size:
        fit = " or ".join(str(size) for size in range(2, count + 1) if count % size == 0)
        raise FlagError(
            f"--axis-size {axis_size} does not divide {count} devices, and every one of them "
            f"belongs to a group of W: give {fit}"
        )
    return {"dp": count // axis_size, AXIS: axis_size}


def _mesh(devices: list[Any], sizes: dict[str, int]) -> jax.sharding.Mesh:
    if np.prod([*sizes.values()]) != len(devices):
        words = ",".join(f"{name}={size}" for name, size in sizes.items())
        raise FlagError(
            f"--mesh {words} does not take {len(devices)} devices: its sizes have to multiply to "
            f"their number, as those of {AXIS}={len(devices)} do"
        )
    types = (jax.sharding.AxisType.Auto,) * len(sizes)
    shaped = np.asarray(devices).reshape(tuple(sizes.values()))
    return jax.sharding.Mesh(shaped, tuple(sizes), axis_types=types)


def gather(values: Any) -> np.ndarray:
    """``values`` of every process, stacked along a new first axis."""
    mine = np.asarray(values)
    if jax.process_count() == 1:
        return mine[None]
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(mine))


def gather_ranks(array: jax.Array) -> np.ndarray:
    """A global array, sharded over the ranks, whole on every process."""
    if jax.process_count() == 1:
        return np.asarray(array)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def barrier(name: str) -> None:
    """Returns when every process is here, so that nobody's clock counts another's delay."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)


def leave(status: int, *, broken: bool) -> int:
    """The exit status; where a collective broke on GPUs or in several processes it ends here.

    JAX's own exit would wait for its stream, or for peers that may hang in a collective.
    """
    if broken and (jax.process_count() > 1 or jax.default_backend() != "cpu"):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def _shared() -> bool:
    """Whether two ranks are on one GPU; asked of CUDA, else of NCCL's switch for it."""
    if os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE", "0") != "0":
        return True
    names = [f"{socket.gethostname()} {_bus_id(d)}" for d in jax.local_devices()]
    # Two checksums per GPU: process_allgather carries numbers, and x64 may be off.
    sums = [[zlib.crc32(t.encode()) >> 1, zlib.adler32(t.encode()) >> 1] for t in names]
    counts = gather(np.asarray(len(sums), np.int32))
    if len(set(counts.tolist())) > 1:
        return False  # processes with different numbers of GPUs never share one
    every = gather(np.asarray(sums, np.int32)).reshape(-1, 2)
    return len(np.unique(every, axis=0)) < len(every)


def _bus_id(device: Any) -> str:
    try:
        from cuda.bindings import runtime

        error, bus = runtime.cudaDeviceGetPCIBusId(32, device.local_hardware_id)
        if int(error) == 0:
            return str(bus)
    except ImportError:
        pass
    return f"process {jax.process_index()} device {device.local_hardware_id}"
