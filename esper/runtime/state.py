"""State of components, as checkpoints hold it: nested dictionaries and lists of tensors and plain values, on the CPU.

A component owns its state: it alone says what belongs to it (``state_dict``) and how to take it back
(``load_state_dict``), after which it goes on as if nothing had happened. Names are those of PyTorch, whose modules,
optimizers and loss scalers are components too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

State: TypeAlias = dict[str, Any]


class Stateful(Protocol):
    """A component with a state."""

    def state_dict(self) -> State:
        """Everything that the future of this component depends on; shares no memory with it."""

    def load_state_dict(self, state: State) -> None:
        """Take a state back."""


def copied(tensor: Tensor) -> Tensor:
    """A tensor on the CPU that shares nothing."""
    return tensor.detach().to("cpu", copy=True)


def on_cpu(part: Any) -> Any:
    """A state with every tensor on the CPU; what is there already is shared."""
    if isinstance(part, Tensor):
        return part.detach().to("cpu")
    if isinstance(part, dict):
        return {key: on_cpu(value) for key, value in part.items()}
    if isinstance(part, list | tuple):
        return type(part)(on_cpu(value) for value in part)
    return part


def plain_fields(record: object) -> State:
    """Fields of a flat dataclass by name, tensors copied: as keyword arguments they make an equal record."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}  # type: ignore[arg-type]
    return {name: copied(value) if isinstance(value, Tensor) else value for name, value in values.items()}


class RandomStream:
    """A random generator as a component.

    Args:
        generator: whose draws go on where they were; on the CPU, since every kind of device has its own form of state.
    """

    def __init__(self, generator: torch.Generator) -> None:
        assert generator.device.type == "cpu", f"a stream on {generator.device} could go on there only"
        self.generator = generator

    def state_dict(self) -> State:
        """Where in its stream it is."""
        return {"position": self.generator.get_state()}

    def load_state_dict(self, state: State) -> None:
        """Go back there."""
        self.generator.set_state(state["position"])


def states(components: Mapping[str, Stateful]) -> State:
    """States of several components by name."""
    return {name: component.state_dict() for name, component in components.items()}


def restore(components: Mapping[str, Stateful], found: State) -> None:
    """Give several components their states back, from among those found."""
    for name, component in components.items():
        component.load_state_dict(found[name])


def parts(state: object, path: str = "") -> dict[str, str]:
    """Every part of a state by its path (``ranks[0].env.over``) and what it is: dtype and shape, length, or type."""
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
    """The first part that a state lacks, or that is not what :func:`parts` once said; ``None`` if it is whole."""
    found = parts(state)
    for path, form in wanted.items():
        if path not in found:
            return f"part {path!r} is missing"
        if found[path] != form:
            return f"part {path!r} is {found[path]}, not {form}"
    return None
