"""Proximal policy optimisation: several passes over a rollout.

Axis legend: E = environments, T = steps, n = environments of a minibatch, 8 = heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

import torch
from torch import Tensor

from esper.algorithms.buffer import RolloutBatch, RolloutBuffer, minibatch_sizes
from esper.algorithms.contract import UpdateResult
from esper.algorithms.diagnostics import Evaluated, UpdateCounters, ratio_explosions, rollout_metrics, share_outside
from esper.algorithms.losses import (
    actor_critic_loss,
    entropy_bonus,
    kl_terms,
    log_ratios,
    normalise_advantages,
    surrogate,
    value_loss,
)
from esper.algorithms.optimizer import PolicyOptimizer
from esper.algorithms.schedule import Schedule
from esper.growth.actions import NUM_HEADS
from esper.policy.network import Evaluation, GrowthPolicy
from esper.runtime.choices import known
from esper.runtime.options import Ratio
from esper.runtime.ranks import ALONE, Ranks
from esper.runtime.records import Metrics
from esper.runtime.state import RandomStream

KL_STOP = 1.5
"""Multiple of ``target_kl`` above which approx_kl stops an update, before the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOSettings:
    """Hyperparameters of an update; names and meanings as in CleanRL where it has them.

    Attributes:
        schedule: learning rate and entropy coefficient.
        adam_eps: epsilon of the optimizer.
        gae_lambda: decay of the advantage estimator.
        num_minibatches: parts of the environments per pass.
        update_epochs: passes over the rollout.
        norm_adv: normalise advantages over the whole batch.
        clip_coef: half-width of the trusted interval of the ratio.
        clip_vloss: clip the value loss by ``clip_coef``.
        vf_coef: weight of the value loss.
        max_grad_norm: largest gradient norm of a step.
        target_kl: stop at 1.5 times this; ``None`` = never.
        ratio: ratio that is clipped.
        entropy_multipliers: weight of each head's entropy, in head order.

    Raises:
        ValueError: unknown ratio, or not one multiplier per head.
    """

    schedule: Schedule
    adam_eps: float
    gae_lambda: float
    num_minibatches: int
    update_epochs: int
    norm_adv: bool
    clip_coef: float
    clip_vloss: bool
    vf_coef: float
    max_grad_norm: float
    target_kl: float | None
    ratio: Ratio
    entropy_multipliers: tuple[float, ...]

    def __post_init__(self) -> None:
        known("ratio", self.ratio, Ratio)
        if len(self.entropy_multipliers) != NUM_HEADS:
            raise ValueError(f"{NUM_HEADS} heads need as many entropy multipliers, not {len(self.entropy_multipliers)}")


class PPO:
    """PPO (Schulman et al. 2017), which improves a policy together with all other ranks.

    Every rank steps, skips and stops at the same minibatches (:class:`~esper.algorithms.optimizer.PolicyOptimizer`).

    Args:
        policy: changed in place.
        settings: hyperparameters of an update.
        gamma: the environment's discount.
        generator: CPU generator that orders the environments.
        ranks: the ranks of the run.
        first_env: number of this rank's first environment among those of all ranks, for diagnostics.
    """

    def __init__(
        self,
        policy: GrowthPolicy,
        settings: PPOSettings,
        *,
        gamma: float,
        generator: torch.Generator,
        ranks: Ranks = ALONE,
        first_env: int = 0,
    ) -> None:
        self.policy, self.settings, self.ranks, self.first_env = policy, settings, ranks, first_env
        self.optimizer = PolicyOptimizer(
            policy, lr=settings.schedule.lr, eps=settings.adam_eps, max_grad_norm=settings.max_grad_norm, ranks=ranks
        )
        self.shared = self.optimizer.components
        self.own = {"shuffling": RandomStream(generator)}
        self._gamma, self._generator = gamma, generator

    def update(self, buffer: RolloutBuffer, iteration: int) -> UpdateResult:
        """Take several passes over a rollout.

        Returns:
            Metrics in which losses are means over the minibatches stepped on, ``entropy`` is the bonus before
            ``ent_coef``, ``entropy/<head>`` averages over steps where the head had a choice, ``approx_kl`` is of the
            last evaluated minibatch, and ratios are of all of them. An event for each minibatch with a ratio above 5
            or below 0.1.

        Raises:
            ValueError: more minibatches than environments.
        """
        data, settings, ranks = buffer.data, self.settings, self.ranks
        self.optimizer.lr, ent_coef = settings.schedule.at(iteration)
        advantages, returns = data.advantages(self._gamma, settings.gae_lambda)
        if settings.norm_adv:
            advantages = normalise_advantages(advantages, data.choice, ranks.sum)
        metrics = rollout_metrics(data, self._gamma, ranks)
        report = _Report()
        # Orders are drawn in advance, so that one exchange counts the steps of all minibatches over all ranks.
        orders = [buffer.minibatches(settings.num_minibatches, self._generator) for _ in range(settings.update_epochs)]
        sizes = ranks.sum(minibatch_sizes(orders, data.choice.cpu())).tolist()
        device = data.reward.device
        multipliers = torch.tensor(settings.entropy_multipliers).to(device, non_blocking=True)
        for epoch, number in product(range(settings.update_epochs), range(settings.num_minibatches)):
            envs = orders[epoch][number].to(device, non_blocking=True)
            batch = data[envs]
            evaluation = batch.evaluate(self.policy)
            log_prob = evaluation.log_prob.detach()
            report.evaluated.append(Evaluated(update_epoch=epoch, minibatch=number, envs=envs, log_prob=log_prob))
            sums = _sums(evaluation, batch, advantages[envs], returns[envs], multipliers, settings)
            if not self._step(sums, evaluation, batch.choice, sizes[epoch][number], ent_coef, report):
                report.early_stop_epoch = epoch
                break
        explosions = ratio_explosions(iteration, report.evaluated, data, advantages, self.first_env)
        return UpdateResult(
            metrics={
                **metrics,
                **report.metrics(ranks),
                "charts/ent_coef": ent_coef,
                "charts/learning_rate": self.optimizer.lr,
            },
            events=tuple(event for part in ranks.all_gather(explosions) for event in part),
        )

    def _step(
        self,
        sums: _Sums,
        evaluation: Evaluation,
        choice: Tensor,
        size: Sequence[float],
        ent_coef: float,
        report: _Report,
    ) -> bool:
        """Take one optimizer step unless the minibatch is skipped; return false to stop the update here.

        ``size`` counts the minibatch over all ranks: its steps, and those with a choice.
        """
        settings, counters = self.settings, report.counters
        steps, choices = size[0], max(size[1], 1.0)
        weights = {"ent_coef": ent_coef, "vf_coef": settings.vf_coef}
        loss = actor_critic_loss(sums.policy, sums.value, sums.entropy, steps=steps, choices=choices, **weights)
        numbers = (sums.policy, sums.value, sums.entropy, sums.kl, sums.outside, sums.weighed)
        summed = self.optimizer.backward(loss, numbers)
        if summed is None:
            counters.skipped_minibatches += 1
            return True
        policy, value, entropy, kl, outside, weighed = summed
        report.approx_kl = kl / choices
        report.joint.append(sums.joint.detach())
        report.choice.append(choice)
        counters.observe(evaluation)
        if settings.target_kl is not None and report.approx_kl > KL_STOP * settings.target_kl:
            return False
        grad_norm = self.optimizer.step()
        if grad_norm is None:
            counters.skipped_minibatches += 1
        else:
            counters.add(
                policy_loss=policy / choices,
                value_loss=value / steps,
                entropy=entropy / choices,
                clipfrac=outside / max(weighed, 1.0),
                grad_norm=grad_norm,
            )
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sums:
    """Terms of one minibatch, summed over this rank's part of it."""

    policy: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor
    outside: Tensor
    weighed: Tensor
    joint: Tensor


