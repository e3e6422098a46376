"""Hosts that break down: when one has, and what it counts as from then on.

One rule for hosts that grow and for their never-grown twins, so that both break down in the same epoch where they are
trained alike. A number that is not finite costs its own environment the rest of an episode and nobody else anything.

Axis legend: E = environments.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

from esper.population import Scores
from esper.tasks import TaskData


class Breakdown(IntEnum):
    """The number that was not finite first; NONE where all were."""

    NONE = 0
    TRAINING = 1
    VALIDATION = 2
    REWARD = 3


REASONS = (
    "",
    "the training loss was not finite",
    "the validation loss was not finite",
    "the reward was not finite",
)
"""In words, by :class:`Breakdown`."""


def breakdowns(training_loss: Tensor, scores: Scores) -> Tensor:
    """Find the hosts that broke down in an epoch.

    Args:
        training_loss: ``float [E]``.
        scores: of the validation after it, ``[E]`` each.

    Returns:
        ``int64 [E]``, a :class:`Breakdown`.
    """
    validated = scores.loss.isfinite() & scores.points.isfinite()
    found = torch.where(validated, int(Breakdown.NONE), int(Breakdown.VALIDATION))
    return torch.where(training_loss.isfinite(), found, int(Breakdown.TRAINING))


def guessing(task: TaskData) -> Scores:
    """Scores of a guess that gives every class the same probability, ``float64 []`` each."""
    chance = torch.tensor(task.chance_accuracy, dtype=torch.float64)
    loss = torch.tensor(task.random_loss, dtype=torch.float64)
    return Scores(points=100.0 * chance, loss=loss, accuracy=chance)


def as_guessing(scores: Scores, broken: Tensor, task: TaskData) -> Scores:
    """Scores in which broken hosts, ``bool [E]``, and those whose own are not finite count as guessing."""
    guess = guessing(task)
    broken = broken | ~(scores.points.isfinite() & scores.loss.isfinite() & scores.accuracy.isfinite())
    return Scores(
        points=torch.where(broken, guess.points, scores.points),
        loss=torch.where(broken, guess.loss, scores.loss),
        accuracy=torch.where(broken, guess.accuracy, scores.accuracy),
    )
