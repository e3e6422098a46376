"""Detectors of anomalies: pure functions of the metrics of one iteration.

:class:`esper.telemetry.escalation.Escalation` calls :func:`detect` once per iteration. A metric that is absent or
``None`` was not measured and is never an anomaly. Times are ignored: they differ from rank to rank, and all ranks must
see the same anomalies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from esper.runtime.records import Metrics, without_times
from esper.telemetry.events import Anomaly
from esper.telemetry.metric_names import NEVER, VAL

ENTROPY_PREFIX = "losses/entropy/"
EXPLAINED_VARIANCE = "losses/explained_variance"
GRADIENT_NORM = "losses/grad_norm"
RATIO_OUTSIDE = "losses/ratio_outside"
SKIPPED = "losses/skipped_minibatches"

NUM_NAMED = 3
"""Largest number of metrics named in one anomaly."""

Found = Iterator[tuple[str, str, float]]
"""Detector, message, and the offending value."""

ADVICE = {
    "non_finite": "look at the host_crashed events, or lower ppo.lr",
    "ratio_explosion": "lower ppo.lr, ppo.target_kl or ppo.update_epochs",
    "entropy_collapse": "raise ppo.ent_coef, or the head's ppo.entropy_multipliers, if returns no longer rise",
    "value_collapse": "lower ppo.lr, or raise ppo.vf_coef or trainer.num_envs",
    "gradient_norm": "lower ppo.lr or ppo.max_grad_norm",
    "accuracy_drop": "go back to an earlier checkpoint with a lower ppo.lr if returns do not recover",
}
"""Remedy for each anomaly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnomalyLimits:
    """Limits beyond which a metric counts as unhealthy.

    Attributes:
        min_entropy: smallest normalised entropy (entropy / log of the number of legal choices) of a head.
        min_explained_variance: smallest explained variance of values; -1 is an error of twice the variance of the
            returns.
        value_start: iterations before the value function is checked, since it has to learn the scale of returns first.
            Healthy runs have been below -1 up to the seventh.
        max_gradient_norm: largest gradient norm before clipping.
        max_ratio_outside: largest share of an update's probability ratios outside [0.1, 5]. A few are usual: a choice
            of probability 0.03 that turns out well leaves these bounds in a single update.
        max_accuracy_drop: largest fall of final val accuracy below its mean over the last iterations, as a fraction
            of 1. The never-grown twins' accuracy is subtracted where it was measured, as hosts differ from iteration to
            iteration.
        accuracy_window: number of iterations in that mean; there is no check before as many were measured.
    """

    min_entropy: float = 0.01
    min_explained_variance: float = -1.0
    value_start: int = 10
    max_gradient_norm: float = 100.0
    max_ratio_outside: float = 0.01
    max_accuracy_drop: float = 0.1
    accuracy_window: int = 5


def non_finite(metrics: Metrics) -> Found:
    """Detect metrics that are NaN or infinite, and minibatches skipped because loss or gradient was."""
    for key, value in metrics.items():
        if value is not None and not math.isfinite(value):
            yield "non_finite", f"{key} is {value}", value
    skipped = metrics.get(SKIPPED)
    if skipped:
        yield "non_finite", f"{skipped:g} minibatches skipped: loss or gradient was not finite", skipped


def ratio_explosion(metrics: Metrics, max_outside: float) -> Found:
    """Detect an update in which a larger share than ``max_outside`` of the probability ratios is outside [0.1, 5]."""
    share = metrics.get(RATIO_OUTSIDE)
    if share is not None and share > max_outside:
        yield "ratio_explosion", f"{share:.1%} of the probability ratios are outside [0.1, 5]", share


def entropy_collapse(metrics: Metrics, min_entropy: float) -> Found:
    """Detect action heads that are nearly deterministic: with a normalised entropy below ``min_entropy``."""
    for key, value in metrics.items():
        if key.startswith(ENTROPY_PREFIX) and value is not None and value < min_entropy:
            head = key.removeprefix(ENTROPY_PREFIX)
            yield "entropy_collapse", f"head {head} has normalised entropy {value:.4g} < {min_entropy:g}", value


def value_collapse(iteration: int, metrics: Metrics, min_explained_variance: float, start: int) -> Found:
    """Detect an explained variance below its minimum, which makes values misleading, after ``start`` iterations."""
    value = metrics.get(EXPLAINED_VARIANCE)
    if iteration > start and value is not None and value < min_explained_variance:
        yield "value_collapse", f"explained variance {value:.4g} < {min_explained_variance:g}", value


def gradient_norm(metrics: Metrics, max_gradient_norm: float) -> Found:
    """Detect a gradient norm above ``max_gradient_norm``, before clipping."""
    value = metrics.get(GRADIENT_NORM)
    if value is not None and value > max_gradient_norm:
        yield "gradient_norm", f"gradient norm {value:.4g} > {max_gradient_norm:g}", value


def accuracy_gain(metrics: Metrics) -> float | None:
    """Return final val accuracy minus that of the never-grown twins, or final val accuracy itself without twins."""
    accuracy, never = metrics.get(VAL), metrics.get(NEVER)
    return accuracy if accuracy is None or never is None else accuracy - never


def accuracy_drop(metrics: Metrics, earlier: Sequence[float], max_drop: float, window: int) -> Found:
    """Detect hosts that end far worse than those of the last iterations.

    Args:
        metrics: metrics of this iteration.
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
    """Return the anomalies in the metrics of one iteration, in a fixed order, at most one of each detector.

    If one detector finds several metrics with one cause, as when all heads collapse together, it reports them once,
    with the first value.

    Args:
        iteration: number of the iteration, from 1.
        metrics: metrics of this iteration.
        limits: the defaults if not given.
        earlier: :func:`accuracy_gain` of earlier iterations, where measured, oldest first.
    """
    limits, timeless = limits or AnomalyLimits(), without_times(metrics)
    found = [
        *non_finite(timeless),
        *ratio_explosion(timeless, limits.max_ratio_outside),
        *entropy_collapse(timeless, limits.min_entropy),
        *value_collapse(iteration, timeless, limits.min_explained_variance, limits.value_start),
        *gradient_norm(timeless, limits.max_gradient_norm),
        *accuracy_drop(timeless, earlier, limits.max_accuracy_drop, limits.accuracy_window),
    ]
    seen: dict[str, list[tuple[str, float]]] = {}
    for name, message, value in found:
        seen.setdefault(name, []).append((message, value))
    return [
        Anomaly(
            iteration=iteration, name=name, message=_together(name, [message for message, _ in each]), value=each[0][1]
        )
        for name, each in seen.items()
    ]


def _together(name: str, messages: Sequence[str]) -> str:
    more = len(messages) - NUM_NAMED
    found = "; ".join(messages[:NUM_NAMED]) + (f"; and {more} more" if more > 0 else "")
    return f"{found}: {ADVICE[name]}"


def advice(counts: Mapping[str, int], num_iterations: int) -> list[str]:
    """Return one line for each anomaly of a run, the most frequent first: in how many iterations, and its remedy.

    Args:
        counts: iterations with each anomaly, by name. A run that another version began may have names without a remedy.
        num_iterations: iterations of the run.
    """
    found = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return [
        f"{name} in {count} of {num_iterations} iterations: {ADVICE.get(name, 'described in events.jsonl')}"
        for name, count in found
    ]
