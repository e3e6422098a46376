"""A control with a fixed plan for each host: germinate at given epochs, keep every module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.controllers.base import germinate, on_slot, waiting
from esper.envs.records import EnvView
from esper.growth.actions import OP_FOSSILIZE, OP_GERMINATE, Op
from esper.runtime.state import State, copied


@dataclass(frozen=True, slots=True)
class PlannedGermination:
    """A planned germination of a blueprint in a slot, at a host epoch or as soon after it as is legal."""

    epoch: int
    slot: int
    blueprint: int


class Schedule:
    """The control that follows a plan in each environment, and fossilizes each module as soon as that is legal.

    Args:
        plans: germinations of each environment; those due at once are executed one per epoch.
        name: name of the control.
    """

    def __init__(self, plans: Sequence[Sequence[PlannedGermination]], name: str = "schedule") -> None:
        self.name = name
        self._plans = [sorted(plan, key=lambda step: step.epoch) for plan in plans]
        self._done = torch.zeros(len(plans), max((len(plan) for plan in plans), default=0), dtype=torch.bool)

    def reset(self, which: Tensor) -> None:
        self._done[which] = False

    def state_dict(self) -> State:
        return {"done": copied(self._done)}

    def load_state_dict(self, state: State) -> None:
        self._done = copied(state["done"])

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
