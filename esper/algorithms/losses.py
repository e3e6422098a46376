"""Terms of the losses, as sums, so that a global count can be the denominator.

Axis legend: ... = environments x steps, 8 = heads, K = ratios per step (1 joint, or one per head).

A *choice step* is one with more than one legal op. Surrogate, KL, entropy bonus and advantage statistics count choice
steps only: a forced WAIT carries no information about the policy. The value loss counts every step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from esper.runtime.options import Ratio

MIN_VARIANCE = 1e-8
"""Variance of returns below which explained variance is meaningless."""


def advantage_moments(advantages: Tensor, choice: Tensor) -> tuple[Tensor, Tensor]:
    """Return count and sum over choice steps, ``float64 []`` each, which ranks add up for the mean."""
    return choice.sum().double(), advantages.double().masked_fill(~choice, 0).sum()


def squared_deviation(advantages: Tensor, choice: Tensor, mean: Tensor) -> Tensor:
    """Return the sum of squared deviations from the global mean over choice steps, ``float64 []``."""
    return (advantages.double() - mean).masked_fill(~choice, 0).square().sum()


def standardise(advantages: Tensor, count: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Compute (A - mean) / (unbiased standard deviation + 1e-8); unchanged for a count below 2.

    Args:
        advantages: ``float [...]``.
        count: ``float64 []``, choice steps.
        mean: ``float64 []``.
        deviation: ``float64 []``, sum of squared deviations.
    """
    scale = (deviation / (count - 1).clamp(min=1)).sqrt() + 1e-8
    return torch.where(count >= 2, (advantages.double() - mean) / scale, advantages.double()).to(advantages.dtype)


def normalise_advantages(
    advantages: Tensor, choice: Tensor, total: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> Tensor:
    """Normalise advantages to mean 0 and deviation 1 over the choice steps of the whole batch, on all ranks.

    Advantages that are not finite stay so and do not count: they affect only the minibatches that they are in.

    Args:
        advantages: ``float [...]``, of this rank.
        choice: ``bool [...]``, more than one op was legal.
        total: function that sums a tensor over the ranks.
    """
    counted = choice & advantages.isfinite()
    count, summed = total(torch.stack(advantage_moments(advantages, counted)))
    mean = summed / count.clamp(min=1)
    return standardise(advantages, count, mean, total(squared_deviation(advantages, counted, mean)))


def log_ratios(new: Tensor, old: Tensor, kind: Ratio) -> Tensor:
    """Compute log pi_new - log pi_old, joint over the relevant heads or for each.

    Args:
        new: ``float [..., 8]``, exactly 0 in heads that do not matter.
        old: ``float [..., 8]``, exactly 0 in heads that do not matter.
        kind: joint ratio, or one per head.

    Returns:
        ``float [..., K]``.
    """
    difference = new - old
    return difference.sum(-1, keepdim=True) if kind == Ratio.joint else difference


def policy_gradient(log_prob: Tensor, advantages: Tensor, choice: Tensor) -> Tensor:
    """Compute -A log pi (Williams 1992), summed over choice steps.

    Args:
        log_prob: ``float [..., 8]``, exactly 0 in heads that do not matter.
        advantages: ``float [...]``.
        choice: ``bool [...]``.
    """
    return torch.where(choice, -advantages * log_prob.sum(-1), 0).sum()


def cross_entropy(log_prob: Tensor, counted: Tensor) -> Tensor:
    """Compute -log pi of given actions, summed over the steps that count.

    Args:
        log_prob: ``float [..., 8]``, exactly 0 in heads that do not matter.
        counted: ``bool [...]``.
    """
    return torch.where(counted, -log_prob.sum(-1), 0).sum()


def surrogate(log_ratio: Tensor, advantages: Tensor, weights: Tensor, clip_coef: float) -> tuple[Tensor, Tensor]:
    """Compute the clipped surrogate loss (Schulman et al. 2017), summed.

    Args:
        log_ratio: ``float [..., K]``.
        advantages: ``float [...]``.
        weights: ``bool [..., K]``, ratios that count: choice steps, and with a ratio per head its relevant steps.
        clip_coef: half-width of the trusted interval around ratio 1.

    Returns:
        Sum of -min(r A, clip(r) A) over weighted ratios, and how many of them lie outside the interval.
    """
    ratio = log_ratio.exp()
    gain = advantages.unsqueeze(-1)
    loss = torch.max(-gain * ratio, -gain * ratio.clamp(1 - clip_coef, 1 + clip_coef))
    outside = (((ratio - 1).abs() > clip_coef) & weights).sum()
    return torch.where(weights, loss, 0).sum(), outside


def kl_terms(log_ratio: Tensor) -> Tensor:
    """Compute exp(r) - 1 - r of joint log-ratios, whose mean estimates KL(old || new) (Schulman 2020). Never
    negative.
    """
    return torch.expm1(log_ratio) - log_ratio


def value_loss(new: Tensor, old: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """Compute half the squared error of values, summed over all steps.

    Args:
        new: ``float [...]``, critic's values with gradient.
        old: ``float [...]``, critic's values in the rollout.
        returns: ``float [...]``.
        clip: largest move from ``old`` that counts as progress; ``None`` for the plain error.
    """
    error = (new - returns).square()
    if clip is not None:
        error = torch.max(error, (old + (new - old).clamp(-clip, clip) - returns).square())
    return 0.5 * error.sum()


def entropy_bonus(entropy: Tensor, choice: Tensor, multipliers: Tensor | float = 1.0) -> Tensor:
    """Compute the entropy of all heads times their multipliers, summed over choice steps.

    To be divided by the number of choice steps, like the surrogate: dividing a rare head's entropy by its own steps
    would multiply its temperature by the inverse of its share and keep it uniform.

    Args:
        entropy: ``float [..., 8]``, exactly 0 in heads that do not matter.
        choice: ``bool [...]``.
        multipliers: ``float [8]``, or one for all heads.
    """
    return torch.where(choice, (entropy * multipliers).sum(-1), 0).sum()


def actor_critic_loss(
    policy: Tensor, value: Tensor, entropy: Tensor, *, steps: float, choices: float, ent_coef: float, vf_coef: float
) -> Tensor:
    """Combine the losses of policy and critic: local sums over global counts, so that the ranks' gradients add up.

    Args:
        policy, entropy: sums over this rank's choice steps.
        value: sum over this rank's steps.
        steps, choices: counted over all ranks.
        ent_coef, vf_coef: weights of entropy bonus and value loss.
    """
    return (policy - ent_coef * entropy) / choices + vf_coef * value / steps


def explained_variance(values: Tensor, returns: Tensor) -> float | None:
    """Compute 1 - Var(returns - values) / Var(returns) of two ``[n]``; ``None`` for empty or nearly constant
    returns.
    """
    returns = returns.double()
    if returns.numel() == 0 or float(returns.var(correction=0)) < MIN_VARIANCE:
        return None
    return 1 - float((returns - values.double()).var(correction=0) / returns.var(correction=0))
