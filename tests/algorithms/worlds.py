"""Small worlds in which only one thing pays, behind the real lifecycle, masks and observations.

All pay with the last epoch of an episode: 1 for the right FOSSILIZED module, else 0. Two also charge on the way.

Axis legend: E = environments, S = slots.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from esper.config import compose
from esper.controllers import RandomLegal
from esper.envs.observations import Observation
from esper.experiment.learning import ppo_settings
from esper.growth import Applied, SlotState, Stage
from esper.growth.actions import OP_WAIT, ActionMasks, Blueprint
from esper.policy import GrowthPolicy, Hidden
from esper.policy.network import ActResult, Evaluation
from experiments.surrogate.learner import Learner, Recipe, play
from experiments.surrogate.simulated import Outcome, SimulatedEnv
from tests.schema_defaults import growth_rules

NUM_ENVS = 24
NOISE = 0.1


class World:
    """A world in which nothing pays. Each episode hides a place, ``target: int64 [E]``.

    Args:
        num_slots: S.
        seed: of what is hidden.
    """

    slot_probes = ("dead_channels",)

    def __init__(self, num_slots: int = 3, seed: int = 0) -> None:
        self.num_slots, self.epoch = num_slots, 0
        self.generator = torch.Generator().manual_seed(seed)
        self.target = torch.zeros(NUM_ENVS, dtype=torch.int64)
        self.birth = torch.zeros(NUM_ENVS, num_slots, dtype=torch.int64)

    def begin(self) -> None:
        self.epoch = 0
        self.target = torch.randint(self.num_slots, (NUM_ENVS,), generator=self.generator)
        self.birth = torch.zeros_like(self.birth)

    def probes(self) -> Tensor:
        return self.hints().unsqueeze(-1)

    def live(self, state: SlotState, applied: Applied, epoch: int, ended: bool) -> Outcome:
        self.epoch = epoch
        self.birth = torch.where(applied.germinated, epoch, self.birth)
        zeros = torch.zeros(NUM_ENVS, dtype=torch.float64)
        kept = state.stage == Stage.FOSSILIZED
        return Outcome(
            reward=self.pay(state, kept, applied) if ended else self.charge(applied),
            contribution=torch.zeros(NUM_ENVS, self.num_slots, dtype=torch.float64),
            loss=zeros + 1.0,
            accuracy=zeros + self.accuracy(),
        )

    def hints(self) -> Tensor:
        """Slot probes, ``float [E, S]``."""
        return torch.zeros(NUM_ENVS, self.num_slots)

    def accuracy(self) -> Tensor | float:
        """Validation accuracy, ``[E]`` in [0, 1]."""
        return 0.5

    def charge(self, applied: Applied) -> Tensor:
        """Reward of every epoch but the last."""
        return torch.zeros(NUM_ENVS)

    def pay(self, state: SlotState, kept: Tensor, applied: Applied) -> Tensor:
        """Reward of the last epoch, given the FOSSILIZED modules, ``kept: bool [E, S]``."""
        return torch.zeros(NUM_ENVS)

    def noise(self) -> Tensor:
        return NOISE * torch.randn(NUM_ENVS, self.num_slots, generator=self.generator)

    def cue(self) -> Tensor:
        """1 at the target, 0 elsewhere, ``[E, S]``."""
        return torch.nn.functional.one_hot(self.target, self.num_slots).float()


class BlueprintWorld(World):
    """A module of one blueprint pays, in any slot."""

    def pay(self, state: SlotState, kept: Tensor, applied: Applied) -> Tensor:
        return (kept & (state.blueprint == Blueprint.BOTTLENECK)).any(1).float()


class SlotWorld(World):
    """A module in slot 1 pays, of any blueprint."""

    def pay(self, state: SlotState, kept: Tensor, applied: Applied) -> Tensor:
        return kept[:, 1].float()


class MomentWorld(World):
    """A module pays that was germinated in one given epoch."""

    moment = 4

    def pay(self, state: SlotState, kept: Tensor, applied: Applied) -> Tensor:
        return (kept & (self.birth == self.moment)).any(1).float()


class MemoryWorld(World):
    """The paying slot is shown before the first epoch only, and germinating in the first two epochs costs 1. So no
    policy can act on it immediately, nor mark the slot for less than it pays.
    """

    too_early = 2

    def hints(self) -> Tensor:
        return self.noise() + (self.cue() if self.epoch == 0 else 0.0)

    def charge(self, applied: Applied) -> Tensor:
        return -(applied.germinated.any(1) & (self.epoch <= self.too_early)).float()

    def pay(self, state: SlotState, kept: Tensor, applied: Applied) -> Tensor:
        return (kept & self.cue().bool()).any(1).float()


class ScaffoldWorld(World):
    """A module in slot 1 pays if one in slot 0 was FOSSILIZED when it was germinated; neither pays alone."""

    def begin(self) -> None:
        super().begin()
        self.scaffold = torch.zeros(NUM_ENVS, dtype=torch.int64)

    def charge(self, applied: Applied) -> Tensor:
        self.scaffold = torch.where(applied.fossilized[:, 0], self.epoch, self.scaffold)
        return super().charge(applied)

    def pay(self, state: SlotState, kept: Tensor, applied: Applied) -> Tensor:
        in_order = (self.scaffold > 0) & (self.birth[:, 1] > self.scaffold)
        return (kept[:, 1] & in_order).float()


class StarvedWorld(World):
    """A module pays in the slot that this episode's probes indicate; ``blind`` switches the probes off."""

    def __init__(self, num_slots: int = 3, seed: int = 0, blind: bool = False) -> None:
        super().__init__(num_slots, seed)
        self.blind = blind

    def hints(self) -> Tensor:
        return self.noise() + (0.0 if self.blind else self.cue())

    def pay(self, state: SlotState, kept: Tensor, applied: Applied) -> Tensor:
        return (kept & self.cue().bool()).any(1).float()


