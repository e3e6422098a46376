"""Try one blueprint in every slot, look at what it would be worth there, keep the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.blueprints import blueprint_ids
from esper.controllers.base import SICK, germinate, on_slot, waiting
from esper.envs.records import EnvView
from esper.growth import Stage
from esper.growth.actions import OP_CULL, OP_FOSSILIZE, OP_GERMINATE, Op


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAndKeepParameters:
    """What is tried, and what is good enough.

    Attributes:
        blueprint: by id.
        look_age: trained epochs after which a module's preview is noted.
        min_preview: points that it must then promise to be kept.
        keep_points: contribution in points, once it is blended in, above which it is FOSSILIZED.
    """

    blueprint: str = "conv_light"
    look_age: int = 2
    min_preview: float = 0.0
    keep_points: float = 0.5


class ProbeAndKeep:
    """Modules side by side, as far as ``slots.max_developing`` allows; one decision per environment and epoch.

    A module's preview is noted once, at one age for all: the first ones go on by themselves while others are still
    young (gate G2 gives a free place to whoever is ready). The ``max_seeds`` best that promise enough are the keepers.
    In this order, ties by canonical order of slots:

    1. GERMINATE in the next slot that was not tried yet.
    2. CULL one that is no keeper, nor will be whatever else is found: of those still developing the worst first, so
       that it does not take a place; then those that have one. A keeper whose gradient is so unhealthy that it would
       never blend is none.
    3. Once all are looked at: FOSSILIZE a keeper that has settled and is worth enough, CULL it if it is not.

    Args:
        parameters: of each environment.
        num_slots: S.
        max_seeds: modules that may be kept.
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

    def act(self, view: EnvView) -> Tensor:
        actions = waiting(view.state.num_envs)
        for env in range(view.state.num_envs):
            self._note(view, env)
            action = self._decide(view, env)
            if action is not None:
                actions[env] = action
        return actions

    def _note(self, view: EnvView, env: int) -> None:
        """Write down the previews of those that are old enough, or have gone on before that."""
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
