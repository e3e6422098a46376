"""The parameters of a network that grows, which its owner may move to another device or type, but not replace."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class HostParameters:
    """The parameters of the original network, where they are kept.

    Args:
        model: the network.
        moved: called when they are on another device, or of another type, than at the last check.
    """

    def __init__(self, model: nn.Module, moved: Callable[[], None]) -> None:
        self._model, self._moved = model, moved
        self._held = [
            (owner._parameters, name, parameter)
            for owner in model.modules()
            for name, parameter in owner._parameters.items()
            if parameter is not None
        ]
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._kind = self._kind_now()

    def check(self, method: str) -> None:
        """Refuse parameters that were replaced, which optimizer and Grower would go on without.

        Raises:
            ValueError: a parameter is no longer part of the model.
        """
        for owner, name, parameter in self._held:
            if owner.get(name) is not parameter and not any(parameter is each for each in self._model.parameters()):
                raise ValueError(
                    f"{method}: the model's parameter {self._names[id(parameter)]!r} was replaced after the Grower was "
                    "built, as by sharding (FSDP): a model that grows cannot be sharded, and what replaces "
                    "parameters comes before the Grower"
                )
        kind = self._kind_now()
        if kind != self._kind:
            self._kind = kind
            self._moved()

    def _kind_now(self) -> tuple[torch.device, torch.dtype]:
        parameter: Tensor = self._held[0][2]
        return parameter.device, parameter.dtype
