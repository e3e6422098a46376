"""Host networks: what grows. One registry; adding a host is one module and one line in :data:`HOSTS`."""

from __future__ import annotations

from collections.abc import Callable

from esper.hosts.base import Place, SegmentedHost
from esper.hosts.cnn import CNNHost, build_cnn
from esper.hosts.faults import check_fault, fault_mask, parse_faults
from esper.hosts.init import reset_parameters

HOSTS: dict[str, Callable[..., SegmentedHost]] = {"cnn": build_cnn}


def build_host(name: str, *, in_channels: int, image_size: int, num_classes: int, **shape: object) -> SegmentedHost:
    """Build a host for a task.

    Args:
        name: a key of :data:`HOSTS`.
        in_channels, image_size, num_classes: of the task.
        shape: what that host's builder takes.

    Raises:
        ValueError: unknown name, or a shape that the builder refuses.
    """
    if name not in HOSTS:
        raise ValueError(f"unknown host {name!r}; known: {', '.join(sorted(HOSTS))}")
    return HOSTS[name](in_channels=in_channels, image_size=image_size, num_classes=num_classes, **shape)


__all__ = [
    "HOSTS",
    "CNNHost",
    "Place",
    "SegmentedHost",
    "build_host",
    "check_fault",
    "fault_mask",
    "parse_faults",
    "reset_parameters",
]
