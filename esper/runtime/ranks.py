"""The processes of one run, one per device, and what they tell one another.

Every rank takes part in every exchange, in the same order: none may hang on something that only one rank sees, such as
the life of a host.
"""

from __future__ import annotations

import io
import os
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

T = TypeVar("T")

TIMEOUT = timedelta(hours=2)
"""Longest wait for the slowest rank: an iteration of big hosts takes long. A rank that dies is noticed at once."""

MEETING_TIMEOUT = timedelta(minutes=5)
"""Longest wait for all ranks to appear: one that refused to start never will."""

SLURM_PORTS = 20_000, 12_000
"""First port and number of ports, among which a Slurm step's ids pick one: below those that systems give away."""


GONE = re.compile(
    r"gloo.transport|pair closure|Connection (closed|reset|refused)|Broken pipe|failed to connect|time(d |-)?out"
    r"|ncclRemoteError|NCCL communicator was aborted",
    re.IGNORECASE,
)
"""Messages of gloo, NCCL and the store when a peer is gone or silent: they have no type of error for it."""

BROKEN_DEVICE = re.compile(r"CUDA (error|failure)", re.IGNORECASE)
"""Their messages when it is this rank's own device that has failed, whatever else they add."""


class PeerLost(RuntimeError):
    """An exchange failed, because another rank has ended or cannot be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a process stands among those of its run.

    Attributes:
        rank, size: among all.
        local_rank, local_size: among those on this machine.
        rendezvous: where they meet, as ``torch.distributed`` takes it.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    rendezvous: str


def outside_placement(environ: Mapping[str, str] = os.environ) -> Placement | None:
    """Where torchrun, or ``srun`` with several tasks, has put this process; ``None`` if neither started it."""
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
    """The first of Slurm's node names: ``gpu[03-05,9],cpu1`` begins with ``gpu03``."""
    match = re.match(r"([^,\[]+)(?:\[([^\],\-]+))?", nodes)
    assert match is not None, f"no node in {nodes!r}"
    return match[1] + (match[2] or "")


def _tasks_of_node(tasks: str, node: int) -> int:
    """Slurm's run-length list of tasks per node: in ``2(x3),1`` nodes 0 to 2 have two, node 3 has one."""
    counts: list[int] = []
    for part in tasks.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        assert match is not None, f"no task count in {part!r}"
        counts += [int(match[1])] * int(match[2] or 1)
    return counts[node]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process among the ranks of its run; exchanges do nothing where it is alone.

    Values that are exchanged as objects must be on the CPU: a tensor arrives on the device that it was sent from, which
    on another rank is a stranger's.

    Raises:
        ValueError: a tensor of a value to exchange is not on the CPU.
        PeerLost: another rank has ended or cannot be reached.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this rank writes and prints."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Add a tensor of one shape up over all ranks, in place; the same bits everywhere."""
        if self.size > 1:
            with _peers():
                dist.all_reduce(tensor)
        return tensor

    def start_max(self, number: int) -> Callable[[], int]:
        """Begin to find the largest of all ranks' numbers; the result is waited for when it is called."""
        if self.size == 1:
            return lambda: number
        largest = torch.tensor([number])
        with _peers():
            work = dist.all_reduce(largest, op=dist.ReduceOp.MAX, async_op=True)

        def wait() -> int:
            with _peers():
                work.wait()
            return int(largest)

        return wait

    def all_gather(self, value: T) -> list[T]:
        """Every rank's picklable value, in rank order."""
        if self.size == 1:
            return [value]
        own, values = pickled(value), [b""] * self.size
        with _peers():
            dist.all_gather_object(values, own)
        return [pickle.loads(content) for content in values]

    def gather(self, value: T) -> list[T]:
        """Every rank's picklable value, in rank order, on the first rank; nothing on the others."""
        if self.size == 1:
            return [value]
        own, values = pickled(value), [b""] * self.size if self.is_first else None
        with _peers():
            dist.gather_object(own, values)
        return [pickle.loads(content) for content in values or ()]

    def broadcast(self, value: T) -> T:
        """The first rank's picklable value, on all."""
        if self.size == 1:
            return value
        values = [pickled(value) if self.is_first else b""]
        with _peers():
            dist.broadcast_object_list(values)
        return cast(T, pickle.loads(values[0]))


ALONE = Ranks()
"""The only rank of its run."""


class _CPUPickler(pickle.Pickler):
    """Refuses what lives on a device, however deep it is hidden."""

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, Tensor | torch.Generator) and value.device.type != "cpu":
            what = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else "a generator"
            raise ValueError(f"ranks exchange only what is on the CPU, but {what} is on {value.device}: move it first")
        return NotImplemented


def pickled(value: object) -> bytes:
    """A value as bytes that mean the same on every rank.

    Raises:
        ValueError: a tensor or a generator in it is not on the CPU.
    """
    file = io.BytesIO()
    _CPUPickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


@contextmanager
def _peers() -> Iterator[None]:
    """Tell a lost peer from everything else that an exchange can fail of, such as this rank's own device."""
    try:
        yield
    except RuntimeError as error:
        if not lost_peer(error):
            raise
        raise PeerLost("an exchange between ranks failed: another rank has ended or cannot be reached") from error


def lost_peer(error: RuntimeError) -> bool:
    """Tell whether an exchange failed of another rank, and not of this one or its device."""
    if isinstance(error, torch.AcceleratorError | torch.OutOfMemoryError) or BROKEN_DEVICE.search(str(error)):
        return False
    return isinstance(error, dist.DistStoreError) or GONE.search(str(error)) is not None


@contextmanager
def connected(placement: Placement) -> Iterator[Ranks]:
    """Meet the other ranks; part from them at the end."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    with _peers():
        meeting = rendezvous(placement.rendezvous, placement.rank, placement.size, timeout=MEETING_TIMEOUT)
        store, rank, size = next(meeting)
        store.set_timeout(MEETING_TIMEOUT)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    yield Ranks(
        rank=placement.rank,
        size=placement.size,
        local_rank=placement.local_rank,
        local_size=placement.local_size,
    )
    # Only after a good end: parting from a rank that has died could wait for it.
    dist.destroy_process_group()
