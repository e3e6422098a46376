"""Detectors: pure functions from the metrics of one iteration to what looks wrong in them.

The trainer calls :func:`detect` once per iteration. A metric that is absent or ``None`` was not measured and is never
an anomaly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from esper.telemetry.events import Anomaly
from esper.telemetry.records import Metrics

ENTROPY_PREFIX = "losses/entropy/"
EXPLAINED_VARIANCE = "losses/explained_variance"
GRADIENT_NORM = "losses/grad_norm"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnomalyLimits:
    """Where a metric stops looking healthy.

    Attributes:
        min_entropy: least normalised entropy (entropy / log of the number of legal choices) of a head.
        min_explained_variance: below this, values predict worse than their mean by far; -1 is an error of twice the
            variance of the returns.
        max_gradient_norm: largest gradient norm before clipping.
    """

    min_entropy: float = 0.01
    min_explained_variance: float = -1.0
    max_gradient_norm: float = 100.0


def non_finite(metrics: Metrics) -> Iterator[tuple[str, str, float]]:
    """Any metric that is NaN or infinite."""
    for key, value in metrics.items():
        if value is not None and not math.isfinite(value):
            yield "non_finite", f"{key} is {value}", value


def entropy_collapse(metrics: Metrics, min_entropy: float) -> Iterator[tuple[str, str, float]]:
    """A head that hardly chooses any more."""
    for key, value in metrics.items():
        if key.startswith(ENTROPY_PREFIX) and value is not None and value < min_entropy:
            head = key.removeprefix(ENTROPY_PREFIX)
            yield "entropy_collapse", f"head {head} has normalised entropy {value:.4g} < {min_entropy:g}", value


def value_collapse(metrics: Metrics, min_explained_variance: float) -> Iterator[tuple[str, str, float]]:
    """A value function that misleads."""
    value = metrics.get(EXPLAINED_VARIANCE)
    if value is not None and value < min_explained_variance:
        yield "value_collapse", f"explained variance {value:.4g} < {min_explained_variance:g}", value


def gradient_norm(metrics: Metrics, max_gradient_norm: float) -> Iterator[tuple[str, str, float]]:
    """A gradient far from where clipping expects it."""
    value = metrics.get(GRADIENT_NORM)
    if value is not None and value > max_gradient_norm:
        yield "gradient_norm", f"gradient norm {value:.4g} > {max_gradient_norm:g}", value


def detect(iteration: int, metrics: Metrics, limits: AnomalyLimits | None = None) -> list[Anomaly]:
    """All anomalies in the metrics of one iteration, in a fixed order of detectors."""
    limits = limits or AnomalyLimits()
    found = [
        *non_finite(metrics),
        *entropy_collapse(metrics, limits.min_entropy),
        *value_collapse(metrics, limits.min_explained_variance),
        *gradient_norm(metrics, limits.max_gradient_norm),
    ]
    return [Anomaly(iteration=iteration, name=name, message=message, value=value) for name, message, value in found]
