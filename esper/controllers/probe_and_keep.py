"""A control that tries one blueprint in every slot, compares previews, and keeps the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.blueprints import blueprint_ids
from esper.controllers.base import SICK, germinate, on_slot, waiting
from esper.controllers.tunable import KEEP_POINTS, Choices, Space, rule
from esper.envs.records import EnvView
from esper.growth import Stage
from esper.growth.actions import OP_CULL, OP_FOSSILIZE, OP_GERMINATE, Op
from esper.runtime.state import State, copied


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAndKeepParameters:
    """Parameters of probe-and-keep.

    Attributes:
        blueprint: blueprint to try, by id.
        look_age: trained epochs after which a module's preview is recorded.
        min_preview: preview in points that a module needs to be kept.
        keep_points: contribution in points, once blended in, above which a module is FOSSILIZED.
    """

    blueprint: str = "conv_light"
    look_age: int = 2
    min_preview: float = 0.0
    keep_points: float = 0.5


class ProbeAndKeep:
    """The control that tries modules side by side, up to ``slots.max_developing``; one decision per environment and
    epoch.

    A module's preview is recorded once, at the same age for all, because older modules advance by themselves while
    others are still young (gate G2 gives a free place to any ready module). The ``max_seeds`` best with a sufficient
    preview are the keepers. In this order, ties by canonical order of slots:

    1. GERMINATE in the next untried slot.
    2. CULL a module that cannot become a keeper whatever the others' previews: first the worst of those still
       developing, so that it takes no place; then those that have one. A keeper whose gradient is so unhealthy that it
       would never blend loses that status.
    3. Once all previews are recorded: FOSSILIZE a settled keeper with a sufficient contribution, CULL it otherwise.

    Args:
        parameters: parameters of each environment.
        num_slots: S.
        max_seeds: largest number of kept modules.
    """

    name = "probe_and_keep"

    def __init__(self, parameters: Sequence[ProbeAndKeepParameters], num_slots: int, max_seeds: int) -> None:
        self._parameters, self._max_seeds = list(parameters), max_seeds
        self._blueprints = [blueprint_ids().index(each.blueprint) for each in parameters]
        self._tried = torch.zeros(len(parameters), num_slots, dtype=torch.bool)
        self._preview = torch.full((len(parameters), num_slots), torch.nan, dtype=torch.float64)

    def reset(self, which: Tensor) -> None:
        self._tried[which] = False
        self._preview[which] = torch.nan

    def state_dict(self) -> State:
        return {"tried": copied(self._tried), "preview": copied(self._preview)}

    def load_state_dict(self, state: State) -> None:
        self._tried, self._preview = copied(state["tried"]), copied(state["preview"])

    def act(self, view: EnvView) -> Tensor:
        actions = waiting(view.state.num_envs)
        for env in range(view.state.num_envs):
            self._note(view, env)
            action = self._decide(view, env)
            if action is not None:
                actions[env] = action
        return actions

    def _note(self, view: EnvView, env: int) -> None:
        """Record the previews of modules that are old enough, or have left TRAINING earlier."""
        state = view.state
        old = (state.age[env] >= self._parameters[env].look_age) | ~state.developing[env]
        due = self._tried[env] & state.present[env] & old & self._preview[env].isnan()
        measured = state.contribution[env].nan_to_num(nan=-math.inf)
        self._preview[env] = torch.where(due, measured, self._preview[env])

    def _decide(self, view: EnvView, env: int) -> Tensor | None:
        masks, state, rule = view.observation.masks, view.state, self._parameters[env]
        preview, present = self._preview[env].tolist(), state.present[env].tolist()
        untried = masks.blueprint[env, :, self._blueprints[env]] & ~self._tried[env]
        now = (untried & masks.slot[env, OP_GERMINATE]).nonzero().flatten().tolist()
        if now:
            self._tried[env, now[0]] = True
            return germinate(now[0], self._blueprints[env])

        looked = [slot for slot, there in enumerate(present) if there and not math.isnan(preview[slot])]
        sick = ((state.stage[env] == Stage.TRAINING) & (state.gradient_health[env] < SICK)).tolist()
        good = [slot for slot in looked if preview[slot] >= rule.min_preview and not sick[slot]]
        keepers = sorted(good, key=lambda slot: -preview[slot])[: self._max_seeds]
        developing, cullable = state.developing[env].tolist(), masks.slot[env, OP_CULL].tolist()
        losers = [slot for slot in looked if slot not in keepers and cullable[slot]]
        if losers:
            return on_slot(Op.CULL, min(losers, key=lambda slot: (not developing[slot], preview[slot])))

        young = sum(present) > len(looked)
        if bool(untried.any()) or young:
            return None
        for slot in masks.slot[env, OP_FOSSILIZE].nonzero().flatten().tolist():
            worth = float(state.contribution[env, slot])
            if worth > rule.keep_points:
                return on_slot(Op.FOSSILIZE, slot)
            if cullable[slot]:
                return on_slot(Op.CULL, slot)
        return None


def choices(space: Space) -> Choices:
    """Values that a search may give to each parameter."""
    return {
        "blueprint": space.blueprints,
        "look_age": (1, 2, 3),
        "min_preview": (-1000.0, 0.0, 0.5, 1.0, 2.0, 4.0),
        "keep_points": KEEP_POINTS,
    }


TUNABLE = rule(
    ProbeAndKeepParameters,
    choices,
    lambda rows, space: ProbeAndKeep(rows, space.num_slots, space.max_seeds),
    needs_search=True,
)
