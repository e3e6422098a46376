"""Parameters that join and leave an optimizer while it runs.

They join the parameter group of their place's own parameters, at its end; the number of groups never changes, since
learning-rate schedulers keep a number for each. The state of a parameter that leaves is removed; that of all others is
untouched.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

from esper.grower.distributed import Replicas


class Membership:
    """Parameters of seed modules in an optimizer.

    Args:
        optimizer: optimizer of the network, changed in place.
        groups: for each slot, the index of the parameter group that its modules join.
        replicas: replicas of the network, whose gradients of these parameters are averaged.
    """

    def __init__(self, optimizer: Optimizer, groups: Sequence[int], replicas: Replicas) -> None:
        self._optimizer, self._groups, self.replicas = optimizer, list(groups), replicas
        self._joined: list[tuple[int, str, nn.Parameter]] = []

    @property
    def order(self) -> list[tuple[int, str]]:
        """Slot and name of every parameter that has joined, in the order of joining."""
        return [(slot, name) for slot, name, _ in self._joined]

    def join(self, slot: int, name: str, parameter: nn.Parameter) -> None:
        """Add a parameter to the optimizer.

        Args:
            slot: slot of its module.
            name: name in the seed module.
            parameter: a new parameter.
        """
        group = self._optimizer.param_groups[self._groups[slot]]
        group["params"].append(parameter)
        if "param_names" in group:
            group["param_names"].append(f"slot {slot}: {name}")
        self._joined.append((slot, name, parameter))
        self.replicas.follow(parameter)

    def leave(self, slot: int, prefix: str = "") -> None:
        """Remove the parameters of a slot's module whose names begin with ``prefix``, and their state."""
        gone = [each for each in self._joined if each[0] == slot and each[1].startswith(prefix)]
        self._joined = [each for each in self._joined if not any(each is other for other in gone)]
        group = self._optimizer.param_groups[self._groups[slot]]
        for _, _, parameter in gone:
            index = next(index for index, member in enumerate(group["params"]) if member is parameter)
            del group["params"][index]
            if "param_names" in group:
                del group["param_names"][index]
            self._optimizer.state.pop(parameter, None)
            parameter.grad = None


def groups_of(model: nn.Module, optimizer: Optimizer, places: Sequence[nn.Module]) -> list[int]:
    """Return the parameter group that the modules of each place join.

    It is the group of the place's own parameters; if the optimizer has none of them, that of the next parameters in the
    model that it has, or of the last ones before.

    Args:
        model: model with the places.
        optimizer: has at least one parameter of the model.
        places: submodules of the model.
    """
    number = {id(each): index for index, group in enumerate(optimizer.param_groups) for each in group["params"]}
    ordered = list(model.parameters())
    position = {id(parameter): index for index, parameter in enumerate(ordered)}
    known = [index for index, parameter in enumerate(ordered) if id(parameter) in number]
    begins = {id(module): begin for module, begin in _begins(model)}
    found = []
    for place in places:
        own = [position[id(parameter)] for parameter in place.parameters() if id(parameter) in number]
        begin = begins[id(place)]
        chosen = own[0] if own else next((index for index in known if index >= begin), known[-1])
        found.append(number[id(ordered[chosen])])
    return found


def _begins(model: nn.Module) -> list[tuple[nn.Module, int]]:
    """Return every submodule with the number of the model's parameters before its own."""
    seen: set[int] = set()
    begins = []
    for module in model.modules():
        begins.append((module, len(seen)))
        seen |= {id(parameter) for parameter in module.parameters(recurse=False)}
    return begins
