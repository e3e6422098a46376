"""A hand-written rule that reads slot probes and the score of the first epochs, and grows where the host looks starved.

Axis legend: E = environments, S = slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.blueprints import blueprint_ids
from esper.controllers.base import germinate, on_slot, waiting
from esper.controllers.tunable import Choices, Space, rule
from esper.envs.features import num_features
from esper.envs.records import EnvView
from esper.growth.actions import OP_FOSSILIZE, OP_GERMINATE, Op
from esper.population.probes import PROBE_NAMES
from esper.runtime.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRuleParameters:
    """Thresholds of the rule.

    The starvation of a slot is: share of dead channels + ``rank_weight`` x (1 - effective rank) + ``gradient_weight`` x
    gradient norm + ``gain_weight`` x first-order gain, each probe on the scale of the observation; an unobserved probe
    adds nothing.

    Attributes:
        blueprint: blueprint to grow, by id.
        min_starvation: starvation of a slot from which on it grows at the start.
        rank_weight, gradient_weight, gain_weight: weights of the probes other than the share of dead channels.
        num_modules: largest number of slots that grow at the start.
        check_epoch: host epochs after which a host without a starved slot is checked again.
        max_accuracy: val accuracy in [0, 1] at that check below which the default slot grows after all.
        default_slot: number of the default slot in canonical order.
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
        """Compute the starvation ``float [S]`` from probes ``[S]`` by name, at least one."""
        weights = {
            "dead_channels": 1.0,
            "effective_rank": -self.rank_weight,
            "log_gradient_norm": self.gradient_weight,
            "log_first_order_gain": self.gain_weight,
        }
        offset = self.rank_weight if "effective_rank" in probes else 0.0
        return torch.stack([weights[name] * values for name, values in probes.items()]).sum(dim=0) + offset


def observed_probes(view: EnvView) -> dict[str, Tensor]:
    """Return the slot probes in an observation, ``float [E, S]`` by name.

    Raises:
        ValueError: the observation has none.
    """
    if not view.slot_probes:
        raise ValueError(f"the controller probe_rule needs observation.slot_probes: some of {', '.join(PROBE_NAMES)}")
    num_slots = len(view.slot_ids)
    block = slice(num_features(num_slots), num_features(num_slots, len(view.slot_probes)))
    columns = view.observation.features[:, block].view(-1, num_slots, len(view.slot_probes))
    return dict(zip(view.slot_probes, columns.unbind(dim=2), strict=True))


class ProbeRule:
    """The rule, which checks each host twice: its slots before the first epoch, and its score a few epochs later.

    1. At the start, GERMINATE in the most starved slots that reach the threshold; ties go by canonical order. 2. If
    there was none, and val accuracy is low at the check, GERMINATE in the default slot. 3. FOSSILIZE every module as
    soon as that is legal. A host that passes both checks is left alone.

    Args:
        parameters: parameters of each environment.
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

    def state_dict(self) -> State:
        return {"wanted": [list(slots) for slots in self._wanted], "looks": list(self._looks)}

    def load_state_dict(self, state: State) -> None:
        self._wanted, self._looks = [list(slots) for slots in state["wanted"]], list(state["looks"])

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
        """Record the slots to grow in, for hosts whose check is due."""
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


def choices(space: Space) -> Choices:
    """Values that a search may give to each threshold."""
    return {
        "blueprint": space.blueprints,
        "min_starvation": (0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5),
        "rank_weight": (0.0, 0.5, 1.0),
        "gradient_weight": (-0.5, 0.0, 0.0, 0.5),
        "gain_weight": (-0.5, 0.0, 0.0, 0.5),
        "num_modules": tuple(range(1, space.max_seeds + 1)),
        "check_epoch": tuple(range(1, min(6, space.num_epochs))) or (1,),
        "max_accuracy": (0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6),
        "default_slot": tuple(range(space.num_slots)),
    }


TUNABLE = rule(ProbeRuleParameters, choices, lambda rows, space: ProbeRule(rows), needs_search=True)
