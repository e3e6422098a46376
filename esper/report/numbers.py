"""Numbers of runs, and statistics over run seeds.

Axis legend: R = run seeds, N = iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtrit

from esper.report.folders import Run, number
from esper.report.grouping import Configuration
from esper.runtime.controller_names import LEARNED
from esper.runtime.rng import generator
from esper.telemetry.confidence import LEVEL
from esper.telemetry.metric_names import RETURN
from esper.telemetry.statistics import accuracy_ends, crossed_bootstrap, iqm
from esper.views.text import formatted

STATISTICS: tuple[str, ...] = ("mean", "iqm")
DRAWS = 10_000
CURVE_DRAWS = 1_000
CURVE_POINTS = 100
"""Number of iterations at which an interquartile mean's band is computed, with straight lines between them."""
TAIL = 0.1
"""Share of a run's last iterations that training return is averaged over."""

Array = NDArray[np.float64]


class Estimate(NamedTuple):
    """A statistic over a number of run seeds; a single one has no interval."""

    value: float
    low: float | None
    high: float | None
    num_seeds: int


def estimate(values: Sequence[float | None], statistic: str) -> Estimate | None:
    """Compute a statistic and its 95 % interval over run seeds, without values that were not measured.

    Args:
        values: ``[R]``, one per run seed.
        statistic: ``mean`` has Student's interval; ``iqm``, the interquartile mean, a bootstrap's whose length is
            corrected for few seeds (:func:`esper.telemetry.statistics.crossed_bootstrap`).
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    if len(known) == 1:
        return Estimate(known[0], None, None, 1)
    if statistic == "mean":
        middle, half = _student(np.array(known)[:, None])
        return Estimate(float(middle[0]), float(middle[0] - half[0]), float(middle[0] + half[0]), len(known))
    return _iqm(known, DRAWS)


def _student(table: Array) -> tuple[Array, Array]:
    """Return the mean over R, and half the length of Student's interval, of ``[R, N]`` with R >= 2."""
    count = len(table)
    quantile = float(stdtrit(count - 1, (1 + LEVEL) / 2))
    return table.mean(0), quantile * table.std(0, ddof=1) / count**0.5


def _iqm(known: Sequence[float], draws: int) -> Estimate:
    table = torch.tensor([known], dtype=torch.float64)  # seeds take the place of instances
    stream = generator("report", 0)
    found = crossed_bootstrap(table, ["seed"] * len(known), generator=stream, draws=draws, level=LEVEL, statistic=iqm)
    return Estimate(found.estimate, found.low, found.high, len(known))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A metric over iterations.

    Attributes:
        x: ``[N]``.
        value: ``[N]``, NaN where no run measured it.
        low, high: ``[N]``, NaN where fewer than two runs did.
        count: ``[N]`` number of runs.
    """

    x: Array
    value: Array
    low: Array
    high: Array
    count: Array


def curve(runs: Sequence[Run], key: str, x: str, statistic: str) -> Curve:
    """Compute the curve of a metric over several run seeds of one configuration.

    Args:
        runs: runs of one configuration.
        key: metric.
        x: ``iteration``, or a metric that grows with it.
        statistic: one of :data:`STATISTICS`.
    """
    iterations = sorted({record["iteration"] for run in runs for record in run.metrics})
    place = {iteration: index for index, iteration in enumerate(iterations)}
    table = np.full((len(runs), len(iterations)), np.nan)
    where = np.full(len(iterations), np.nan)
    for row, run in enumerate(runs):
        for record, value, at in zip(run.metrics, run.column(key), run.column(x), strict=True):
            column = place[record["iteration"]]
            table[row, column] = np.nan if value is None else value
            where[column] = where[column] if at is None else at
    known = np.isfinite(where)
    table, where = table[:, known], where[known]
    count = np.isfinite(table).sum(0).astype(np.float64)
    middle, low, high = (np.full(table.shape[1], np.nan) for _ in range(3))
    asked = range(table.shape[1]) if statistic == "mean" else _spread(table.shape[1])
    for index in asked:
        column_values = table[np.isfinite(table[:, index]), index].tolist()
        if len(column_values) == 1:
            middle[index] = column_values[0]
        elif column_values:
            found = estimate(column_values, "mean") if statistic == "mean" else _iqm(column_values, CURVE_DRAWS)
            assert found is not None, "there are values"
            assert found.low is not None, "there are two"
            assert found.high is not None, "there are two"
            middle[index], low[index], high[index] = found.value, found.low, found.high
    if statistic != "mean":
        chosen = np.array(asked, dtype=np.int64)
        return Curve(x=where[chosen], value=middle[chosen], low=low[chosen], high=high[chosen], count=count[chosen])
    return Curve(x=where, value=middle, low=low, high=high, count=count)


def _spread(length: int) -> Sequence[int]:
    return sorted({round(point) for point in np.linspace(0, length - 1, min(length, CURVE_POINTS))}) if length else []


def training_return(run: Run) -> float | None:
    """Return the mean return over the last tenth of a run's iterations, where measured."""
    values = run.column(RETURN)
    known = [value for value in values[-max(1, round(TAIL * len(values))) :] if value is not None]
    return sum(known) / len(known) if known else None


