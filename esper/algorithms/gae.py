"""Advantages and returns.

Axis legend: E = environments, T = steps; all tensors ``[E, T]``.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    rewards: Tensor,
    values: Tensor,
    bootstrap_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
) -> tuple[Tensor, Tensor]:
    """Compute generalised advantage estimates (Schulman et al. 2016) over a rollout in which episodes may end anywhere.

    delta_t = r_t + gamma V(s'_t) - V(s_t) and A_t = delta_t + gamma lambda (1 - end_t) A_{t+1}, where s' is the true
    next state: V(s'_t) is 0 where the episode terminated, ``bootstrap_values`` where it was truncated and at the edge
    of the rollout, and the value of the next step elsewhere.

    Args:
        rewards: ``float [E, T]``.
        values: ``float [E, T]``, V(s_t).
        bootstrap_values: ``float [E, T]``, V of the true next state; read where truncated and at the last step only.
        terminated: ``bool [E, T]``; wins over ``truncated``.
        truncated: ``bool [E, T]``.
        gamma: discount.
        gae_lambda: decay of the estimator.

    Returns:
        Advantages A and returns A + V, ``float [E, T]``.
    """
    next_values = torch.cat([values[:, 1:], bootstrap_values[:, -1:]], 1)
    next_values = torch.where(truncated, bootstrap_values, next_values).masked_fill(terminated, 0)
    deltas = rewards + gamma * next_values - values
    carries = gamma * gae_lambda * ~(terminated | truncated)
    advantages = torch.empty_like(deltas)
    following = torch.zeros_like(deltas[:, 0])
    for step in reversed(range(deltas.shape[1])):
        following = deltas[:, step] + carries[:, step] * following
        advantages[:, step] = following
    return advantages, advantages + values


def monte_carlo_returns(rewards: Tensor, terminated: Tensor, truncated: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Compute discounted rewards until termination, for episodes that terminate inside the rollout.

    Args:
        rewards: ``float [E, T]``.
        terminated: ``bool [E, T]``.
        truncated: ``bool [E, T]``.
        gamma: discount.

    Returns:
        Returns ``float [E, T]`` and their validity ``bool [E, T]``: the step's episode terminates inside the rollout.
    """
    returns, complete = torch.empty_like(rewards), torch.empty_like(terminated)
    following = torch.zeros_like(rewards[:, 0])
    known = torch.zeros_like(terminated[:, 0])
    for step in reversed(range(rewards.shape[1])):
        ended = terminated[:, step] | truncated[:, step]
        following = rewards[:, step] + gamma * following.masked_fill(ended, 0)
        known = terminated[:, step] | (known & ~ended)
        returns[:, step], complete[:, step] = following, known
    return returns, complete
