"""Static controls: networks that have their modules from the first epoch on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from esper.blueprints import blueprint_ids
from esper.controllers.base import Stateless, waiting
from esper.envs.records import EnvView, PlantedModule


class Static(Stateless):
    """The control that waits while its modules, planted at the start, train with the host.

    The caller plants :attr:`modules` after every reset (:meth:`esper.envs.growth.GrowthEnv.plant`).

    Args:
        modules: modules of each environment.
        name: name of the control.
    """

    def __init__(self, modules: Sequence[Sequence[PlantedModule]], name: str) -> None:
        self.name = name
        self.modules = [list(planted) for planted in modules]

    def act(self, view: EnvView) -> Tensor:
        return waiting(view.state.num_envs)


def everywhere(blueprint: str, compatible: Tensor) -> list[PlantedModule]:
    """Place one blueprint, given by id, in every slot that it fits."""
    index = blueprint_ids().index(blueprint)
    return [(slot, index) for slot in compatible[:, index].nonzero().flatten().tolist()]
