"""What an update reports about itself.

Axis legend: n = environments of a minibatch, T = steps, 8 = heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from esper.growth.actions import HEADS, OP_NAMES, Head
from esper.policy.network import Evaluation
from esper.ppo.buffer import RolloutBatch

RATIO_HIGH = 5.0
RATIO_LOW = 0.1
NUM_WORST = 5

Metrics = dict[str, float | None]
"""Names as CleanRL's; ``None`` = not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioEntry:
    """One action whose probability moved too far.

    Attributes:
        environment: index in the rollout.
        step: index in the rollout.
        head: the head that moved most.
        op: name of the op.
        old_log_prob: of that head, in the rollout.
        new_log_prob: of that head, now.
        advantage: as used in the loss.
        ratio: joint over all heads.
    """

    environment: int
    step: int
    head: str
    op: str
    old_log_prob: float
    new_log_prob: float
    advantage: float
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioExplosionDiagnostic:
    """A minibatch in which a joint ratio was above 5 or below 0.1.

    Attributes:
        epoch: pass over the rollout.
        minibatch: index within the pass.
        count: number of such ratios.
        worst: the farthest from 1, worst first.
    """

    epoch: int
    minibatch: int
    count: int
    worst: tuple[RatioEntry, ...]


def ratio_explosion(
    epoch: int, minibatch: int, envs: Tensor, batch: RolloutBatch, new_log_prob: Tensor, advantages: Tensor
) -> RatioExplosionDiagnostic | None:
    """The diagnostic of a minibatch, or ``None`` if its joint ratios stay within [0.1, 5].

    Args:
        epoch: pass over the rollout.
        minibatch: index within the pass.
        envs: ``int64 [n]``, environments of the minibatch.
        batch: what the rollout stored for them.
        new_log_prob: ``float [n, T, 8]``.
        advantages: ``float [n, T]``.
    """
    new_log_prob = new_log_prob.detach()
    moves = new_log_prob - batch.log_prob  # (n, T, 8)
    joint = moves.sum(-1).double()  # (n, T)
    count = int(((joint > math.log(RATIO_HIGH)) | (joint < math.log(RATIO_LOW))).sum())
    if count == 0:
        return None
    worst = joint.abs().flatten().topk(min(count, NUM_WORST)).indices.tolist()
    entries = []
    for row, step in (divmod(index, joint.shape[1]) for index in worst):
        head = int(moves[row, step].abs().argmax())
        entries.append(
            RatioEntry(
                environment=int(envs[row]),
                step=step,
                head=HEADS[head],
                op=OP_NAMES[int(batch.actions[row, step, Head.OP])],
                old_log_prob=float(batch.log_prob[row, step, head]),
                new_log_prob=float(new_log_prob[row, step, head]),
                advantage=float(advantages[row, step]),
                ratio=math.exp(min(float(joint[row, step]), 700.0)),  # finite, so that every log format takes it
            )
        )
    return RatioExplosionDiagnostic(epoch=epoch, minibatch=minibatch, count=count, worst=tuple(entries))


@dataclass(slots=True)
class Tally:
    """Sums over the minibatches of an update.

    What is averaged and counted is the same on every rank; ratios and entropies are of a rank's own environments.
    """

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    approx_kl: float | None = None
    ratios: list[Tensor] = field(default_factory=list)
    head_entropy: Tensor = field(default_factory=lambda: torch.zeros(len(HEADS), dtype=torch.float64))
    head_count: Tensor = field(default_factory=lambda: torch.zeros(len(HEADS), dtype=torch.float64))
    skipped_minibatches: int = 0
    early_stop_epoch: int | None = None

    @classmethod
    def merged(cls, parts: Sequence[Tally]) -> Tally:
        """One tally of all ranks' parts."""
        return replace(
            parts[0],
            ratios=[ratio for part in parts for ratio in part.ratios],
            head_entropy=torch.stack([part.head_entropy for part in parts]).sum(0),
            head_count=torch.stack([part.head_count for part in parts]).sum(0),
        )

    def add(self, **values: float) -> None:
        """Values of one minibatch, to be averaged."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + 1

    def observe(self, evaluation: Evaluation, joint_log_ratio: Tensor, choice: Tensor) -> None:
        """Ratios and entropies of one minibatch; an entropy counts where its head had more than one legal choice."""
        self.ratios.append(joint_log_ratio.detach()[choice].double().exp().cpu())
        had_choice = evaluation.num_legal > 1  # (n, T, 8)
        entropy = torch.where(had_choice, evaluation.entropy.detach().double(), 0)
        self.head_entropy += entropy.sum((0, 1)).cpu()
        self.head_count += had_choice.sum((0, 1)).cpu()

    def metrics(self) -> Metrics:
        """Everything as plain numbers."""
        names = ("policy_loss", "value_loss", "entropy", "clipfrac", "grad_norm")
        metrics: Metrics = {
            f"losses/{name}": self.sums[name] / self.counts[name] if name in self.counts else None for name in names
        }
        for name, total, count in zip(HEADS, self.head_entropy.tolist(), self.head_count.tolist(), strict=True):
            metrics[f"losses/entropy/{name}"] = total / count if count else None
        ratios = torch.cat(self.ratios) if self.ratios else torch.empty(0)
        some = ratios.numel() > 0
        metrics |= {
            "losses/approx_kl": self.approx_kl,
            "losses/ratio_mean": float(ratios.mean()) if some else None,
            "losses/ratio_std": float(ratios.std(correction=0)) if some else None,
            "losses/ratio_min": float(ratios.min()) if some else None,
            "losses/ratio_max": float(ratios.max()) if some else None,
            "losses/skipped_minibatches": float(self.skipped_minibatches),
            "losses/early_stop_epoch": None if self.early_stop_epoch is None else float(self.early_stop_epoch),
        }
        return metrics
