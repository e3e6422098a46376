"""Host networks: what grows. One registry; adding a host is one module and one line in :data:`HOSTS`."""

from __future__ import annotations

from collections.abc import Callable

from esper.hosts.base import Place, SegmentedHost
from esper.hosts.cnn import CNNHost, build_cnn
from esper.hosts.custom import CustomHost, build_custom
from esper.hosts.faults import check_fault, parse_faults
from esper.hosts.init import reset_parameters
from esper.hosts.masks import fault_mask
from esper.hosts.transformer import TransformerHost, build_transformer

HOSTS: dict[str, Callable[..., SegmentedHost]] = {
    "cnn": build_cnn,
    "transformer": build_transformer,
    "custom": build_custom,
}

READS: dict[str, tuple[str, ...]] = {"cnn": ("images",), "transformer": ("tokens",), "custom": ("images", "tokens")}
"""Kinds of task that each can be trained on."""


def build_host(name: str, **arguments: object) -> SegmentedHost:
    """Build a host.

    Args:
        name: a key of :data:`HOSTS`.
        arguments: what that host's builder takes: numbers of the task, and the host's own shape.

    Raises:
        ValueError: unknown name, or a shape that the builder refuses.
    """
    if name not in HOSTS:
        raise ValueError(f"unknown host {name!r}; known: {', '.join(sorted(HOSTS))}")
    return HOSTS[name](**arguments)


__all__ = [
    "HOSTS",
    "READS",
    "CNNHost",
    "CustomHost",
    "Place",
    "SegmentedHost",
    "TransformerHost",
    "build_host",
    "check_fault",
    "fault_mask",
    "parse_faults",
    "reset_parameters",
]