class WaitWorld(World):
    """Half of the hosts are saturated, as their accuracy shows after the first epoch: each germination there costs 1.

    On the others a FOSSILIZED module pays 1, so that growing regardless earns at most 0.
    """

    def accuracy(self) -> Tensor | float:
        return torch.where(self.saturated(), 0.95, 0.5).double()

    def saturated(self) -> Tensor:
        return self.target == 0

    def charge(self, applied: Applied) -> Tensor:
        return -(applied.germinated.any(1) & self.saturated()).float()

    def pay(self, state: SlotState, kept: Tensor, applied: Applied) -> Tensor:
        return self.charge(applied) + (kept.any(1) & ~self.saturated()).float()


class Forgetful(GrowthPolicy):
    """A policy whose hidden state is zero before each step, in the rollout and in the update."""

    def act(
        self, features: Tensor, blueprint_index: Tensor, masks: ActionMasks, hidden: Hidden, *rest: Any, **options: Any
    ) -> ActResult:
        return super().act(features, blueprint_index, masks, self.initial_state(len(features)), *rest, **options)

    def value(self, features: Tensor, blueprint_index: Tensor, masks: ActionMasks, hidden: Hidden) -> Tensor:
        return super().value(features, blueprint_index, masks, self.initial_state(len(features)))

    def evaluate(
        self,
        features: Tensor,
        blueprint_index: Tensor,
        masks: ActionMasks,
        actions: Tensor,
        hidden: Hidden,
        ends: Tensor,
    ) -> Evaluation:
        fresh = self.initial_state(len(features))
        return super().evaluate(features, blueprint_index, masks, actions, fresh, torch.ones_like(ends))


class Unmasked(SimulatedEnv):
    """An environment whose masks allow everything; an illegal action changes nothing."""

    def observation(self) -> Observation:
        seen = super().observation()
        masks = seen.masks
        slot = torch.ones_like(masks.slot)
        slot[:, OP_WAIT] = False
        everything = ActionMasks(
            op=torch.ones_like(masks.op), slot=slot, blueprint=torch.ones_like(masks.blueprint), alpha=masks.alpha
        )
        return replace(seen, masks=everything)


def environment(
    world: World,
    num_epochs: int = 12,
    *,
    max_seeds: int = 1,
    min_cull_age: int = 1,
    kind: type[SimulatedEnv] = SimulatedEnv,
) -> SimulatedEnv:
    """Build an environment with the real rules in short: a module can be FOSSILIZED five epochs after its
    germination.
    """
    rules = growth_rules(
        max_developing=world.num_slots,
        max_seeds=max_seeds,
        min_training_epochs=1,
        min_cull_age=min_cull_age,
        embargo_epochs=1,
    )
    return kind(world, NUM_ENVS, world.num_slots, rules=rules, num_epochs=num_epochs)


@cache
def recipe(*overrides: str) -> Recipe:
    """Return the digits preset's policy and hyperparameters, with overrides as on the command line."""
    config = compose("+preset=digits", *overrides)
    return Recipe(config=config, settings=ppo_settings(config.ppo))


def learned_return(
    env: SimulatedEnv, num_iterations: int, *, enough: float = math.inf, kind: type[GrowthPolicy] = GrowthPolicy
) -> float:
    """Learn with the digits preset's numbers until returns suffice, and return the mean greedy return."""
    learner = Learner(env, recipe(), 0, kind)

    def greedy() -> float:
        return float(torch.stack([play(env, learner.policy, learner.normaliser) for _ in range(4)]).mean())

    for iteration in range(num_iterations):
        if learner.iterate(iteration)["return"] > enough and (found := greedy()) > enough:
            return found
    return greedy()


def iterations_to_learn(env: SimulatedEnv, limit: int, seed: int = 0, *, overrides: tuple[str, ...] = ()) -> int:
    """After how many iterations a rollout first returns 0.9 on average, and the policy more than that when greedy.

    Args:
        env: to learn on.
        limit: iterations after which the count stops; one more is returned if none of them suffices.
        seed: seed of the run.
        overrides: of the digits preset.
    """
    learner = Learner(env, recipe(*overrides), seed)
    for iteration in range(limit):
        if (
            learner.iterate(iteration)["return"] > 0.9
            and float(play(env, learner.policy, learner.normaliser).mean()) > 0.9
        ):
            return iteration + 1
    return limit + 1


def random_return(env: SimulatedEnv, seed: int = 0, num_episodes: int = 8) -> float:
    """Mean return of random legal actions."""
    controller = RandomLegal(torch.Generator().manual_seed(seed))
    total = 0.0
    for _ in range(num_episodes):
        observation = env.reset()
        for _ in range(env.num_epochs):
            step = env.step(controller.act(env.view(observation)))
            observation = step.observation
            total += float(step.reward.mean())
    return total / num_episodes
