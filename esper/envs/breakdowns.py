"""Crashes of hosts: detection, and the score of a crashed host.

Growing hosts and their never-grown twins follow the same rule, so that both crash in the same epoch if they are trained
alike. A number that is not finite ends the episode of its own environment and affects no other.

Axis legend: E = environments.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

from esper.population import Scores
from esper.tasks import TaskData


class Breakdown(IntEnum):
    """The first number that was not finite; NONE if all were finite."""

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
"""Description of each :class:`Breakdown`."""


def breakdowns(training_loss: Tensor, scores: Scores) -> Tensor:
    """Find the hosts that crashed in an epoch.

    Args:
        training_loss: ``float [E]``.
        scores: scores of the validation after it, ``[E]`` each.

    Returns:
        ``int64 [E]``, a :class:`Breakdown`.
    """
    validated = scores.loss.isfinite() & scores.points.isfinite()
    found = torch.where(validated, int(Breakdown.NONE), int(Breakdown.VALIDATION))
    return torch.where(training_loss.isfinite(), found, int(Breakdown.TRAINING))


def guessing(task: TaskData) -> Scores:
    """Return the scores of a guess that gives every class the same probability, ``float64 []`` each."""
    chance = torch.tensor(task.chance_accuracy, dtype=torch.float64)
    loss = torch.tensor(task.random_loss, dtype=torch.float64)
    return Scores(points=100.0 * chance, loss=loss, accuracy=chance)


def as_guessing(scores: Scores, broken: Tensor, task: TaskData) -> Scores:
    """Replace the scores of crashed hosts, ``bool [E]``, and scores that are not finite, by those of guessing."""
    guess = guessing(task)
    broken = broken | ~(scores.points.isfinite() & scores.loss.isfinite() & scores.accuracy.isfinite())
    return Scores(
        points=torch.where(broken, guess.points, scores.points),
        loss=torch.where(broken, guess.loss, scores.loss),
        accuracy=torch.where(broken, guess.accuracy, scores.accuracy),
    )
