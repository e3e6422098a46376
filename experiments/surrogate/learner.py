"""A preset's learner on a simulated environment, with its policy, update and schedules.

Axis legend: E = environments, T = steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from esper.algorithms import PPO, PPOSettings, RolloutBuffer
from esper.config import compose
from esper.config.root import Config
from esper.envs.features import continuous_features, feature_kinds
from esper.experiment.acting import policy_options
from esper.experiment.learning import ppo_settings
from esper.growth.actions import NUM_BLUEPRINTS
from esper.policy import GrowthPolicy, Normaliser
from esper.policy.normaliser import moments
from esper.runtime.records import Metrics
from esper.runtime.rng import derive_seed, generator
from esper.training.rollout import RolloutState, collect
from experiments.surrogate.simulated import SimulatedEnv


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Settings of a learner.

    Attributes:
        config: policy, coefficients and schedules.
        settings: hyperparameters of an update.
    """

    config: Config
    settings: PPOSettings

    def with_settings(self, **values: Any) -> Recipe:
        """Return a copy with other hyperparameters of the update."""
        return replace(self, settings=replace(self.settings, **values))


@cache
def recipe(*overrides: str, preset: str = "digits") -> Recipe:
    """Build the recipe of a preset, with overrides as on the command line."""
    config = compose(f"+preset={preset}", "recipe=full", *overrides)
    return Recipe(config=config, settings=ppo_settings(config.ppo))


def new_policy(
    env: SimulatedEnv, config: Config, seed: int, kind: Callable[..., GrowthPolicy] = GrowthPolicy
) -> GrowthPolicy:
    """Build a policy of the configured widths for an environment's slots and probes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("policy", seed))
        return kind(
            env.num_slots,
            NUM_BLUEPRINTS,
            num_probes=len(env.world.slot_probes),
            **policy_options(config.policy),
        )


class Learner:
    """A policy that learns in one environment.

    Args:
        env: environment to learn in.
        recipe: settings of the learner.
        seed: seed of policy, actions and minibatches.
        kind: class of the policy.
        num_steps: steps of each environment per rollout; default: whole episodes.
    """

    def __init__(
        self,
        env: SimulatedEnv,
        recipe: Recipe,
        seed: int,
        kind: Callable[..., GrowthPolicy] = GrowthPolicy,
        num_steps: int | None = None,
    ) -> None:
        self.env, self.recipe = env, recipe
        self.policy = new_policy(env, recipe.config, seed, kind)
        seen = env.num_slots, env.world.slot_probes
        kinds = feature_kinds(*seen) if self.policy.for_any_slots else None
        self.normaliser = Normaliser(continuous_features(*seen), kinds)
        self.algorithm = PPO(
            self.policy, recipe.settings, gamma=recipe.config.ppo.gamma, generator=generator("minibatches", seed)
        )
        policy = self.policy
        self.buffer = RolloutBuffer(
            env.num_envs,
            num_steps or env.num_epochs,
            policy.num_features,
            policy.num_slots,
            policy.num_blueprints,
            policy.state_dim,
        )
        self._actions = generator("actions", seed)
        self._rollout = RolloutState(env.reset(), policy.initial_state(env.num_envs))

    def iterate(self, iteration: int) -> Metrics:
        """Collect one rollout and update the policy, ``iteration`` from 0; metrics include ``return``, the mean scaled
        return.
        """
        raw = collect(
            self.env,  # type: ignore[arg-type]
            self.policy,
            self.normaliser,
            self.buffer,
            self._rollout,
            self._actions,
            lambda observation, actions, result: None,
        )
        result = self.algorithm.update(self.buffer, iteration + 1)
        self.normaliser.merge(moments(raw))
        return {**result.metrics, "return": float(self.buffer.data.reward.sum(1).mean())}


@torch.no_grad()
def play(
    env: SimulatedEnv, policy: GrowthPolicy, normaliser: Normaliser, stream: torch.Generator | None = None
) -> Tensor:
    """Play one episode in every environment, greedily or sampled from ``stream``, and return its returns, ``float
    [E]``.
    """
    observation, hidden = env.reset(), policy.initial_state(env.num_envs)
    returns = torch.zeros(env.num_envs)
    for _ in range(env.num_epochs):
        act = policy.act(
            normaliser(observation.features),
            observation.blueprint_index,
            observation.masks,
            hidden,
            stream,
            deterministic=stream is None,
        )
        step = env.step(act.actions)
        observation, hidden = step.observation, act.hidden
        returns += step.reward
    return returns