@dataclass(slots=True)
class _Report:
    """Statistics of one update: those of this rank's environments stay on the device until the update is over, the
    rest is equal on all ranks.

    Attributes:
        counters: sums over the minibatches.
        approx_kl: KL estimate of the last evaluated minibatch.
        early_stop_epoch: pass in which the update stopped, if it did.
        evaluated: log-probabilities of each minibatch.
        joint: joint log-ratios of each minibatch whose loss was finite, ``float [n, T]``.
        choice: its steps with more than one legal op, ``bool [n, T]``.
    """

    counters: UpdateCounters = field(
        default_factory=lambda: UpdateCounters(names=("policy_loss", "value_loss", "entropy", "clipfrac", "grad_norm"))
    )
    approx_kl: float | None = None
    early_stop_epoch: int | None = None
    evaluated: list[Evaluated] = field(default_factory=list)
    joint: list[Tensor] = field(default_factory=list)
    choice: list[Tensor] = field(default_factory=list)

    def metrics(self, ranks: Ranks) -> Metrics:
        """Return all metrics as plain numbers, over all ranks."""
        counters = self.counters.merged(ranks)
        ratios = torch.cat(ranks.all_gather(self._ratios()))
        some = ratios.numel() > 0
        return {
            **counters.metrics(),
            "losses/approx_kl": self.approx_kl,
            "losses/ratio_mean": float(ratios.mean()) if some else None,
            "losses/ratio_std": float(ratios.std(correction=0)) if some else None,
            "losses/ratio_min": float(ratios.min()) if some else None,
            "losses/ratio_max": float(ratios.max()) if some else None,
            "losses/ratio_outside": share_outside(ratios) if some else None,
            "losses/early_stop_epoch": None if self.early_stop_epoch is None else float(self.early_stop_epoch),
        }

    def _ratios(self) -> Tensor:
        """Return the joint ratios of all steps with a choice, on the CPU."""
        if not self.joint:
            return torch.empty(0, dtype=torch.float64)
        sizes = [len(part) for part in self.joint]
        joint, choice = (torch.split(torch.cat(parts).cpu(), sizes) for parts in (self.joint, self.choice))
        return torch.cat([own[free].double().exp() for own, free in zip(joint, choice, strict=True)])


def _sums(
    evaluation: Evaluation,
    batch: RolloutBatch,
    advantages: Tensor,
    returns: Tensor,
    multipliers: Tensor,
    settings: PPOSettings,
) -> _Sums:
    choice = batch.choice  # (n, T)
    joint = log_ratios(evaluation.log_prob, batch.log_prob, Ratio.joint).squeeze(-1)  # (n, T)
    ratios = log_ratios(evaluation.log_prob, batch.log_prob, settings.ratio)  # (n, T, K)
    weights = choice.unsqueeze(-1) & ((evaluation.num_legal > 0) if settings.ratio == Ratio.per_head else True)
    policy, outside = surrogate(ratios, advantages, weights, settings.clip_coef)
    clip = settings.clip_coef if settings.clip_vloss else None
    return _Sums(
        policy=policy,
        value=value_loss(evaluation.q, batch.q, returns, clip),
        entropy=entropy_bonus(evaluation.entropy, choice, multipliers),
        kl=torch.where(choice, kl_terms(joint.detach().double()), 0).sum(),
        outside=outside,
        weighed=weights.sum(),
        joint=joint,
    )
