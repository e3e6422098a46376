"""No controller at all: a network that has its modules from the first epoch on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from esper.controllers.base import waiting
from esper.envs.records import EnvView, PlantedModule


class Static:
    """Waits; whoever plays it plants :attr:`modules` after every reset (:meth:`esper.envs.growth.GrowthEnv.plant`).

    Args:
        modules: of each environment.
        name: which of the controls it is.
    """

    def __init__(self, modules: Sequence[Sequence[PlantedModule]], name: str) -> None:
        self.name = name
        self.modules = [list(planted) for planted in modules]

    def reset(self, which: Tensor) -> None:
        """Nothing to forget."""

    def act(self, view: EnvView) -> Tensor:
        return waiting(view.state.num_envs)
