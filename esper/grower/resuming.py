"""Checkpoints of frameworks that restore model and optimizer before the first batch, when there is no Grower yet.

What belongs to seed modules is set aside until there is one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from esper.grower.grower import Grower
from esper.grower.place import SEED
from esper.runtime.state import State


@dataclass(slots=True, kw_only=True)
class Aside:
    """State of a growing network that waits for its Grower.

    Attributes:
        grower: state of the Grower.
        modules: parameters and buffers of seed modules, by their keys in the model.
        optimizer: state of the optimizer with the parameters of seed modules.
    """

    grower: State
    modules: dict[str, Tensor] = field(default_factory=dict)
    optimizer: State = field(default_factory=dict)

    def restore(self, grower: Grower, model: nn.Module, optimizer: Optimizer) -> None:
        """Restore all three, whose other parts were restored before.

        Raises:
            ValueError: the state belongs to another Grower.
        """
        grower.load_state_dict(self.grower)
        model.load_state_dict(self.modules, strict=False)
        optimizer.load_state_dict(self.optimizer)


def saved(grower: Grower | None, open_epoch: bool, finished: bool) -> State:
    """Return what a callback saves: the state of its Grower, and how far its epoch is.

    Args:
        grower: the Grower, if there is one.
        open_epoch: a batch of an epoch was trained that has not ended.
        finished: the Grower was finished.
    """
    state = None if grower is None or finished else grower.state_dict()
    return {"grower": state, "open": open_epoch, "finished": finished}


def check_saved(argument: str, state: Mapping[str, Any] | None, remedy: str) -> None:
    """Refuse a checkpoint from which growth cannot go on.

    Args:
        argument: argument and value that name the checkpoint.
        state: what :func:`saved` returned; ``None`` if the checkpoint has none.
        remedy: setting under which checkpoints are written after epochs.

    Raises:
        ValueError: it has no state, is of the middle of an epoch, or of the end of growth.
    """
    if state is None:
        raise ValueError(f"{argument}: it has no state of a GrowerCallback: leave it out, or leave the callback out")
    if state["open"]:
        raise ValueError(f"{argument}: it is of the middle of an epoch, where growth cannot go on: {remedy}")
    grower = state["grower"]
    if state["finished"] or (grower is not None and len(grower["scores"]) >= grower["num_epochs"]):
        raise ValueError(f"{argument}: its growth is over, and the training with it: resume from an earlier epoch")


def grown_keys(keys: Iterable[str], host: Collection[str], slots: Iterable[str], prefix: str = "") -> list[str]:
    """Return those keys of a model's state that belong to seed modules.

    Args:
        keys: keys of a growing model.
        host: keys of the model that does not grow yet.
        slots: paths.
        prefix: begin of the keys of the part that grows.
    """
    begins = tuple(f"{prefix}{path}.{SEED}" for path in slots)
    return [key for key in keys if key not in host and key.startswith(begins)]


def group_sizes(optimizer: Optimizer) -> list[int]:
    """Return the number of parameters in each group."""
    return [len(group["params"]) for group in optimizer.param_groups]


def without_joined(state: State, sizes: Sequence[int]) -> State:
    """Return a saved state of an optimizer without parameters that have joined it, which are the last of their groups.

    Args:
        state: what the optimizer's ``state_dict`` returned.
        sizes: numbers of parameters in its groups before any joined; groups that came later stay as they are.
    """
    groups, gone = [], set()
    for number, group in enumerate(state["param_groups"]):
        count = sizes[number] if number < len(sizes) else len(group["params"])
        gone |= set(group["params"][count:])
        groups.append(group | {name: group[name][:count] for name in ("params", "param_names") if name in group})
    return {"state": {key: value for key, value in state["state"].items() if key not in gone}, "param_groups": groups}
