"""Losses and scores of each row, for classifiers and next-token predictors.

Axis legend: R = rows, B = batch, K = classes; ``...`` may hold token positions. Targets equal to :data:`IGNORED` do not
count; they pad the last window of a text.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from esper.tasks.data import IGNORED


def _in_full(logits: Tensor) -> Tensor:
    """Convert half-precision logits to fp32, because a softmax and its sums would lose small probabilities."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def row_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute the mean cross-entropy of each row, ``[R]``, from logits ``[R, B, ..., K]`` and targets ``int64 [R, B,
    ...]``.

    In at least fp32, whatever the precision of the logits.
    """
    logits = _in_full(logits)
    losses = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="none")
    per_row = losses.view(targets.shape[0], -1)
    if targets.dim() == 2:
        return per_row.mean(dim=1)
    return per_row.sum(dim=1) / (targets != IGNORED).flatten(1).sum(dim=1)


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of each row, ``[R]`` each.

    Attributes:
        points: 100 x mean probability of the right class.
        loss: mean cross-entropy in nats.
        accuracy: share of right answers, 0 to 1.
    """

    points: Tensor
    loss: Tensor
    accuracy: Tensor


def weighted_sums(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Compute weighted sums over samples of probability, loss and hits.

    Args:
        logits: ``[R, B, ..., K]``.
        targets: ``int64 [B, ...]``, the same samples for all rows.
        weights: ``[R, B]``, weight of each sample for the row; the targets of a sample share its weight.

    Returns:
        ``[3, R]`` in float64, so that the result hardly depends on the division into batches.
    """
    log_probs = _in_full(logits).log_softmax(dim=-1)
    counted = targets != IGNORED
    known = targets.masked_fill(~counted, 0)
    right = log_probs.gather(-1, known.expand(logits.shape[:-1]).unsqueeze(-1)).squeeze(-1)
    hits = (logits.argmax(dim=-1) == targets).to(right.dtype)
    found = torch.stack([right.exp(), -right, hits])
    if targets.dim() > 1:  # the mean over a sample's targets
        found = (found * counted).flatten(3).sum(dim=3) / counted.flatten(1).sum(dim=1)
    return (found * weights).sum(dim=-1, dtype=torch.float64)
