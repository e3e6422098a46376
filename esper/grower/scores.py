"""Scores of a network on held-out data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from esper.population.losses import weighted_sums


@dataclass(frozen=True, slots=True)
class Score:
    """Score of a network on a validation split.

    Attributes:
        points: 0 to 100; for classes, 100 x the mean probability of the right one.
        loss: mean over targets, in nats.
        accuracy: 0 to 1.
    """

    points: float
    loss: float
    accuracy: float


def check_score(score: object) -> Score:
    """Return a score with plain numbers, and refuse an invalid one.

    A loss that is not finite is valid: the network has crashed.

    Raises:
        TypeError: not a :class:`Score`, or not of numbers.
        ValueError: a number is out of its range.
    """
    if not isinstance(score, Score):
        raise TypeError(
            f"evaluate: it must return an esper.Score, got a {type(score).__name__}: "
            "return esper.Score(points, loss, accuracy)"
        )
    try:
        score = Score(points=float(score.points), loss=float(score.loss), accuracy=float(score.accuracy))
    except (TypeError, ValueError) as error:
        raise TypeError(f"evaluate: {score!r:.120} must have three numbers: {error}") from error
    if not math.isfinite(score.loss):
        return score
    if not 0.0 <= score.points <= 100.0:
        raise ValueError(f"evaluate: points={score.points} must be from 0 to 100")
    if not 0.0 <= score.accuracy <= 1.0:
        raise ValueError(f"evaluate: accuracy={score.accuracy} must be from 0 to 1")
    return score


def classification_score(model: nn.Module, loader: Iterable[Any]) -> Score:
    """Compute the score of a classifier.

    Args:
        model: returns logits ``[B, K]``; its mode is restored.
        loader: batches (inputs, targets ``int64 [B]``) of the validation split, never of the test split.

    Raises:
        ValueError: there are no samples.
    """
    return _score(model, loader, lambda batch: (batch[0], batch[1]))


def language_score(model: nn.Module, loader: Iterable[Any]) -> Score:
    """Compute the score of a next-token predictor.

    Args:
        model: returns logits ``[B, T, K]``, or an object that has them as ``logits``; its mode is restored.
        loader: batches (tokens, targets), ``int64 [B, T]`` each, -100 for targets that do not count; or tokens alone,
            each of which is the target of the previous one. Of the validation split, never of the test split.

    Raises:
        ValueError: there are no samples.
    """

    def pair(batch: Any) -> tuple[Any, Tensor]:
        if isinstance(batch, Tensor):
            return batch[:, :-1], batch[:, 1:]
        return batch[0], batch[1]

    return _score(model, loader, pair)


@torch.no_grad()
def _score(model: nn.Module, loader: Iterable[Any], pair: Callable[[Any], tuple[Any, Tensor]]) -> Score:
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    sums, count = torch.zeros(3, dtype=torch.float64, device=device), 0
    with evaluating(model):
        for batch in loader:
            if isinstance(batch, Mapping):
                raise TypeError(
                    "loader: its batches must be (inputs, targets), got a mapping: compute an esper.Score yourself"
                )
            inputs, targets = pair(batch)
            inputs = inputs.to(device) if isinstance(inputs, Tensor) else inputs
            logits, targets = model(inputs), targets.to(device)
            logits = _checked(getattr(logits, "logits", logits), targets).flatten(0, -2)
            flat = targets.flatten()
            counted = flat != -100
            sums += weighted_sums(logits[None, counted], flat[counted], torch.ones(1, 1, device=device)).squeeze(1)
            count += int(counted.sum())
    if not count:
        raise ValueError("loader: it has no samples to score on")
    probability, loss, hits = (sums / count).tolist()
    return Score(points=100.0 * probability, loss=loss, accuracy=hits)


def _checked(logits: object, targets: Tensor) -> Tensor:
    """Refuse what are no logits, and targets that are not one class for each."""
    if not isinstance(logits, Tensor):
        raise TypeError(f"model: it must return logits, got a {type(logits).__name__}: compute an esper.Score yourself")
    if targets.numel() * logits.shape[-1] != logits.numel():
        raise ValueError(
            f"loader: targets {list(targets.shape)} must be the numbers of the classes, one for each of the logits "
            f"{list(logits.shape)}"
        )
    return logits


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode, and restore each module's own mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
