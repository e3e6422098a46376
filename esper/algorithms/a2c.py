"""Advantage actor-critic: one gradient step over a whole rollout."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from esper.algorithms.buffer import RolloutBuffer
from esper.algorithms.contract import UpdateResult
from esper.algorithms.diagnostics import UpdateCounters, rollout_metrics
from esper.algorithms.losses import actor_critic_loss, entropy_bonus, policy_gradient, value_loss
from esper.algorithms.optimizer import PolicyOptimizer
from esper.algorithms.schedule import Schedule
from esper.policy.network import GrowthPolicy
from esper.runtime.ranks import ALONE, Ranks
from esper.runtime.state import Stateful


@dataclass(frozen=True, slots=True, kw_only=True)
class A2CSettings:
    """Hyperparameters of an update.

    Attributes:
        schedule: learning rate and entropy coefficient.
        adam_eps: epsilon of the optimizer.
        gae_lambda: decay of the advantage estimator; 1 = returns of the whole episode.
        vf_coef: weight of the value loss.
        max_grad_norm: largest gradient norm of a step.
    """

    schedule: Schedule
    adam_eps: float
    gae_lambda: float
    vf_coef: float
    max_grad_norm: float


class A2C:
    """A2C (Mnih et al. 2016, in its synchronous form), which improves a policy together with all other ranks.

    Args:
        policy: changed in place.
        settings: hyperparameters of an update.
        gamma: the environment's discount.
        ranks: the ranks of the run.
    """

    def __init__(self, policy: GrowthPolicy, settings: A2CSettings, *, gamma: float, ranks: Ranks = ALONE) -> None:
        self.policy, self.settings, self.ranks = policy, settings, ranks
        self.optimizer = PolicyOptimizer(
            policy, lr=settings.schedule.lr, eps=settings.adam_eps, max_grad_norm=settings.max_grad_norm, ranks=ranks
        )
        self.shared = self.optimizer.components
        self.own: dict[str, Stateful] = {}
        self._gamma = gamma

    def update(self, buffer: RolloutBuffer, iteration: int) -> UpdateResult:
        """Take one step; skip and count the rollout if loss or gradient is not finite on some rank."""
        data, settings, ranks, counters = buffer.data, self.settings, self.ranks, UpdateCounters()
        self.optimizer.lr, ent_coef = settings.schedule.at(iteration)
        advantages, returns = data.advantages(self._gamma, settings.gae_lambda)
        metrics = rollout_metrics(data, self._gamma, ranks)
        steps, choices = ranks.sum(torch.stack([torch.ones_like(data.choice).sum(), data.choice.sum()])).tolist()
        choices = max(choices, 1)
        evaluation = data.evaluate(self.policy)
        terms = (
            policy_gradient(evaluation.log_prob, advantages, data.choice),
            value_loss(evaluation.q, data.q, returns, clip=None),
            entropy_bonus(evaluation.entropy, data.choice),
        )
        loss = actor_critic_loss(*terms, steps=steps, choices=choices, ent_coef=ent_coef, vf_coef=settings.vf_coef)
        counters.observe(evaluation)
        summed = self.optimizer.backward(loss, terms)
        grad_norm = self.optimizer.step()
        if summed is None or grad_norm is None:
            counters.skipped_minibatches += 1
        else:
            policy, value, entropy = summed
            counters.add(
                policy_loss=policy / choices, value_loss=value / steps, entropy=entropy / choices, grad_norm=grad_norm
            )
        return UpdateResult(
            metrics={
                **metrics,
                **counters.merged(ranks).metrics(),
                "charts/ent_coef": ent_coef,
                "charts/learning_rate": self.optimizer.lr,
            }
        )
