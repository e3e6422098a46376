"""A fixed plan for each host: germinate at given epochs, keep what grew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.controllers.base import germinate, on_slot, waiting
from esper.envs.records import EnvView
from esper.growth.actions import OP_FOSSILIZE, OP_GERMINATE, Op


@dataclass(frozen=True, slots=True)
class PlannedGermination:
    """Put a blueprint into a slot at a host epoch, or as soon after it as is legal."""

    epoch: int
    slot: int
    blueprint: int


class Schedule:
    """Follows a plan in each environment; fossilizes each module as soon as that is legal.

    Args:
        plans: germinations of each environment; those due at once follow one another, one per epoch.
        name: which of the controls it is.
    """

    def __init__(self, plans: Sequence[Sequence[PlannedGermination]], name: str = "schedule") -> None:
        self.name = name
        self._plans = [sorted(plan, key=lambda step: step.epoch) for plan in plans]
        self._done = torch.zeros(len(plans), max((len(plan) for plan in plans), default=0), dtype=torch.bool)

    def reset(self, which: Tensor) -> None:
        self._done[which] = False

    def act(self, view: EnvView) -> Tensor:
        masks, epochs = view.observation.masks, view.history.epoch.tolist()
        actions = waiting(view.state.num_envs)
        for env, epoch in enumerate(epochs):
            ripe = masks.slot[env, OP_FOSSILIZE].nonzero().flatten().tolist()
            if ripe:
                actions[env] = on_slot(Op.FOSSILIZE, ripe[0])
                continue
            for number, step in enumerate(self._plans[env]):
                due = step.epoch <= epoch and not self._done[env, number]
                if due and masks.slot[env, OP_GERMINATE, step.slot] and masks.blueprint[env, step.slot, step.blueprint]:
                    actions[env] = germinate(step.slot, step.blueprint)
                    self._done[env, number] = True
                    break
        return actions
