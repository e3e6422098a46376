"""Ranks of a run as the command line and launchers name them: their devices, and the place of a process among them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

CHOICES = "auto, cpu, the index of a CUDA device, or a list such as [0,1] or [cpu,cpu]"

SLURM_PORTS = 20_000, 12_000
"""First port and number of ports from which the ids of a Slurm step select one; below the range that systems assign."""


class PeerLost(RuntimeError):
    """An exchange failed because another rank has ended or cannot be reached."""


def parse_devices(devices: object) -> list[str]:
    """Parse the ``devices`` key: ``auto`` alone, or ``cpu`` and CUDA indices, one per rank.

    Args:
        devices: a word, an index, or a list of them; ``cuda:1`` means ``1``.

    Raises:
        ValueError: an unknown word, an empty list, a GPU named twice, or GPUs and CPUs mixed.
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
    """Format the ``devices`` key as on the command line."""
    return f"[{','.join(map(str, devices))}]" if isinstance(devices, list | tuple) else str(devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Position of a process among the ranks of its run.

    Attributes:
        rank, size: among all ranks.
        local_rank, local_size: among those on this machine.
        rendezvous: address at which they connect, as ``torch.distributed`` takes it.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    rendezvous: str


def outside_placement(environ: Mapping[str, str] = os.environ) -> Placement | None:
    """Return the placement given by torchrun, or by ``srun`` with several tasks; ``None`` if neither started this
    process.
    """
    if {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"} <= environ.keys():
        return Placement(
            rank=int(environ["RANK"]),
            size=int(environ["WORLD_SIZE"]),
            local_rank=int(environ["LOCAL_RANK"]),
            local_size=int(environ.get("LOCAL_WORLD_SIZE", environ["WORLD_SIZE"])),
            rendezvous="env://",
        )
    # Only steps have these; the script of a batch job, which starts its ranks itself, has SLURM_NTASKS alone.
    if int(environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1 and "SLURM_PROCID" in environ:
        first, count = SLURM_PORTS
        step = 31 * int(environ.get("SLURM_JOB_ID", "0")) + int(environ.get("SLURM_STEP_ID", "0"))
        nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or "localhost"
        tasks = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ["SLURM_STEP_NUM_TASKS"]
        return Placement(
            rank=int(environ["SLURM_PROCID"]),
            size=int(environ["SLURM_STEP_NUM_TASKS"]),
            local_rank=int(environ.get("SLURM_LOCALID", "0")),
            local_size=_tasks_of_node(tasks, int(environ.get("SLURM_NODEID", "0"))),
            rendezvous=f"tcp://{_first_node(nodes)}:{first + step % count}",
        )
    return None


def _first_node(nodes: str) -> str:
    """Return the first of Slurm's node names: ``gpu[03-05,9],cpu1`` begins with ``gpu03``."""
    match = re.match(r"([^,\[]+)(?:\[([^\],\-]+))?", nodes)
    assert match is not None, f"no node in {nodes!r}"
    return match[1] + (match[2] or "")


def _tasks_of_node(tasks: str, node: int) -> int:
    """Read Slurm's run-length list of tasks per node: in ``2(x3),1`` nodes 0 to 2 have two, node 3 has one."""
    counts: list[int] = []
    for part in tasks.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        assert match is not None, f"no task count in {part!r}"
        counts += [int(match[1])] * int(match[2] or 1)
    return counts[node]
