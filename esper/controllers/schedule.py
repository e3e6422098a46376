"""A fixed plan for every host: germinate at given epochs, keep what grew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.actions import OP_FOSSILIZE, OP_GERMINATE, Op
from esper.controllers.base import germinate, on_slot, waiting
from esper.envs.records import EnvView


@dataclass(frozen=True, slots=True)
class PlannedGermination:
    """Put a blueprint into a slot at a host epoch, or as soon after it as is legal."""

    epoch: int
    slot: int
    blueprint: int


class Schedule:
    """Follows one plan in every environment; fossilizes each module as soon as that is legal.

    Args:
        plan: germinations; those due at once follow one another, one per epoch.
        num_envs: E.
    """

    name = "schedule"

    def __init__(self, plan: Sequence[PlannedGermination], num_envs: int) -> None:
        self._plan = sorted(plan, key=lambda step: step.epoch)
        self._done = torch.zeros(num_envs, len(plan), dtype=torch.bool)

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
            for number, step in enumerate(self._plan):
                due = step.epoch <= epoch and not self._done[env, number]
                if due and masks.slot[env, OP_GERMINATE, step.slot] and masks.blueprint[env, step.slot, step.blueprint]:
                    actions[env] = germinate(step.slot, step.blueprint)
                    self._done[env, number] = True
                    break
        return actions
