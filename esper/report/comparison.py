"""Comparison of the best configuration with the others, paired by run seed and held-out host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from esper.config import identity
from esper.report.folders import Run, number
from esper.report.grouping import Configuration, Sweep
from esper.report.numbers import Estimate, Quantity, over_seeds
from esper.runtime.controller_names import LEARNED
from esper.telemetry.confidence import LEVEL, student

HOST_SECTIONS = ("task", "host", "instances")
"""Sections of the configuration that determine the hosts."""

EPISODE_FIELDS = {"held_out_return": "return", "test_accuracy": "test_accuracy", "val_accuracy": "val_accuracy"}
"""Scores that are means over held-out hosts, and their field in the episodes of ``result.json``."""

MAX_NAMES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The configuration with the highest score, and its lead over the others.

    Attributes:
        best: the configuration.
        value: its score.
        leads: per configuration, in the order of the sweep, the mean of the paired differences "best − it" and its
            interval; ``None`` for the best itself, and for one that shares no hosts or no run seed with it.
    """

    best: Configuration
    value: float
    leads: tuple[Estimate | None, ...]


def compare(sweep: Sweep, score: Quantity, statistic: str) -> Comparison | None:
    """Find the best configuration and compare it with the others.

    Differences are taken between runs of one seed, over the held-out hosts that both have. Their 95 % Student
    intervals over seeds are corrected for the number of comparisons (Bonferroni).

    Args:
        sweep: all configurations.
        score: score to compare.
        statistic: statistic over run seeds that determines the best.

    Returns:
        ``None`` with fewer than two configurations, or if no run has the score.
    """
    found = [(over_seeds(item, score, statistic), item) for item in sweep.configurations]
    known = [(value.value, item) for value, item in found if value is not None]
    if len(sweep.configurations) < 2 or not known:
        return None
    value, best = max(known, key=lambda pair: pair[0])
    level = 1 - (1 - LEVEL) / max(len(known) - 1, 1)
    leads = tuple(None if item is best else _lead(best, item, score, level) for item in sweep.configurations)
    return Comparison(best=best, value=value, leads=leads)


def _lead(best: Configuration, other: Configuration, score: Quantity, level: float) -> Estimate | None:
    rivals = {run.seed: run for run in other.runs if run.seed is not None}
    pairs = [(run, rivals[run.seed]) for run in best.runs if run.seed in rivals]
    found = [_difference(a, b, score) for a, b in pairs if _hosts(a) == _hosts(b)]
    values = [value for value in found if value is not None]
    if not values:
        return None
    mean = fmean(values)
    if len(values) == 1:
        return Estimate(mean, None, None, 1)
    half = student(values, level)
    return Estimate(mean, mean - half, mean + half, len(values))


def _hosts(run: Run) -> dict[str, object]:
    plain = {section: run.config.get(section) for section in HOST_SECTIONS}
    return identity.without(plain, identity.FREE_IN_EXPERIMENTS)


def _difference(a: Run, b: Run, score: Quantity) -> float | None:
    """Return the difference of two runs, over the held-out hosts that both have if the score is a mean over hosts."""
    left, right = (_by_host(run, EPISODE_FIELDS.get(score.name)) for run in (a, b))
    both = sorted(left.keys() & right.keys())
    if both:
        return fmean(left[host] - right[host] for host in both)
    ours, theirs = score.of(a), score.of(b)
    return None if ours is None or theirs is None else ours - theirs


def _by_host(run: Run, field: str | None) -> Mapping[str, float]:
    """Return the mean of a field of the learned controller's episodes, per host."""
    episodes = run.result.get("episodes")
    rows = episodes.get(LEARNED) if field is not None and isinstance(episodes, dict) else None
    values: dict[str, list[float]] = {}
    for row in rows or []:
        value = number(row.get(field)) if isinstance(row, dict) else None
        if value is not None and "instance" in row:
            values.setdefault(str(row["instance"]), []).append(value)
    return {host: fmean(found) for host, found in values.items()}


def is_clear(lead: Estimate) -> bool:
    """Return whether an interval excludes 0, which one run seed never shows."""
    return lead.low is not None and lead.low > 0.0


def verdict(comparison: Comparison, sweep: Sweep) -> str:
    """Name the configurations that cannot be distinguished from the best."""
    others = [
        (item, lead)
        for item, lead in zip(sweep.configurations, comparison.leads, strict=True)
        if item is not comparison.best
    ]
    close = [item.label for item, lead in others if lead is not None and not is_clear(lead)]
    unpaired = sum(lead is None for _, lead in others)
    compared = len(others) - unpaired
    parts = []
    if close and len(close) == compared:
        parts.append("not clearly better than any other")
    elif close:
        some = len(close) > MAX_NAMES
        parts.append(f"not clearly better than {f'{len(close)} of {compared} others' if some else '; '.join(close)}")
    elif compared:
        parts.append(f"clearly better than {'the other' if compared == 1 else f'all {compared} others'}")
    if unpaired:
        parts.append(f"not compared with {unpaired} without a common run seed or hosts")
    return f"{comparison.best.label}: {', '.join(parts)}"
