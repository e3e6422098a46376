"""Diagnostics of an update.

Axis legend: E = environments, n = environments of a minibatch, T = steps, 8 = heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from esper.algorithms.buffer import RolloutBatch
from esper.algorithms.gae import monte_carlo_returns
from esper.algorithms.losses import explained_variance
from esper.growth.actions import HEADS, OP_NAMES, Head
from esper.policy.network import Evaluation
from esper.runtime.ranks import Ranks
from esper.runtime.records import Metrics
from esper.telemetry.events import RatioExplosion

RATIO_HIGH = 5.0
RATIO_LOW = 0.1
NUM_WORST = 5

MEANS = ("policy_loss", "value_loss", "entropy", "grad_norm")
"""Names of metrics that every actor-critic reports for each minibatch."""


def rollout_metrics(data: RolloutBatch, gamma: float, ranks: Ranks) -> Metrics:
    """Return diagnostics of the rollout itself: quality of its values, and share of forced WAITs."""
    returns, complete = monte_carlo_returns(data.reward, data.terminated, data.truncated, gamma)
    complete &= returns.isfinite() & data.value.isfinite()
    value, returns, complete, choice = (part.cpu() for part in (data.value, returns, complete, data.choice))
    parts = ranks.all_gather((value[complete], returns[complete], choice))
    values, targets, choices = (torch.cat([part.flatten() for part in column]) for column in zip(*parts, strict=True))
    return {
        "losses/explained_variance": explained_variance(values, targets),
        "charts/forced_wait_share": 1 - float(choices.double().mean()),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Log-probabilities of one minibatch under the policy as it was then.

    Attributes:
        update_epoch: pass over the rollout.
        minibatch: index within the pass.
        envs: ``int64 [n]``, rows of the rollout.
        log_prob: ``float [n, T, 8]``.
    """

    update_epoch: int
    minibatch: int
    envs: Tensor
    log_prob: Tensor


def ratio_explosions(
    iteration: int, minibatches: Sequence[Evaluated], data: RolloutBatch, advantages: Tensor, first_env: int
) -> list[RatioExplosion]:
    """Return an event for each minibatch whose joint ratios leave [0.1, 5].

    As long as there is none, the device is waited for once for all minibatches.

    Args:
        iteration: number of the iteration.
        minibatches: minibatches of the update.
        data: the rollout.
        advantages: ``float [E, T]``.
        first_env: number of the rollout's first environment among those of all ranks.
    """
    joint = [(each.log_prob - data.log_prob[each.envs]).sum(-1).double() for each in minibatches]  # (n, T) each
    outside = [((moved > math.log(RATIO_HIGH)) | (moved < math.log(RATIO_LOW))).sum() for moved in joint]
    return [
        RatioExplosion(
            iteration=iteration,
            update_epoch=each.update_epoch,
            minibatch=each.minibatch,
            count=count,
            worst=tuple(_worst(each, min(count, NUM_WORST), data, advantages, first_env)),
        )
        for each, count in zip(minibatches, torch.stack(outside).tolist(), strict=True)
        if count
    ]


def share_outside(ratios: Tensor) -> float:
    """Return the share of ratios outside [0.1, 5], as a fraction of 1."""
    return float(((ratios > RATIO_HIGH) | (ratios < RATIO_LOW)).double().mean())


def _worst(
    minibatch: Evaluated, count: int, data: RolloutBatch, advantages: Tensor, first_env: int
) -> Iterator[dict[str, Any]]:
    """Describe the steps of a minibatch whose ratios are furthest from 1, furthest first."""
    envs, new = minibatch.envs.cpu(), minibatch.log_prob.cpu()
    old, ops, gains = (part[minibatch.envs].cpu() for part in (data.log_prob, data.actions[..., Head.OP], advantages))
    moves = new - old  # (n, T, 8)
    joint = moves.sum(-1).double()  # (n, T)
    for index in joint.abs().flatten().topk(count).indices.tolist():
        row, step = divmod(index, joint.shape[1])
        head = int(moves[row, step].abs().argmax())
        yield {
            "environment": int(envs[row]) + first_env,
            "step": step,
            "head": HEADS[head],
            "op": OP_NAMES[int(ops[row, step])],
            "old_log_prob": float(old[row, step, head]),
            "new_log_prob": float(new[row, step, head]),
            "advantage": float(gains[row, step]),
            "ratio": math.exp(min(float(joint[row, step]), 700.0)),  # finite, so that every log format takes it
        }


@dataclass(slots=True)
class UpdateCounters:
    """Sums over the minibatches of an update.

    Averages and counts are equal on every rank; entropies are of a rank's own environments.

    Attributes:
        names: names of the averaged metrics.
        sums, counts: sums and numbers of the values added, by name.
        heads: ``float64 [2, 8]``, sum of each head's entropies and their number, on the device that has computed them.
        skipped_minibatches: minibatches without a step.
    """

    names: tuple[str, ...] = MEANS
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    heads: Tensor = field(default_factory=lambda: torch.zeros(2, len(HEADS), dtype=torch.float64))
    skipped_minibatches: int = 0

    def merged(self, ranks: Ranks) -> UpdateCounters:
        """Merge the sums of all ranks, on the CPU."""
        return replace(self, heads=torch.stack(ranks.all_gather(self.heads.cpu())).sum(0))

    def add(self, **values: float) -> None:
        """Add values of one minibatch, to be averaged."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + 1

    def observe(self, evaluation: Evaluation) -> None:
        """Add entropies of one minibatch; one counts where its head had more than one legal choice."""
        had_choice = evaluation.num_legal > 1  # (n, T, 8)
        entropy = torch.where(had_choice, evaluation.entropy.detach().double(), 0)
        sums = torch.stack([entropy.sum((0, 1)), had_choice.sum((0, 1)).double()])
        self.heads = self.heads.to(sums.device, non_blocking=True) + sums

    def metrics(self) -> dict[str, float | None]:
        """Return all metrics as plain numbers; ``None`` where no minibatch was stepped on."""
        metrics: dict[str, float | None] = {
            f"losses/{name}": self.sums[name] / self.counts[name] if name in self.counts else None
            for name in self.names
        }
        for name, total, count in zip(HEADS, *self.heads.tolist(), strict=True):
            metrics[f"losses/entropy/{name}"] = total / count if count else None
        return metrics | {"losses/skipped_minibatches": float(self.skipped_minibatches)}
