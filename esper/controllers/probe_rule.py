"""A hand rule on slot probes and the score of the first epochs: grow where the host looks starved.

Axis legend: E = environments, S = slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.blueprints import blueprint_ids
from esper.controllers.base import germinate, on_slot, waiting
from esper.envs.features import num_features
from esper.envs.records import EnvView
from esper.growth.actions import OP_FOSSILIZE, OP_GERMINATE, Op
from esper.population.probes import PROBE_NAMES


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRuleParameters:
    """Thresholds of the rule.

    A slot's starvation is: share of dead channels + ``rank_weight`` x (1 - effective rank) + ``gradient_weight`` x
    gradient norm + ``gain_weight`` x first-order gain, each probe on the scale of the observation; one that is not
    observed adds nothing.

    Attributes:
        blueprint: what grows, by id.
        min_starvation: of a slot in which it grows from the start.
        rank_weight, gradient_weight, gain_weight: of the other probes beside the share of dead channels.
        num_modules: most slots in which it grows from the start.
        check_epoch: host epochs after which a host without a starved slot is looked at again.
        max_accuracy: val accuracy in [0, 1] then, below which it grows in the default slot after all.
        default_slot: its number in canonical order.
    """

    blueprint: str = "conv_light"
    min_starvation: float = 0.5
    rank_weight: float = 0.0
    gradient_weight: float = 0.0
    gain_weight: float = 0.0
    num_modules: int = 1
    check_epoch: int = 3
    max_accuracy: float = 0.3
    default_slot: int = 0

    def starvation(self, probes: Mapping[str, Tensor]) -> Tensor:
        """``float [S]`` of probes ``[S]`` by name, at least one."""
        weights = {
            "dead_channels": 1.0,
            "effective_rank": -self.rank_weight,
            "log_gradient_norm": self.gradient_weight,
            "log_first_order_gain": self.gain_weight,
        }
        offset = self.rank_weight if "effective_rank" in probes else 0.0
        return torch.stack([weights[name] * values for name, values in probes.items()]).sum(dim=0) + offset


def observed_probes(view: EnvView) -> dict[str, Tensor]:
    """The slot probes in an observation, ``float [E, S]`` by name.

    Raises:
        ValueError: the observation has none.
    """
    if not view.slot_probes:
        raise ValueError(f"the controller probe_rule needs observation.slot_probes: some of {', '.join(PROBE_NAMES)}")
    num_slots = len(view.slot_ids)
    columns = view.observation.features[:, num_features(num_slots) :].view(-1, num_slots, len(view.slot_probes))
    return dict(zip(view.slot_probes, columns.unbind(dim=2), strict=True))


class ProbeRule:
    """Looks twice at each host: at its slots before the first epoch, and at its score a few epochs later.

    1. At the start, GERMINATE in the slots that look most starved, if they are starved enough; ties go by canonical
       order.
    2. If none was, and val accuracy is low at the check, GERMINATE in the default slot.
    3. FOSSILIZE whatever grew as soon as that is legal. A host that passes both looks is left alone.

    Args:
        parameters: of each environment.
    """

    name = "probe_rule"

    def __init__(self, parameters: Sequence[ProbeRuleParameters]) -> None:
        self._parameters = list(parameters)
        self._blueprints = [blueprint_ids().index(each.blueprint) for each in parameters]
        self._wanted: list[list[int]] = [[] for _ in parameters]
        self._looks = [0] * len(self._parameters)

    def reset(self, which: Tensor) -> None:
        for env in which.nonzero().flatten().tolist():
            self._wanted[env], self._looks[env] = [], 0

    def act(self, view: EnvView) -> Tensor:
        masks = view.observation.masks
        actions = waiting(view.state.num_envs)
        self._look(view)
        for env, wanted in enumerate(self._wanted):
            ripe = masks.slot[env, OP_FOSSILIZE].nonzero().flatten().tolist()
            if ripe:
                actions[env] = on_slot(Op.FOSSILIZE, ripe[0])
                continue
            legal = [slot for slot in wanted if masks.slot[env, OP_GERMINATE, slot]]
            if legal:
                actions[env] = germinate(legal[0], self._blueprints[env])
                wanted.remove(legal[0])
        return actions

    def _look(self, view: EnvView) -> None:
        """Note in which slots to grow, where a look is due."""
        probes = observed_probes(view)
        accuracy = view.history.accuracies[:, -1].tolist()
        for env, epoch in enumerate(view.history.epoch.tolist()):
            rule, fits = self._parameters[env], view.observation.masks.blueprint[env, :, self._blueprints[env]]
            if self._looks[env] == 0:
                own = {name: values[env] for name, values in probes.items()}
                starvation = rule.starvation(own).masked_fill(~fits, -torch.inf)
                order = starvation.argsort(descending=True, stable=True)[: rule.num_modules].tolist()
                self._wanted[env] = [slot for slot in order if starvation[slot] >= rule.min_starvation]
                self._looks[env] = 2 if self._wanted[env] else 1
            elif self._looks[env] == 1 and epoch >= rule.check_epoch:
                if fits[rule.default_slot] and accuracy[env] < rule.max_accuracy:
                    self._wanted[env] = [rule.default_slot]
                self._looks[env] = 2
