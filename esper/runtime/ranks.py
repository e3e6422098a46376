"""Ranks, the processes of one run with one device each, and their communication.

Every rank takes part in every exchange, in the same order: no exchange may depend on anything that only one rank sees,
such as the life of a host.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from esper.runtime.placement import PeerLost, Placement

T = TypeVar("T")

TIMEOUT = timedelta(hours=2)
"""Longest wait for the slowest rank, because an iteration of big hosts takes long. A dead rank is noticed at once."""

MEETING_TIMEOUT = timedelta(minutes=5)
"""Longest wait for all ranks to connect, because a rank that failed to start never will."""

GONE = re.compile(
    r"gloo.transport|pair closure|Connection (closed|reset|refused)|Broken pipe|failed to connect|time(d |-)?out"
    r"|ncclRemoteError|NCCL communicator was aborted",
    re.IGNORECASE,
)
"""Error messages of gloo, NCCL and the store for a lost or silent peer, for which they have no exception type."""

BROKEN_DEVICE = re.compile(r"CUDA (error|failure)", re.IGNORECASE)
"""Error messages of gloo, NCCL and the store for a failure of this rank's own device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Communication of this process with the other ranks of its run; with a single rank, exchanges do nothing.

    Objects to exchange must be on the CPU: a tensor arrives on the device that it was sent from, which belongs to
    another rank.

    Raises:
        ValueError: a tensor in an object to exchange is not on the CPU.
        PeerLost: another rank has ended or cannot be reached.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def is_first(self) -> bool:
        """True if this rank is the first, which writes and prints."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all ranks in place, with equal bits on every rank."""
        if self.size > 1:
            with _peers():
                dist.all_reduce(tensor)
        return tensor

    def start_max(self, number: int) -> Callable[[], int]:
        """Start to compute the maximum over all ranks; call the result to wait for it."""
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
        """Return every rank's picklable value, in rank order, on all ranks."""
        if self.size == 1:
            return [value]
        own, values = pickled(value), [b""] * self.size
        with _peers():
            dist.all_gather_object(values, own)
        return [pickle.loads(content) for content in values]

    def gather(self, value: T) -> list[T]:
        """Return every rank's picklable value, in rank order, on the first rank; an empty list on the others."""
        if self.size == 1:
            return [value]
        own, values = pickled(value), [b""] * self.size if self.is_first else None
        with _peers():
            dist.gather_object(own, values)
        return [pickle.loads(content) for content in values or ()]

    def broadcast(self, value: T) -> T:
        """Return the first rank's picklable value on all ranks."""
        if self.size == 1:
            return value
        values = [pickled(value) if self.is_first else b""]
        with _peers():
            dist.broadcast_object_list(values)
        return cast(T, pickle.loads(values[0]))


ALONE = Ranks()
"""Ranks of a run with a single rank."""


class _CPUPickler(pickle.Pickler):
    """Pickler that refuses device objects at any depth."""

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, Tensor | torch.Generator) and value.device.type != "cpu":
            what = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else "a generator"
            raise ValueError(f"ranks exchange only what is on the CPU, but {what} is on {value.device}: move it first")
        return NotImplemented


def pickled(value: object) -> bytes:
    """Pickle a value to bytes that every rank can read.

    Raises:
        ValueError: a tensor or a generator in it is not on the CPU.
    """
    file = io.BytesIO()
    _CPUPickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


@contextmanager
def _peers() -> Iterator[None]:
    """Raise :class:`PeerLost` for a lost peer; let other errors of an exchange, such as of this rank's device, pass."""
    try:
        yield
    except RuntimeError as error:
        if not lost_peer(error):
            raise
        raise PeerLost("an exchange between ranks failed: another rank has ended or cannot be reached") from error


def lost_peer(error: RuntimeError) -> bool:
    """Return whether an exchange failed because of another rank rather than this one or its device."""
    if isinstance(error, torch.AcceleratorError | torch.OutOfMemoryError) or BROKEN_DEVICE.search(str(error)):
        return False
    return isinstance(error, dist.DistStoreError) or GONE.search(str(error)) is not None


@contextmanager
def connected(placement: Placement) -> Iterator[Ranks]:
    """Connect to the other ranks; disconnect at the end."""
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
    # Only after success: disconnecting could wait for a rank that has died.
    dist.destroy_process_group()