def tail_mean(runs: Sequence[Run], key: str) -> float | None:
    """Return a metric over the last tenth of each run's iterations, mean over runs."""
    means = []
    for run in runs:
        values = run.column(key)
        known = [value for value in values[-max(1, round(TAIL * len(values))) :] if value is not None]
        means += [sum(known) / len(known)] if known else []
    return sum(means) / len(means) if means else None


def flops_ratio(run: Run) -> float | None:
    """Return the multiply-adds of training held-out hosts and their modules over those of the hosts alone."""
    episodes = run.result.get("episodes")
    rows = episodes.get(LEARNED) if isinstance(episodes, dict) else None
    known = [number(row.get("relative_flops")) for row in rows or [] if isinstance(row, dict)]
    values = [value for value in known if value is not None]
    return sum(values) / len(values) if values else None


def wall_seconds(run: Run) -> float | None:
    """Return the seconds of the whole run if it finished, otherwise of its iterations."""
    whole = number(run.result.get("wall_seconds"))
    if whole is not None:
        return whole
    parts = [*run.column("time/rollout"), *run.column("time/update")]
    known = [value for value in parts if value is not None]
    return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number that every run has.

    Attributes:
        name: name in CSV files and on the command line.
        title: title in tables.
        of: function from a run to the number.
        spec: format of its estimate.
        scale: factor for display.
        unit: unit after scaling.
        outcome: true for results, which vary between run seeds; false for costs, which have no interval in tables.
        accuracy: true for an accuracy, whose intervals are displayed within 0 and 100 %.
    """

    name: str
    title: str
    of: Callable[[Run], float | None] = field(repr=False)
    spec: str
    scale: float = 1.0
    unit: str = ""
    outcome: bool = True
    accuracy: bool = False

    @property
    def difference(self) -> Self:
        """Differences of this quantity."""
        return replace(self, accuracy=False)

    def show(self, value: float | None) -> str:
        """Format a value, or a dash."""
        return "–" if value is None else formatted(value * self.scale, self.spec)

    def show_half(self, found: Estimate) -> str:
        """Format half the length of an interval; empty without one."""
        if found.low is None or found.high is None:
            return ""
        return formatted((found.high - found.low) / 2 * self.scale, self.spec.lstrip("+"))

    def show_interval(self, found: Estimate, statistic: str) -> str:
        """Format ``± half`` for a mean, ``[low, high]`` for others and for a mean whose interval is clipped; empty for
        costs, or without an interval.
        """
        ends = self.ends(found)
        if ends is None or not self.outcome:
            return ""
        if statistic == "mean" and ends == (found.low, found.high):
            return f"± {self.show_half(found)}"
        return f"[{self.show(ends[0])}, {self.show(ends[1])}]"

    def ends(self, found: Estimate) -> tuple[float, float] | None:
        """Return the ends of an interval as displayed, unscaled; ``None`` without an interval."""
        if found.low is None or found.high is None:
            return None
        if not self.accuracy:
            return found.low, found.high
        low, high = accuracy_ends(found.low, found.high).tolist()
        return low, high


QUANTITIES: tuple[Quantity, ...] = (
    Quantity("held_out_return", "held-out return", lambda run: run.learned("episode_return"), "+.2f", unit="points"),
    Quantity("training_return", "training return", training_return, "+.2f", unit="points"),
    Quantity(
        "test_accuracy", "test accuracy", lambda run: run.learned("test_accuracy"), ".1f", 100, "%", accuracy=True
    ),
    Quantity("val_accuracy", "val accuracy", lambda run: run.learned("val_accuracy"), ".1f", 100, "%", accuracy=True),
    Quantity("test_bits", "test bits per byte", lambda run: run.learned("test_bits"), ".3f"),
    Quantity("val_bits", "val bits per byte", lambda run: run.learned("val_bits"), ".3f"),
    Quantity("added_parameters", "added parameters", lambda run: run.learned("added_parameters"), ",.0f"),
    Quantity("flops_ratio", "FLOPs ratio", flops_ratio, ".2f", unit="× host alone", outcome=False),
    Quantity("env_epochs", "env-epochs", lambda run: run.last("charts/env_epochs"), ",.0f", outcome=False),
    Quantity("wall_seconds", "wall time", wall_seconds, ",.0f", unit="s", outcome=False),
)
SCORES: tuple[str, ...] = ("held_out_return", "training_return", "test_accuracy", "val_accuracy")


def quantity(name: str) -> Quantity:
    """Return the quantity with a name."""
    return next(item for item in QUANTITIES if item.name == name)


def over_seeds(configuration: Configuration, item: Quantity, statistic: str) -> Estimate | None:
    """Compute the estimate of a quantity over all runs of a configuration that have it."""
    return estimate([item.of(run) for run in configuration.runs], statistic)
