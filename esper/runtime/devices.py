"""Devices of a run, one per rank."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Sequence
from itertools import pairwise

import torch

from esper.runtime.placement import parse_devices, shown

# From malloc.h: blocks up to 32 MB, the most that glibc takes, come from the heap, whose end is never given back.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MALLOC_OPTIONS = (M_MMAP_THRESHOLD, 32 << 20), (M_TRIM_THRESHOLD, 2**31 - 1)


def visible_devices() -> list[str]:
    """Return the available choices: ``cpu`` and the index of each CUDA device."""
    return ["cpu", *map(str, range(torch.cuda.device_count()))]


def resolve_devices(devices: object, num_local: int | None = None) -> list[torch.device]:
    """Return the devices of this machine's ranks.

    Args:
        devices: see :func:`~esper.runtime.placement.parse_devices`. ``auto`` is every CUDA device, or the CPU if there
            is none.
        num_local: ranks that an external launcher started on this machine; ``None`` if the run starts its own. With
            ``auto`` they share the visible devices: one GPU each, or the CPU.

    Raises:
        ValueError: a device does not exist, or the number of devices differs from the number of ranks. The message
            names the requested and the visible devices.
    """
    words = parse_devices(devices)
    visible = visible_devices()
    if words == ["auto"]:
        words = visible[1:] or ["cpu"]
        if num_local is not None and len(words) == 1:
            words *= num_local  # the CPU, or a launcher that shows each rank a GPU of its own
        elif num_local is not None and num_local < len(words):
            words = words[:num_local]
    for word in words:
        if word not in visible:
            mask = os.environ.get("CUDA_VISIBLE_DEVICES")
            remedy = "" if visible[1:] else "; devices=cpu runs without one"
            raise ValueError(
                f"devices={shown(devices)}: {word} is not there; visible: {', '.join(visible)} "
                f"(CUDA_VISIBLE_DEVICES is {'not set' if mask is None else repr(mask)}){remedy}"
            )
    if num_local is not None and num_local != len(words):
        raise ValueError(
            f"devices={shown(devices)} gives {len(words)} devices to the {num_local} ranks that were started on this "
            "machine: name one per rank, or use devices=auto"
        )
    return [torch.device("cpu") if word == "cpu" else torch.device("cuda", int(word)) for word in words]


def device_name(device: torch.device) -> str:
    """Return a GPU's model, or ``cpu``; devices of one name compute equal numbers."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def settle(device: torch.device) -> None:
    """Select a device for this process, and make its results repeatable.

    By default cuDNN may choose kernels that sum in any order, and other kernels after each speed measurement. Hosts are
    compared with twins trained elsewhere in the run, which must be equal to the bit.
    """
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    if device.type == "cuda":
        torch.cuda.set_device(device)


def intra_op_threads(num_threads: int, num_local: int) -> int:
    """Return the number of threads for tensor operations in each of this machine's ranks, so that all together fit its
    cores.

    Args:
        num_threads: requested number; 0 = all cores.
        num_local: ranks on this machine.
    """
    cores = num_cores()
    return min(num_threads or cores, max(1, cores // num_local))


def thread_lines(num_threads: int, num_local: int) -> list[str]:
    """Return a message for the user if fewer threads are used than requested.

    Args:
        num_threads, num_local: as in :func:`intra_op_threads`.
    """
    used = intra_op_threads(num_threads, num_local)
    if num_threads <= used:
        return []
    return [f"num_threads={num_threads}: {used} in each rank, which is what {num_cores()} cores allow"]


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def keep_freed_memory() -> bool:
    """Make this process reuse freed CPU memory instead of returning it to the system, if its C library is glibc.

    By default glibc returns large blocks to the system and requests them again, page by page, at every layer of every
    step: with 32x32 hosts that was 6 to 10 % of the time.

    Returns:
        Whether the setting was made.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    return all(library.mallopt(option, value) for option, value in MALLOC_OPTIONS)


def spread(count: int, num_ranks: int) -> Sequence[range]:
    """Divide ``count`` environments into consecutive, even shares; the first ranks take one more if there is a
    remainder.
    """
    size, rest = divmod(count, num_ranks)
    starts = [rank * size + min(rank, rest) for rank in range(num_ranks + 1)]
    return [range(begin, end) for begin, end in pairwise(starts)]
