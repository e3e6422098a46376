"""Runtime settings with the numbers of the configuration schema, but for those that a test gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from esper.algorithms import A2CSettings, ImitationSettings, PPOSettings, Schedule
from esper.config.learning import A2CConfig, ImitationConfig, PPOConfig
from esper.config.root import Config
from esper.envs.records import EnvSettings
from esper.experiment import acting, learning
from esper.growth import GrowthRules


def growth_rules(**given: Any) -> GrowthRules:
    """Limits and times of the lifecycle."""
    return replace(acting.growth_rules(Config()), **given)


def env_settings(**given: Any) -> EnvSettings:
    """Numbers of the growth environment."""
    return replace(acting.env_settings(Config()), **given)


def constant(lr: float, ent_coef: float) -> Schedule:
    """Learning rate and entropy coefficient that stay."""
    return Schedule(lr=lr, lr_final=lr, ent_coef=ent_coef, ent_coef_final=ent_coef, num_iterations=1)


def ppo_settings(*, lr: float = 1e-3, ent_coef: float = 0.01, **given: Any) -> PPOSettings:
    """Numbers of PPO on a constant schedule, if no other is given."""
    return replace(learning.ppo_settings(PPOConfig()), **{"schedule": constant(lr, ent_coef), **given})


def a2c_settings(*, lr: float = 1e-3, ent_coef: float = 0.01, **given: Any) -> A2CSettings:
    """Numbers of A2C on a constant schedule, if no other is given."""
    return replace(learning.a2c_settings(A2CConfig()), **{"schedule": constant(lr, ent_coef), **given})


def imitation_settings(**given: Any) -> ImitationSettings:
    """Numbers of imitation."""
    return replace(learning.imitation_settings(ImitationConfig()), **given)
