"""Detectors: pure functions from the metrics of one iteration to what looks wrong in them.

:class:`esper.telemetry.escalation.Escalation` calls :func:`detect` once per iteration. A metric that is absent or
``None`` was not measured and is never an anomaly. Times are left out: they differ from rank to rank, and all ranks must
see the same anomalies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from esper.runtime.records import Metrics, without_times
from esper.telemetry.events import Anomaly
from esper.telemetry.metric_names import NEVER, VAL

ENTROPY_PREFIX = "losses/entropy/"
EXPLAINED_VARIANCE = "losses/explained_variance"
GRADIENT_NORM = "losses/grad_norm"
RATIO_MAX, RATIO_MIN = "losses/ratio_max", "losses/ratio_min"
SKIPPED = "losses/skipped_minibatches"

NUM_NAMED = 3
"""Metrics that one anomaly names."""

Found = Iterator[tuple[str, str, float]]
"""Detector, message, and the value that it saw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnomalyLimits:
    """Where a metric stops looking healthy.

    Attributes:
        min_entropy: least normalised entropy (entropy / log of the number of legal choices) of a head.
        min_explained_variance: below this, values predict worse than their mean by far; -1 is an error of twice the
            variance of the returns.
        value_start: iterations that a value function has to learn what returns are like; until then it may say
            anything. Healthy runs have been below -1 up to the seventh.
        max_gradient_norm: largest gradient norm before clipping.
        max_ratio, min_ratio: largest and smallest probability ratio of an update.
        max_accuracy_drop: largest fall of final val accuracy below its mean over the last iterations, as a fraction
            of 1. The never-grown twins' accuracy is subtracted where it was measured, as hosts differ from iteration to
            iteration.
        accuracy_window: how many iterations that mean is over; nothing falls before as many were measured.
    """

    min_entropy: float = 0.01
    min_explained_variance: float = -1.0
    value_start: int = 10
    max_gradient_norm: float = 100.0
    max_ratio: float = 5.0
    min_ratio: float = 0.1
    max_accuracy_drop: float = 0.1
    accuracy_window: int = 5


def non_finite(metrics: Metrics) -> Found:
    """Any metric that is NaN or infinite, and minibatches whose loss or gradient was."""
    for key, value in metrics.items():
        if value is not None and not math.isfinite(value):
            yield "non_finite", f"{key} is {value}", value
    skipped = metrics.get(SKIPPED)
    if skipped:
        yield "non_finite", f"{skipped:g} minibatches skipped: loss or gradient was not finite", skipped


def ratio_explosion(metrics: Metrics, max_ratio: float, min_ratio: float) -> Found:
    """An action whose probability moved too far within one update."""
    high, low = metrics.get(RATIO_MAX), metrics.get(RATIO_MIN)
    if high is not None and high > max_ratio:
        yield "ratio_explosion", f"largest probability ratio {high:.4g} > {max_ratio:g}", high
    if low is not None and low < min_ratio:
        yield "ratio_explosion", f"smallest probability ratio {low:.4g} < {min_ratio:g}", low


def entropy_collapse(metrics: Metrics, min_entropy: float) -> Found:
    """A head that hardly chooses any more."""
    for key, value in metrics.items():
        if key.startswith(ENTROPY_PREFIX) and value is not None and value < min_entropy:
            head = key.removeprefix(ENTROPY_PREFIX)
            yield "entropy_collapse", f"head {head} has normalised entropy {value:.4g} < {min_entropy:g}", value


def value_collapse(iteration: int, metrics: Metrics, min_explained_variance: float, start: int) -> Found:
    """A value function that misleads, though it had ``start`` iterations to learn."""
    value = metrics.get(EXPLAINED_VARIANCE)
    if iteration > start and value is not None and value < min_explained_variance:
        yield "value_collapse", f"explained variance {value:.4g} < {min_explained_variance:g}", value


def gradient_norm(metrics: Metrics, max_gradient_norm: float) -> Found:
    """A gradient far from where clipping expects it."""
    value = metrics.get(GRADIENT_NORM)
    if value is not None and value > max_gradient_norm:
        yield "gradient_norm", f"gradient norm {value:.4g} > {max_gradient_norm:g}", value


def accuracy_gain(metrics: Metrics) -> float | None:
    """Final val accuracy over that of the never-grown twins, or itself where there are none."""
    accuracy, never = metrics.get(VAL), metrics.get(NEVER)
    return accuracy if accuracy is None or never is None else accuracy - never


def accuracy_drop(metrics: Metrics, earlier: Sequence[float], max_drop: float, window: int) -> Found:
    """Hosts that end far worse than those of the last iterations.

    Args:
        metrics: of this iteration.
        earlier: :func:`accuracy_gain` of earlier iterations, where measured, oldest first.
        max_drop, window: see :class:`AnomalyLimits`.
    """
    gain, last = accuracy_gain(metrics), earlier[-window:]
    if gain is None or len(last) < window:
        return
    drop = sum(last) / window - gain
    if drop > max_drop:
        yield "accuracy_drop", f"final val accuracy fell by {drop:.1%} below its last {window} iterations", drop


def detect(
    iteration: int, metrics: Metrics, limits: AnomalyLimits | None = None, earlier: Sequence[float] = ()
) -> list[Anomaly]:
    """The anomalies in the metrics of one iteration, in a fixed order of detectors: at most one of each.

    What one detector sees in several metrics has one cause, as when all heads collapse together: it is said once, with
    the first value.

    Args:
        iteration: from 1.
        metrics: of this iteration.
        limits: the defaults if not given.
        earlier: :func:`accuracy_gain` of earlier iterations, where measured, oldest first.
    """
    limits, timeless = limits or AnomalyLimits(), without_times(metrics)
    found = [
        *non_finite(timeless),
        *ratio_explosion(timeless, limits.max_ratio, limits.min_ratio),
        *entropy_collapse(timeless, limits.min_entropy),
        *value_collapse(iteration, timeless, limits.min_explained_variance, limits.value_start),
        *gradient_norm(timeless, limits.max_gradient_norm),
        *accuracy_drop(timeless, earlier, limits.max_accuracy_drop, limits.accuracy_window),
    ]
    seen: dict[str, list[tuple[str, float]]] = {}
    for name, message, value in found:
        seen.setdefault(name, []).append((message, value))
    return [
        Anomaly(iteration=iteration, name=name, message=_together([message for message, _ in each]), value=each[0][1])
        for name, each in seen.items()
    ]


def _together(messages: Sequence[str]) -> str:
    more = len(messages) - NUM_NAMED
    return "; ".join(messages[:NUM_NAMED]) + (f"; and {more} more" if more > 0 else "")
