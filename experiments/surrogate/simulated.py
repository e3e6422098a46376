"""The growth environment without hosts: real rules, masks and observations around a simulated world.

Axis legend: E = environments, S = slots, B = blueprints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from esper.blueprints import build_blueprint, compatible
from esper.envs.history import HostHistory
from esper.envs.observations import Observation, observe
from esper.envs.records import EnvView
from esper.growth import (
    Applied,
    GrowthRules,
    SeedReport,
    SlotState,
    apply_actions,
    legal,
    record_contributions,
    record_gradients,
    record_parameters,
    reports,
    tick,
    transition,
)
from esper.growth.actions import BLUEPRINT_IDS, NUM_BLUEPRINTS, Blueprint, Head

WIDTH = 8
"""Channels at every place of the digits host."""


def _cnn_parameters() -> dict[Blueprint, int]:
    fits = compatible([("cnn", WIDTH)])[0]
    with torch.device("meta"):
        modules = {kind: build_blueprint("cnn", kind.name.lower(), WIDTH) for kind in Blueprint if fits[kind]}
    return {kind: sum(parameter.numel() for parameter in module.parameters()) for kind, module in modules.items()}


CNN_PARAMETERS = _cnn_parameters()
"""Number of parameters of each blueprint that fits a CNN host."""

HOST_PARAMETERS = 1362
"""Number of parameters of the digits host."""


def cnn_blueprints(num_slots: int) -> Tensor:
    """Return which blueprints fit a CNN host, ``bool [S, B]``."""
    fits = torch.zeros(num_slots, NUM_BLUEPRINTS, dtype=torch.bool)
    fits[:, list(CNN_PARAMETERS)] = True
    return fits


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of one epoch.

    Attributes:
        reward: ``float [E]``, scaled.
        contribution: ``float64 [E, S]``, points; ignored where there is no module.
        loss, accuracy: ``float64 [E]``, on the validation split.
    """

    reward: Tensor
    contribution: Tensor
    loss: Tensor
    accuracy: Tensor


class World(Protocol):
    """Interface of a simulated world, which replaces hosts, data and reward."""

    slot_probes: tuple[str, ...]
    """Names of the probes."""

    def begin(self) -> None:
        """Draw new instances for all environments."""

    def probes(self) -> Tensor:
        """Return the slot probes of the current hosts, ``float [E, S, probes]``."""

    def live(self, state: SlotState, applied: Applied, epoch: int, ended: bool) -> Outcome:
        """Train and validate one epoch.

        Args:
            state: state of the slots, after alphas and clocks have advanced; read only.
            applied: effects of the action.
            epoch: number of the epoch, from 1.
            ended: true in the last epoch of the episode.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedStep:
    """The part of a step result that :func:`esper.training.rollout.collect` reads; see
    :class:`esper.envs.records.StepResult`.
    """

    observation: Observation
    reward: Tensor
    terminated: Tensor


class SimulatedEnv:
    """E simulated environments whose episodes start and end together.

    Args:
        world: simulated hosts and rewards.
        num_envs: E.
        num_slots: S.
        rules: rules of growth.
        num_epochs: length of an episode.
    """

    def __init__(self, world: World, num_envs: int, num_slots: int, *, rules: GrowthRules, num_epochs: int) -> None:
        self.world, self.num_envs, self.num_slots = world, num_envs, num_slots
        self.rules, self.num_epochs = rules, num_epochs
        self.compatible = cnn_blueprints(num_slots)
        self.slot_ids = tuple(f"r0c{slot}" for slot in range(num_slots))
        self.state = SlotState.empty(num_envs, num_slots)
        self.history = HostHistory.empty(num_envs)
        self._parameters = torch.zeros(NUM_BLUEPRINTS, dtype=torch.int64)
        self._parameters[list(CNN_PARAMETERS)] = torch.tensor(list(CNN_PARAMETERS.values()))
        self._host = torch.full((num_envs,), HOST_PARAMETERS)
        self._everywhere = torch.ones(num_envs, dtype=torch.bool)

    def reset(self, which: Tensor | None = None) -> Observation:
        """Start new episodes in all environments."""
        assert which is None or which.all(), "episodes start together"
        self.world.begin()
        self.state = SlotState.empty(self.num_envs, self.num_slots)
        self.history = HostHistory.empty(self.num_envs)
        return self.observation()

    def step(self, actions: Tensor) -> SimulatedStep:
        """Advance one epoch, in the order of :class:`esper.envs.growth.GrowthEnv`; ``actions: int64 [E, 8]``."""
        state = self.state
        applied = apply_actions(state, actions, self.compatible, self.rules)
        self.history.record_action(actions[:, Head.OP], applied.success)
        tick(state)
        epoch = int(self.history.epoch[0]) + 1
        ended = epoch >= self.num_epochs
        present = state.present
        record_parameters(state, self._parameters[state.blueprint], present)
        healthy = torch.ones(present.shape, dtype=torch.float64)
        record_gradients(state, healthy, healthy[:, 0], self._host, self.rules)
        outcome = self.world.live(state, applied, epoch, ended)
        record_contributions(state, torch.where(present, outcome.contribution, torch.nan))
        transition(state, self.rules)
        self.history.record(outcome.loss, outcome.accuracy)
        return SimulatedStep(
            observation=self.observation(),
            reward=outcome.reward.float(),
            terminated=self._everywhere if ended else ~self._everywhere,
        )

    def observation(self) -> Observation:
        """Return the current observation."""
        features, blueprint_index = observe(
            self.history,
            self.state,
            num_epochs=self.num_epochs,
            param_budget=4.0 * self._host,
            min_training_epochs=self.rules.min_training_epochs,
            contribution_decay=0.995,
            probes=self.world.probes(),
        )
        masks = legal(self.state, self.compatible, self.rules)
        return Observation(features=features, blueprint_index=blueprint_index, masks=masks)

    def view(self, observation: Observation) -> EnvView:
        """Combine the observation with the arrays behind it, for rule-based controllers."""
        return EnvView(
            observation=observation,
            state=self.state,
            history=self.history,
            slot_ids=self.slot_ids,
            slot_probes=self.world.slot_probes,
        )

    def reports(self, environment: int) -> dict[str, SeedReport]:
        """Return readable records of one environment's slots."""
        return reports(self.state, environment, self.slot_ids, HOST_PARAMETERS, self.rules, BLUEPRINT_IDS)
