"""Registry of kinds of host, and the function that builds a host from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from esper.hosts.base import SegmentedHost
from esper.hosts.cnn import CNNHost
from esper.hosts.custom import build_custom
from esper.hosts.transformer import TransformerHost
from esper.runtime.registry import Registry
from esper.runtime.user_code import UsersCodeError, is_ours, of_the_user

KINDS_OF_TASK = ("images", "tokens")


@dataclass(frozen=True, slots=True)
class HostKind:
    """A kind of host.

    Attributes:
        build: function that builds a host from the sizes of its task and from its own shape.
        reads: kinds of task that it can be trained on.
    """

    build: Callable[..., SegmentedHost]
    reads: tuple[str, ...]


HOSTS: Registry[HostKind] = Registry(
    "host",
    {
        "cnn": HostKind(CNNHost, ("images",)),
        "transformer": HostKind(TransformerHost, ("tokens",)),
        "custom": HostKind(build_custom, KINDS_OF_TASK),
    },
    functions=lambda kind: (kind.build,),
)


def register_host(name: str, build: Callable[..., SegmentedHost], reads: Sequence[str] = ("images",)) -> None:
    """Register a kind of host, to be selected by ``host=plugin host.name=<name>``.

    Args:
        name: name of the kind.
        build: builder; takes ``num_classes``, for images ``in_channels`` and ``image_size``, for text
            ``context_length``, and ``host.arguments``, all by name.
        reads: kinds of task that it can be trained on, of ``images`` and ``tokens``.

    Raises:
        ValueError: a name that is not an identifier or belongs to another host, a builder that is not a function, or an
            unknown kind of task.
    """
    if not reads or not set(reads) <= set(KINDS_OF_TASK):
        raise ValueError(f"host {name!r} reads {list(reads)}: choose from {', '.join(KINDS_OF_TASK)}")
    HOSTS.register(name, HostKind(build, tuple(reads)))


def build_host(name: str, **arguments: object) -> SegmentedHost:
    """Build a host.

    Args:
        name: a key of :data:`HOSTS`.
        arguments: arguments of that host's builder: sizes of the task, and the host's own shape.

    Raises:
        ValueError: unknown name, a shape that the builder refuses, or a user's builder that fails or does not return a
            host.
    """
    kind = HOSTS.find(name)
    if is_ours(kind.build):
        return kind.build(**arguments)
    what = f"host.name={name}: {HOSTS.where(kind)}"
    with of_the_user(what):
        host = kind.build(**arguments)
    if not isinstance(host, SegmentedHost):
        raise UsersCodeError(f"{what} returns a {type(host).__name__}, not a SegmentedHost")
    return host
