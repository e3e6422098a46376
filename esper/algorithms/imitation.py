"""Imitation of another controller's actions (behaviour cloning), with the value of its behaviour.

Axis legend: E = environments, T = steps, n = environments of a minibatch, 8 = heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from esper.algorithms.buffer import RolloutBatch, RolloutBuffer, minibatch_sizes
from esper.algorithms.contract import UpdateResult
from esper.algorithms.diagnostics import UpdateCounters, rollout_metrics
from esper.algorithms.losses import actor_critic_loss, cross_entropy, entropy_bonus, value_loss
from esper.algorithms.optimizer import PolicyOptimizer
from esper.growth.actions import OP_WAIT, Head
from esper.policy.network import Evaluation, GrowthPolicy
from esper.runtime.ranks import ALONE, Ranks
from esper.runtime.records import Metrics
from esper.runtime.state import RandomStream


@dataclass(frozen=True, slots=True, kw_only=True)
class ImitationSettings:
    """Hyperparameters of an update.

    Attributes:
        lr: learning rate.
        adam_eps: epsilon of the optimizer.
        num_minibatches: parts of the environments per pass.
        update_epochs: passes over the rollout.
        ent_coef: weight of the entropy bonus.
        vf_coef: weight of the value loss.
        max_grad_norm: largest gradient norm of a step.
    """

    lr: float
    adam_eps: float
    num_minibatches: int
    update_epochs: int
    ent_coef: float
    vf_coef: float
    max_grad_norm: float


class Imitation:
    """An algorithm for rollouts that another controller has played.

    The policy learns its actions by cross-entropy, and its returns by the value loss. A step counts if more than one op
    was legal and the policy's heads have all the choices of the action; of others only the return is learned.

    Args:
        policy: changed in place.
        settings: hyperparameters of an update.
        gamma: the environment's discount.
        generator: CPU generator that orders the environments.
        ranks: the ranks of the run.
    """

    def __init__(
        self,
        policy: GrowthPolicy,
        settings: ImitationSettings,
        *,
        gamma: float,
        generator: torch.Generator,
        ranks: Ranks = ALONE,
    ) -> None:
        self.policy, self.settings, self.ranks = policy, settings, ranks
        self.optimizer = PolicyOptimizer(
            policy, lr=settings.lr, eps=settings.adam_eps, max_grad_norm=settings.max_grad_norm, ranks=ranks
        )
        self.shared = self.optimizer.components
        self.own = {"shuffling": RandomStream(generator)}
        self._gamma, self._generator = gamma, generator

    def update(self, buffer: RolloutBuffer, iteration: int) -> UpdateResult:
        """Take several passes over a rollout.

        Returns:
            Metrics in which losses are means over the minibatches stepped on, and agreement is that of the policy
            before the update, which has not learned from this rollout yet.

        Raises:
            ValueError: more minibatches than environments.
        """
        data, settings, ranks = buffer.data, self.settings, self.ranks
        counted = data.choice & self.policy.heads.offer(data.actions, data.masks)
        _, returns = data.advantages(self._gamma, 1.0)
        metrics = {**rollout_metrics(data, self._gamma, ranks), **_agreement(data, counted, self.policy, ranks)}
        counters = UpdateCounters(names=("cross_entropy", "value_loss", "entropy", "grad_norm"))
        orders = [buffer.minibatches(settings.num_minibatches, self._generator) for _ in range(settings.update_epochs)]
        sizes = ranks.sum(minibatch_sizes(orders, counted.cpu())).tolist()
        for epoch, number in product(range(settings.update_epochs), range(settings.num_minibatches)):
            envs = orders[epoch][number].to(data.reward.device, non_blocking=True)
            batch = data[envs]
            evaluation = batch.evaluate(self.policy)
            terms = (
                cross_entropy(evaluation.log_prob, counted[envs]),
                value_loss(evaluation.q, batch.q, returns[envs], clip=None),
                entropy_bonus(evaluation.entropy, counted[envs]),
            )
            self._step(terms, evaluation, sizes[epoch][number], counters)
        return UpdateResult(
            metrics={
                **metrics,
                **counters.merged(ranks).metrics(),
                "charts/ent_coef": settings.ent_coef,
                "charts/learning_rate": self.optimizer.lr,
            }
        )

    def _step(
        self,
        terms: tuple[Tensor, Tensor, Tensor],
        evaluation: Evaluation,
        size: Sequence[float],
        counters: UpdateCounters,
    ) -> None:
        """Take one optimizer step, unless loss or gradient is not finite on some rank.

        ``terms`` are the sums of cross-entropy, value loss and entropy; ``size`` counts the minibatch over all ranks:
        its steps, and those whose actions are learned.
        """
        steps, counted = size[0], max(size[1], 1.0)
        ent_coef, vf_coef = self.settings.ent_coef, self.settings.vf_coef
        loss = actor_critic_loss(*terms, steps=steps, choices=counted, ent_coef=ent_coef, vf_coef=vf_coef)
        counters.observe(evaluation)
        summed = self.optimizer.backward(loss, terms)
        grad_norm = self.optimizer.step()
        if summed is None or grad_norm is None:
            counters.skipped_minibatches += 1
            return
        surprise, value, entropy = summed
        counters.add(
            cross_entropy=surprise / counted,
            value_loss=value / steps,
            entropy=entropy / counted,
            grad_norm=grad_norm,
        )


def _agreement(data: RolloutBatch, counted: Tensor, policy: GrowthPolicy, ranks: Ranks) -> Metrics:
    """Return how often a policy's most probable choices are the rollout's actions, and how many it cannot take."""
    same, choice = data.prefers(policy), data.choice
    acts = choice & (data.actions[..., Head.OP] != OP_WAIT)
    parts = (choice, choice & same, acts, acts & same, choice & ~counted)
    choices, agreed, acting, agreed_acting, left_out = ranks.sum(torch.stack([part.sum() for part in parts])).tolist()
    return {
        "imitation/agreement": agreed / choices if choices else None,
        "imitation/agreement_acting": agreed_acting / acting if acting else None,
        "imitation/left_out": left_out / choices if choices else None,
    }
