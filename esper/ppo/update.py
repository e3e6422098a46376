"""One PPO update: several passes over a rollout.

Axis legend: E = environments, T = steps, n = environments of a minibatch, 8 = heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from esper.growth.actions import NUM_HEADS
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
from esper.runtime.ranks import ALONE, Ranks

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
class _Sums:
    """Terms of one minibatch, summed over this rank's part of it."""

    policy: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor
    outside: Tensor
    weighed: Tensor
    joint: Tensor

    def numbers(self) -> Tensor:
        """``float32 [7]``: what decides on a step and is reported of it; last, whether a loss is not finite."""
        losses = torch.stack([self.policy.detach(), self.value.detach(), self.entropy.detach()]).float()
        others = torch.stack([self.kl.float(), self.outside.float(), self.weighed.float()])
        # The flag is apart, because 0 times a broken sum would not be 0.
        return torch.cat([losses, others, (~losses.isfinite().all()).float()[None]])


def ppo_update(
    policy: GrowthPolicy,
    optimizer: torch.optim.Optimizer,
    buffer: RolloutBuffer,
    settings: PPOSettings,
    ent_coef: float,
    generator: torch.Generator,
    scaler: torch.amp.GradScaler | None = None,
    ranks: Ranks = ALONE,
    first_env: int = 0,
) -> UpdateResult:
    """Improve the policy on one full rollout (Schulman et al. 2017), together with all other ranks.

    Every rank steps, skips and stops at the same minibatches, so that their policies stay equal to the bit. A
    minibatch whose loss or gradient is not finite on any of them is skipped and counted: parameters and optimizer stay
    as they are.

    Args:
        policy: changed in place.
        optimizer: of the policy's parameters.
        buffer: a full rollout of this rank's environments.
        settings: numbers of the update.
        ent_coef: weight of the entropy bonus now.
        generator: CPU generator that orders the environments.
        scaler: loss scaler of the optimizer, for fp16. Its overflows are skipped minibatches like any other;
            learning rate and ``ent_coef`` follow the iteration, so no schedule moves on with a skipped step.
        ranks: who else has a rollout.
        first_env: number of the buffer's first environment among those of all ranks, for diagnostics.

    Returns:
        The same on every rank.

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
        advantages = normalise_advantages(advantages, choice, ranks.sum)
    fixed = _metrics_before(data, choice, settings.gamma, ranks)
    learner = _Learner(policy, optimizer, settings, ent_coef, scaler, ranks, first_env)
    learner.passes(buffer, advantages, returns, generator)
    tally = Tally.merged(ranks.all_gather(learner.tally))
    explosions = [explosion for part in ranks.all_gather(learner.explosions) for explosion in part]
    return UpdateResult(metrics=fixed | tally.metrics(), explosions=tuple(explosions))


def _metrics_before(data: RolloutBatch, choice: Tensor, gamma: float, ranks: Ranks) -> Metrics:
    """Diagnostics of the rollout itself: how good its values were, and how often it could only wait."""
    returns, complete = monte_carlo_returns(data.reward, data.terminated, data.truncated, gamma)
    complete &= returns.isfinite() & data.value.isfinite()
    parts = ranks.all_gather((data.value[complete].cpu(), returns[complete].cpu(), choice.cpu()))
    values, targets, choices = (torch.cat([part.flatten() for part in column]) for column in zip(*parts, strict=True))
    return {
        "losses/explained_variance": explained_variance(values, targets),
        "charts/forced_wait_share": 1 - float(choices.double().mean()),
    }


class _Learner:
    """The minibatches of one update."""

    def __init__(
        self,
        policy: GrowthPolicy,
        optimizer: torch.optim.Optimizer,
        settings: PPOSettings,
        ent_coef: float,
        scaler: torch.amp.GradScaler | None,
        ranks: Ranks,
        first_env: int,
    ) -> None:
        self.policy, self.optimizer, self.settings = policy, optimizer, settings
        self.ent_coef, self.scaler, self.ranks, self.first_env = ent_coef, scaler, ranks, first_env
        self.tally = Tally()
        self.explosions: list[RatioExplosionDiagnostic] = []

    def passes(self, buffer: RolloutBuffer, advantages: Tensor, returns: Tensor, generator: torch.Generator) -> None:
        """All passes over the rollout, or those before the policy has moved too far."""
        data, policy, settings = buffer.data, self.policy, self.settings
        choice = data.num_legal_ops > 1
        # Orders are drawn ahead, so that one exchange tells how many steps the minibatches have over all ranks.
        orders = [buffer.minibatches(settings.num_minibatches, generator) for _ in range(settings.update_epochs)]
        sizes = self.ranks.sum(_sizes(orders, choice)).tolist()
        for epoch, order in enumerate(orders):
            for number, envs in enumerate(order):
                batch = data[envs]
                evaluation = policy.evaluate(
                    batch.features, batch.blueprint_index, batch.masks, batch.actions, batch.hidden, batch.ends
                )
                explosion = ratio_explosion(
                    epoch, number, envs + self.first_env, batch, evaluation.log_prob, advantages[envs]
                )
                if explosion is not None:
                    self.explosions.append(explosion)
                sums = _sums(evaluation, batch, advantages[envs], returns[envs], settings)
                if not self._step(sums, evaluation, choice[envs], *sizes[epoch][number]):
                    self.tally.early_stop_epoch = epoch
                    return

    def _step(self, sums: _Sums, evaluation: Evaluation, choice: Tensor, steps: float, choices: float) -> bool:
        """Take one optimizer step unless something forbids it; false when the update is to stop here.

        ``steps`` and ``choices`` count the minibatch over all ranks: its steps, and those with a choice.
        """
        settings, tally = self.settings, self.tally
        choices = max(choices, 1.0)
        # Local sums over global counts: the ranks' gradients add up to that of the whole minibatch.
        loss = (sums.policy - self.ent_coef * sums.entropy) / choices + settings.vf_coef * sums.value / steps
        self.optimizer.zero_grad(set_to_none=True)
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
        policy, value, entropy, kl, outside, weighed, broken = _add_up(self.policy, sums.numbers(), self.ranks).tolist()
        if broken:
            self.optimizer.zero_grad(set_to_none=True)
            tally.skipped_minibatches += 1
            return True
        tally.approx_kl = kl / choices
        tally.observe(evaluation, sums.joint, choice)
        if settings.target_kl is not None and tally.approx_kl > KL_STOP * settings.target_kl:
            return False
        if self.scaler is not None:
            # After adding up, so that an overflow anywhere lowers the scale everywhere.
            self.scaler.unscale_(self.optimizer)
        grad_norm = float(nn.utils.clip_grad_norm_(self.policy.parameters(), settings.max_grad_norm))
        if math.isfinite(grad_norm):
            self.optimizer.step()
            tally.add(
                policy_loss=policy / choices,
                value_loss=value / steps,
                entropy=entropy / choices,
                clipfrac=outside / max(weighed, 1.0),
                grad_norm=grad_norm,
            )
        else:
            self.optimizer.zero_grad(set_to_none=True)
            tally.skipped_minibatches += 1
        if self.scaler is not None:
            self.scaler.update()  # from what unscaling found: a lower scale after an overflow
        return True


def _sizes(orders: Sequence[Sequence[Tensor]], choice: Tensor) -> Tensor:
    """``float64 [passes, minibatches, 2]``: steps of each minibatch, and how many of them had a choice."""
    num_steps, choices = choice.shape[1], choice.sum(1).cpu()
    counts = [[(len(envs) * num_steps, int(choices[envs.cpu()].sum())) for envs in order] for order in orders]
    return torch.tensor(counts, dtype=torch.float64, device=choice.device)


def _sums(
    evaluation: Evaluation, batch: RolloutBatch, advantages: Tensor, returns: Tensor, settings: PPOSettings
) -> _Sums:
    choice = batch.num_legal_ops > 1  # (n, T)
    joint = log_ratios(evaluation.log_prob, batch.log_prob, "joint").squeeze(-1)  # (n, T)
    ratios = log_ratios(evaluation.log_prob, batch.log_prob, settings.ratio)  # (n, T, K)
    weights = choice.unsqueeze(-1) & ((evaluation.num_legal > 0) if settings.ratio == "per_head" else True)
    policy, outside = surrogate(ratios, advantages, weights, settings.clip_coef)
    multipliers = evaluation.entropy.new_tensor(settings.entropy_multipliers)
    clip = settings.clip_coef if settings.clip_vloss else None
    return _Sums(
        policy=policy,
        value=value_loss(evaluation.q, batch.q, returns, clip),
        entropy=entropy_bonus(evaluation.entropy, multipliers, choice),
        kl=torch.where(choice, kl_terms(joint.detach().double()), 0).sum(),
        outside=outside,
        weighed=weights.sum(),
        joint=joint,
    )


def _add_up(policy: nn.Module, numbers: Tensor, ranks: Ranks) -> Tensor:
    """Sum every gradient and the numbers over the ranks, in one exchange; returns the numbers.

    A parameter that was not used here counts as 0.
    """
    if ranks.size == 1:
        return numbers
    parameters = list(policy.parameters())
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    summed = ranks.sum(torch.cat([*(gradient.flatten() for gradient in gradients), numbers]))
    pieces = torch.split(summed, [*(p.numel() for p in parameters), len(numbers)])
    for parameter, piece in zip(parameters, pieces, strict=False):
        parameter.grad = piece.view_as(parameter)
    return pieces[-1]
