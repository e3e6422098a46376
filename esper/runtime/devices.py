"""Which devices a run uses: one rank per device."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Sequence
from itertools import pairwise

import torch

# From malloc.h: blocks up to 32 MB, the most that glibc takes, come from the heap, whose end is never given back.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MALLOC_OPTIONS = (M_MMAP_THRESHOLD, 32 << 20), (M_TRIM_THRESHOLD, 2**31 - 1)

CHOICES = "auto, cpu, the index of a CUDA device, or a list such as [0,1] or [cpu,cpu]"


def parse_devices(devices: object) -> list[str]:
    """Words of the ``devices`` key: ``auto`` alone, or ``cpu`` and CUDA indices, one per rank.

    Args:
        devices: what was said: a word, an index, or a list of them; ``cuda:1`` is ``1``.

    Raises:
        ValueError: not one of the choices, an empty list, a GPU named twice, or GPUs and CPUs mixed.
    """
    said = devices if isinstance(devices, list | tuple) else [devices]
    words = [str(word).removeprefix("cuda:") for word in said]
    for word, original in zip(words, said, strict=True):
        index = word.isascii() and word.isdigit() and not isinstance(original, bool)
        if not (index or word == "cpu" or (word == "auto" and len(words) == 1)):
            raise ValueError(f"devices must be {CHOICES}; got {shown(devices)}")
    if not words:
        raise ValueError(f"devices must be {CHOICES}; got an empty list")
    gpus = [word for word in words if word not in ("cpu", "auto")]
    twice = sorted({gpu for gpu in gpus if gpus.count(gpu) > 1})
    if twice:
        raise ValueError(f"devices={shown(devices)} names GPU {', '.join(twice)} more than once: one rank per GPU")
    if gpus and "cpu" in words:
        raise ValueError(f"devices={shown(devices)} mixes GPUs and CPUs: ranks of one run use one kind")
    return words


def shown(devices: object) -> str:
    """The ``devices`` key as it is written on the command line."""
    return f"[{','.join(map(str, devices))}]" if isinstance(devices, list | tuple) else str(devices)


def visible_devices() -> list[str]:
    """What may be asked for: ``cpu`` and the index of each CUDA device."""
    return ["cpu", *map(str, range(torch.cuda.device_count()))]


def resolve_devices(devices: object, num_local: int | None = None) -> list[torch.device]:
    """The devices of this machine's ranks.

    Args:
        devices: see :func:`parse_devices`. ``auto`` is every CUDA device, or the CPU where there is none.
        num_local: ranks that an outside launcher started on this machine; ``None`` if the run starts its own. With
            ``auto`` they share what is visible: one GPU each, or the CPU.

    Raises:
        ValueError: a device is not there, or there are not as many as ranks. Names what was asked and what is visible.
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
            "machine: name one per rank, or say devices=auto"
        )
    return [torch.device("cpu") if word == "cpu" else torch.device("cuda", int(word)) for word in words]


def device_name(device: torch.device) -> str:
    """A GPU's model, ``cpu`` for a CPU: devices of one name give the same numbers."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def settle(device: torch.device) -> None:
    """Make a device the one that this process works on, and one that repeats its numbers.

    cuDNN may choose kernels that add up in any order, and other ones each time that it measures which are fast. Hosts
    are compared with twins trained elsewhere in the run, which must come out equal to the bit.
    """
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    if device.type == "cuda":
        torch.cuda.set_device(device)


def intra_op_threads(num_threads: int, num_local: int) -> int:
    """Threads of tensor operations in each of this machine's ranks, so that together they fit its cores.

    Args:
        num_threads: asked for; 0 = all cores.
        num_local: ranks on this machine.
    """
    cores = num_cores()
    return min(num_threads or cores, max(1, cores // num_local))


def num_cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def keep_freed_memory() -> bool:
    """Let this process keep what tensors on the CPU free for the next ones, where its C library is glibc.

    By default glibc hands large blocks back to the system and asks for them again, page by page, at every layer of
    every step: with 32x32 hosts that was 6 to 10 % of the time.

    Returns:
        Whether it was done.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    return all(library.mallopt(option, value) for option, value in MALLOC_OPTIONS)


def spread(count: int, num_ranks: int) -> Sequence[range]:
    """Consecutive, even shares of ``count`` environments, the first ranks taking one more where it does not divide."""
    size, rest = divmod(count, num_ranks)
    starts = [rank * size + min(rank, rest) for rank in range(num_ranks + 1)]
    return [range(begin, end) for begin, end in pairwise(starts)]
