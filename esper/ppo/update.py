"""One PPO update: several passes over a rollout.

Axis legend: E = environments, T = steps, n = environments of a minibatch, 8 = heads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from esper.actions import NUM_HEADS
from esper.policy.network import Evaluation, GrowthPolicy
from esper.ppo.buffer import RolloutBatch, RolloutBuffer
from esper.ppo.diagnostics import Metrics, RatioExplosionDiagnostic, Tally, ratio_explosion
from esper.ppo.gae import gae, monte_carlo_returns
from esper.ppo.losses import (
    RATIOS,
    entropy_bonus,
    explained_variance,
    kl_terms,
    log_ratios,
    normalise_advantages,
    surrogate,
    value_loss,
)

KL_STOP = 1.5
"""An update stops before a step at which approx_kl is above this many times ``target_kl``."""

ENTROPY_MULTIPLIERS = (1.0, 1.0, 1.5, 1.2, 1.5, 1.2, 1.3, 1.3)
"""Weight of each head's entropy, in head order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOSettings:
    """Numbers of an update; names and meanings as CleanRL's where it has them.

    Attributes:
        gamma: discount.
        gae_lambda: decay of the advantage estimator.
        num_minibatches: parts of the environments per pass.
        update_epochs: passes over the rollout.
        norm_adv: normalise advantages over the whole batch.
        clip_coef: half-width of the trusted interval of the ratio.
        clip_vloss: clip the value loss by ``clip_coef``.
        vf_coef: weight of the value loss.
        max_grad_norm: largest gradient norm of a step.
        target_kl: stop at 1.5 times this; ``None`` = never.
        ratio: ``"joint"`` over the relevant heads, or ``"per_head"``.
        entropy_multipliers: weight of each head's entropy, in head order.

    Raises:
        ValueError: unknown ratio, or not one multiplier per head.
    """

    gamma: float = 1.0
    gae_lambda: float = 0.95
    num_minibatches: int = 4
    update_epochs: int = 8
    norm_adv: bool = True
    clip_coef: float = 0.2
    clip_vloss: bool = False
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    target_kl: float | None = 0.05
    ratio: str = "joint"
    entropy_multipliers: tuple[float, ...] = ENTROPY_MULTIPLIERS

    def __post_init__(self) -> None:
        if self.ratio not in RATIOS:
            raise ValueError(f"ratio '{self.ratio}' is unknown; choose one of {', '.join(RATIOS)}")
        if len(self.entropy_multipliers) != NUM_HEADS:
            raise ValueError(f"{NUM_HEADS} heads need as many entropy multipliers, not {len(self.entropy_multipliers)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """What an update did.

    Attributes:
        metrics: diagnostics; ``None`` = not measured. Losses are means over the minibatches stepped on; ``entropy`` is
            the bonus before ``ent_coef``; ``entropy/<head>`` averages over steps where the head had a choice;
            ``approx_kl`` is of the last minibatch looked at; ratios are of all of them.
        explosions: one per minibatch with a ratio above 5 or below 0.1.
    """

    metrics: Metrics
    explosions: tuple[RatioExplosionDiagnostic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """Loss terms of one minibatch, each a local sum over a count that may be global."""

    loss: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clipfrac: Tensor
    joint: Tensor


def ppo_update(
    policy: GrowthPolicy,
    optimizer: torch.optim.Optimizer,
    buffer: RolloutBuffer,
    settings: PPOSettings,
    ent_coef: float,
    generator: torch.Generator,
) -> UpdateResult:
    """Improve the policy on one full rollout (Schulman et al. 2017).

    A minibatch whose loss or gradient is not finite is skipped and counted: parameters and optimizer stay as they are.

    Args:
        policy: changed in place.
        optimizer: of the policy's parameters.
        buffer: a full rollout.
        settings: numbers of the update.
        ent_coef: weight of the entropy bonus now.
        generator: CPU generator that orders the environments.

    Raises:
        ValueError: more minibatches than environments.
    """
    data = buffer.data
    advantages, returns = gae(
        data.reward,
        data.value,
        data.bootstrap_value,
        data.terminated,
        data.truncated,
        settings.gamma,
        settings.gae_lambda,
    )
    choice = data.num_legal_ops > 1
    if settings.norm_adv:
        advantages = normalise_advantages(advantages, choice)
    tally = Tally()
    explosions: list[RatioExplosionDiagnostic] = []
    fixed = _metrics_before(data, choice, settings.gamma)
    for epoch in range(settings.update_epochs):
        for number, envs in enumerate(buffer.minibatches(settings.num_minibatches, generator)):
            batch = data[envs]
            evaluation = policy.evaluate(
                batch.features, batch.blueprint_index, batch.masks, batch.actions, batch.hidden, batch.ends
            )
            terms = _terms(evaluation, batch, advantages[envs], returns[envs], settings, ent_coef)
            explosion = ratio_explosion(epoch, number, envs, batch, evaluation.log_prob, advantages[envs])
            if explosion is not None:
                explosions.append(explosion)
            if not _step(policy, optimizer, terms, evaluation, choice[envs], settings, tally):
                tally.early_stop_epoch = epoch
                return UpdateResult(metrics=fixed | tally.metrics(), explosions=tuple(explosions))
    return UpdateResult(metrics=fixed | tally.metrics(), explosions=tuple(explosions))


def _metrics_before(data: RolloutBatch, choice: Tensor, gamma: float) -> Metrics:
    """Diagnostics of the rollout itself: how good its values were, and how often it could only wait."""
    returns, complete = monte_carlo_returns(data.reward, data.terminated, data.truncated, gamma)
    return {
        "losses/explained_variance": explained_variance(data.value[complete], returns[complete]),
        "charts/forced_wait_share": 1 - float(choice.double().mean()),
    }


def _terms(
    evaluation: Evaluation,
    batch: RolloutBatch,
    advantages: Tensor,
    returns: Tensor,
    settings: PPOSettings,
    ent_coef: float,
) -> _Terms:
    choice = batch.num_legal_ops > 1  # (n, T)
    count = choice.sum().clamp(min=1)
    joint = log_ratios(evaluation.log_prob, batch.log_prob, "joint").squeeze(-1)  # (n, T)
    ratios = log_ratios(evaluation.log_prob, batch.log_prob, settings.ratio)  # (n, T, K)
    weights = choice.unsqueeze(-1) & ((evaluation.num_legal > 0) if settings.ratio == "per_head" else True)
    surrogate_sum, clipfrac = surrogate(ratios, advantages, weights, settings.clip_coef)
    multipliers = evaluation.entropy.new_tensor(settings.entropy_multipliers)
    policy_term = surrogate_sum / count
    entropy_term = entropy_bonus(evaluation.entropy, multipliers, choice) / count
    clip = settings.clip_coef if settings.clip_vloss else None
    value_term = value_loss(evaluation.q, batch.q, returns, clip) / returns.numel()
    return _Terms(
        loss=policy_term - ent_coef * entropy_term + settings.vf_coef * value_term,
        policy=policy_term,
        value=value_term,
        entropy=entropy_term,
        approx_kl=torch.where(choice, kl_terms(joint.detach().double()), 0).sum() / count,
        clipfrac=clipfrac,
        joint=joint,
    )


def _step(
    policy: nn.Module,
    optimizer: torch.optim.Optimizer,
    terms: _Terms,
    evaluation: Evaluation,
    choice: Tensor,
    settings: PPOSettings,
    tally: Tally,
) -> bool:
    """Take one optimizer step unless something forbids it; false when the update is to stop here."""
    named = (terms.loss, terms.approx_kl, terms.policy, terms.value, terms.entropy, terms.clipfrac)
    # One wait for the device instead of six.
    loss, kl, policy_loss, value, entropy, clipfrac = torch.stack([term.detach() for term in named]).tolist()
    if not math.isfinite(loss):
        tally.skipped_minibatches += 1
        return True
    tally.approx_kl = kl
    tally.observe(evaluation, terms.joint, choice)
    if settings.target_kl is not None and kl > KL_STOP * settings.target_kl:
        return False
    optimizer.zero_grad(set_to_none=True)
    terms.loss.backward()  # type: ignore[no-untyped-call]
    grad_norm = float(nn.utils.clip_grad_norm_(policy.parameters(), settings.max_grad_norm))
    if not math.isfinite(grad_norm):
        optimizer.zero_grad(set_to_none=True)
        tally.skipped_minibatches += 1
        return True
    optimizer.step()
    tally.add(policy_loss=policy_loss, value_loss=value, entropy=entropy, clipfrac=clipfrac, grad_norm=grad_norm)
    return True
