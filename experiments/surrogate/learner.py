"""A preset's learner on a simulated environment: its policy, its update, its schedules.

Axis legend: E = environments, T = steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from esper.config import compose
from esper.config.root import Config
from esper.envs.features import continuous_features, num_features
from esper.experiment.build import ppo_settings, scheduled
from esper.growth.actions import NUM_BLUEPRINTS
from esper.policy import GrowthPolicy, Normaliser
from esper.policy.normaliser import moments
from esper.ppo import Metrics, PPOSettings, RolloutBuffer, ppo_update
from esper.runtime.rng import derive_seed, generator
from esper.training.rollout import Carry, collect
from experiments.surrogate.simulated import SimulatedEnv


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to learn.

    Attributes:
        config: policy, coefficients and schedules.
        settings: numbers of an update.
    """

    config: Config
    settings: PPOSettings

    def with_settings(self, **values: Any) -> Recipe:
        """The same but for some numbers of the update."""
        return replace(self, settings=replace(self.settings, **values))


@cache
def recipe(*overrides: str, preset: str = "digits") -> Recipe:
    """A preset's, with overrides as on the command line."""
    config = compose(f"+preset={preset}", *overrides)
    return Recipe(config=config, settings=ppo_settings(config))


def new_policy(
    env: SimulatedEnv, config: Config, seed: int, kind: Callable[..., GrowthPolicy] = GrowthPolicy
) -> GrowthPolicy:
    """A policy of the configured widths for an environment's slots and probes."""
    policy, num_slots, num_probes = config.policy, env.num_slots, len(env.world.slot_probes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("policy", seed))
        return kind(
            num_features(num_slots, num_probes),
            num_slots,
            NUM_BLUEPRINTS,
            num_probes=num_probes,
            embedding_dim=policy.embedding_dim,
            encoder_dim=policy.encoder_dim,
            lstm_dim=policy.lstm_dim,
            head_dim=policy.head_dim,
            blueprint_head_dims=policy.blueprint_head_dims,
            value_dim=policy.value_dim,
            conditional_heads=policy.conditional_heads,
            slot_head=policy.slot_head.name,
            critic=policy.critic.name,
        )


class Learner:
    """A policy that learns on one environment.

    Args:
        env: to learn on.
        recipe: how.
        seed: of policy, actions and minibatches.
        kind: class of the policy.
        num_steps: of each environment in a rollout; whole episodes, if not given.
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
        self.normaliser = Normaliser(continuous_features(env.num_slots, env.world.slot_probes))
        ppo = recipe.config.ppo
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=ppo.lr, eps=ppo.adam_eps)
        policy = self.policy
        self.buffer = RolloutBuffer(
            env.num_envs,
            num_steps or env.num_epochs,
            policy.num_features,
            policy.num_slots,
            policy.num_blueprints,
            policy.lstm_dim,
        )
        self._actions, self._order = generator("actions", seed), generator("minibatches", seed)
        self._carry = Carry(env.reset(), policy.initial_state(env.num_envs))

    def iterate(self, iteration: int) -> Metrics:
        """One rollout and update, ``iteration`` from 0; adds ``return``, the mean scaled reward that it brought."""
        raw = collect(
            self.env,  # type: ignore[arg-type]
            self.policy,
            self.normaliser,
            self.buffer,
            self._carry,
            self._actions,
            lambda observation, actions, result: None,
        )
        lr, ent_coef = scheduled(self.recipe.config.ppo, iteration)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        result = ppo_update(self.policy, self.optimizer, self.buffer, self.recipe.settings, ent_coef, self._order)
        self.normaliser.merge(moments(raw))
        return result.metrics | {"return": float(self.buffer.data.reward.sum(1).mean())}


@torch.no_grad()
def play(
    env: SimulatedEnv, policy: GrowthPolicy, normaliser: Normaliser, stream: torch.Generator | None = None
) -> Tensor:
    """Returns of one episode of every environment, ``float [E]``: greedy, or sampled from ``stream``."""
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
