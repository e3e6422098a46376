"""Proximal policy optimisation: rollout buffer, advantages, losses, update and its diagnostics."""

from esper.ppo.buffer import RolloutBatch, RolloutBuffer
from esper.ppo.diagnostics import Metrics, RatioEntry, RatioExplosionDiagnostic
from esper.ppo.gae import gae, monte_carlo_returns
from esper.ppo.losses import linear_schedule
from esper.ppo.update import ENTROPY_MULTIPLIERS, PPOSettings, UpdateResult, ppo_update

__all__ = [
    "ENTROPY_MULTIPLIERS",
    "Metrics",
    "PPOSettings",
    "RatioEntry",
    "RatioExplosionDiagnostic",
    "RolloutBatch",
    "RolloutBuffer",
    "UpdateResult",
    "gae",
    "linear_schedule",
    "monte_carlo_returns",
    "ppo_update",
]
