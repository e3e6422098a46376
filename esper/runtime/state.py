"""State of components for checkpoints: nested dictionaries and lists of tensors and plain values, on the CPU.

A component owns its state: it alone defines what belongs to it (``state_dict``) and how to restore it
(``load_state_dict``), after which it continues as if uninterrupted. The names are PyTorch's, whose modules, optimizers
and loss scalers are components too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

State: TypeAlias = dict[str, Any]


class Stateful(Protocol):
    """Interface of a component whose state checkpoints hold."""

    def state_dict(self) -> State:
        """Return the complete state, without sharing memory: a component that restores it continues in the same way."""

    def load_state_dict(self, state: State) -> None:
        """Restore a state returned by :meth:`state_dict`."""


def copied(tensor: Tensor) -> Tensor:
    """Copy a tensor to the CPU."""
    return tensor.detach().to("cpu", copy=True)


def on_cpu(part: Any) -> Any:
    """Move every tensor in a state to the CPU; tensors that are there already are shared."""
    if isinstance(part, Tensor):
        return part.detach().to("cpu")
    if isinstance(part, dict):
        return {key: on_cpu(value) for key, value in part.items()}
    if isinstance(part, list | tuple):
        return type(part)(on_cpu(value) for value in part)
    return part


def plain_fields(record: object) -> State:
    """Return the fields of a flat dataclass by name, with copied tensors, as keyword arguments for an equal record."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}  # type: ignore[arg-type]
    return {name: copied(value) if isinstance(value, Tensor) else value for name, value in values.items()}


class RandomStream:
    """A random generator as a component.

    Args:
        generator: the generator, on the CPU, since the form of its state depends on the kind of device.
    """

    def __init__(self, generator: torch.Generator) -> None:
        assert generator.device.type == "cpu", f"a stream on {generator.device} could go on there only"
        self.generator = generator

    def state_dict(self) -> State:
        """Return the position in the stream."""
        return {"position": self.generator.get_state()}

    def load_state_dict(self, state: State) -> None:
        """Restore the position in the stream."""
        self.generator.set_state(state["position"])


def states(components: Mapping[str, Stateful]) -> State:
    """Return the states of several components by name."""
    return {name: component.state_dict() for name, component in components.items()}


def restore(components: Mapping[str, Stateful], found: State) -> None:
    """Restore several components from their states by name."""
    for name, component in components.items():
        component.load_state_dict(found[name])


def parts(state: object, path: str = "") -> dict[str, str]:
    """List every part of a state by its path (``ranks[0].env.over``) with its dtype and shape, length, or type."""
    if isinstance(state, dict):
        found = {path: "dict"} if path else {}
        inner = [(f"{path}.{key}" if path else str(key), value) for key, value in state.items()]
    elif isinstance(state, list | tuple):
        found, inner = {path: f"list of {len(state)}"}, [(f"{path}[{i}]", value) for i, value in enumerate(state)]
    elif isinstance(state, Tensor):
        return {path: f"{str(state.dtype).removeprefix('torch.')} {list(state.shape)}"}
    else:
        return {path: type(state).__name__}
    for name, value in inner:
        found |= parts(value, name)
    return found


def damage(wanted: Mapping[str, str], state: object) -> str | None:
    """Return the first part that a state lacks, or that differs from what :func:`parts` listed; ``None`` for an intact
    state.
    """
    found = parts(state)
    for path, form in wanted.items():
        if path not in found:
            return f"part {path!r} is missing"
        if found[path] != form:
            return f"part {path!r} is {found[path]}, not {form}"
    return None
