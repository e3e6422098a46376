"""Statistics of an evaluation: differences between controllers, and their uncertainty.

A table holds one number per run seed (row) and instance (column); all rows are measured on the same instances. Both are
samples: another run of the same learner, or another host of the same family, would have given other numbers. An
interval that ignores either is too short.

Axis legend: R = run seeds, I = instances, B = draws, N = values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from esper.telemetry.confidence import LEVEL, least_draws

Statistic = Callable[[Tensor, Tensor], Tensor]
"""Function from values ``[N]`` and weights ``[..., N]`` to ``[...]``, invariant to scaling of all weights."""

CHUNK_VALUES = 1 << 20
"""Number of weights held in memory at a time: 8 MiB."""


class Interval(NamedTuple):
    """An estimate and its confidence interval.

    ``over_runs`` is false for a single run seed, whose interval does not include the variation between runs.
    """

    estimate: float
    low: float
    high: float
    over_runs: bool


class Mean(NamedTuple):
    """A mean and its standard error, which is ``None`` for a single value."""

    mean: float
    sem: float | None


def accuracy_ends(low: ArrayLike, high: ArrayLike) -> NDArray[np.float64]:
    """Clip the ends of intervals of accuracies, as fractions of 1, to [0, 1] for display; NaN stays.

    Over few run seeds an interval is long and symmetric, and may leave the values that an accuracy can have. Ends in
    files stay as computed, and differences of accuracies may be negative: neither is clipped.

    Args:
        low, high: one end or any number of them, of equal shape.

    Returns:
        ``[2, ...]`` lower and upper ends.
    """
    return np.clip(np.array([low, high], dtype=np.float64), 0.0, 1.0)


def mean_sem(values: Tensor) -> Mean | None:
    """Return mean and standard error of the mean, ``None`` for no values.

    Args:
        values: ``[N]``, one number per host; NaN makes the result NaN, so leave out values that were not measured.

    Returns:
        mean, and s / sqrt(N) with s the sample standard deviation (divisor N - 1), in float64.
    """
    count = values.numel()
    if count == 0:
        return None
    exact = values.to(torch.float64)
    sem = float(exact.std() / count**0.5) if count > 1 else None
    return Mean(float(exact.mean()), sem)


class Variance(NamedTuple):
    """An estimated variance and its effective degrees of freedom."""

    value: float
    freedom: float


def mean(values: Tensor, weights: Tensor | None = None) -> Tensor:
    """Compute a weighted mean.

    Args:
        values: ``[N]``.
        weights: ``[..., N]``, not negative and not all 0; 1 if not given.

    Returns:
        ``float64 [...]``.
    """
    exact = values.to(torch.float64)
    share = torch.ones_like(exact) if weights is None else weights
    return share @ exact / share.sum(-1)


def iqm(values: Tensor, weights: Tensor | None = None) -> Tensor:
    """Compute the interquartile mean, the mean of the middle half (Agarwal et al. 2021, "Deep Reinforcement Learning at
    the Edge of the Statistical Precipice").

    Exactly a quarter of the weight is cut at either end. A value on the border counts in part.

    Args:
        values: ``[N]``.
        weights: ``[..., N]``, not negative and not all 0; 1 if not given.

    Returns:
        ``float64 [...]``.
    """
    exact, order = values.to(torch.float64).sort()
    share = torch.ones_like(exact) if weights is None else weights[..., order]
    below = share.cumsum(-1)
    total = below[..., -1:]
    kept = below.clamp(total / 4, total * 3 / 4).diff(prepend=total / 4)
    return kept @ exact / (total.squeeze(-1) / 2)


def crossed_bootstrap(
    differences: Tensor,
    strata: Sequence[str],
    *,
    generator: torch.Generator,
    draws: int = 10_000,
    level: float = LEVEL,
    statistic: Statistic = mean,
) -> Interval:
    """Compute a confidence interval for a statistic of a table whose rows and columns are both samples.

    Every draw resamples run seeds, and independently of them instances within each stratum, with replacement (the
    pigeonhole bootstrap: Owen 2007, "The pigeonhole bootstrap"; McCullagh 2000, "Resampling and exchangeable arrays").

    Its plain percentiles are too close for few run seeds, as resampling n of n has (n - 1) / n of the variance and a
    normal's tails, and too far where noise of single cells prevails, which it counts up to three times. So their
    distances from the estimate are multiplied by

        sqrt(V / V*) t(p, f) / z(p),   p = (1 + level) / 2,

    with V* the variance of the draws, V and f the unbiased variance of :func:`crossed_variance` with its degrees of
    freedom, t and z quantiles of Student's and of the normal distribution: for one sample of normal numbers this is
    Student's interval. ``experiments/intervals`` has the coverage with and without.

    Args:
        differences: ``[R, I]``: row r is run seed r, column i an instance, the same for all rows. For two controllers,
            the one's number minus the other's.
        strata: stratum (family) of each of the I instances. Strata of one instance are pooled, since one instance does
            not show how much its stratum varies (collapsed strata: Cochran 1977, "Sampling Techniques", section 5A.12);
            a single one joins the smallest other stratum.
        generator: source of the draws; on the CPU.
        draws: B, at least :func:`~esper.telemetry.confidence.least_draws` of the level.
        level: requested coverage, in (0, 1).
        statistic: :func:`mean` or :func:`iqm`, of all R x I numbers.

    Returns:
        An interval that contains its estimate.

    Raises:
        ValueError: not a table, fewer than two instances, strata of another length, a number that is not finite, too
            few draws, or a level outside (0, 1).
    """
    groups = _check(differences, strata, draws, level)
    num_runs = len(differences)
    table = differences.to(torch.float64)
    estimate = float(statistic(table.flatten(), torch.ones(table.numel(), dtype=torch.float64)))
    drawn = []
    chunk = max(1, CHUNK_VALUES // table.numel())
    for start in range(0, draws, chunk):
        size = min(chunk, draws - start)
        runs = times_drawn([torch.arange(num_runs)], size, generator)
        instances = times_drawn(groups, size, generator)
        weights = (runs.unsqueeze(2) * instances.unsqueeze(1)).flatten(1)
        drawn.append(statistic(table.flatten(), weights))
    sample = torch.cat(drawn)
    upper = (1.0 + level) / 2.0
    ends = sample.quantile(torch.tensor([1.0 - upper, upper], dtype=torch.float64))
    variance = crossed_variance(influence(table, statistic), groups)
    spread = float(sample.var(correction=0))
    factor = 1.0
    if variance.value > 0.0 and spread > 0.0:
        factor = (variance.value / spread) ** 0.5 * _tails(variance.freedom, upper)
    low, high = (estimate + factor * (ends - estimate)).tolist()
    return Interval(estimate, min(low, estimate), max(high, estimate), num_runs > 1)


def _tails(freedom: float, probability: float) -> float:
    """Return the quantile of Student's distribution over that of the normal one."""
    from scipy.special import ndtri, stdtrit  # not above: a run's first iteration does not wait for it

    return float(stdtrit(freedom, probability) / ndtri(probability))


def probability_of_improvement(
    a: Tensor,
    b: Tensor,
    strata: Sequence[str],
    *,
    generator: torch.Generator,
    draws: int = 10_000,
    level: float = LEVEL,
) -> Interval:
    """Estimate the probability that ``a`` is above ``b``, a tie counted half, with its crossed-bootstrap interval.

    Agarwal et al. 2021 (see :func:`iqm`), but run seed r of ``a`` is only compared with run seed r of ``b``, as in all
    paired differences here. The interval stays within [0, 1].

    Args:
        a: ``[R, I]``.
        b: ``[R, I]``, or ``[1, I]`` for a controller without run seeds.
        strata, generator, draws, level: see :func:`crossed_bootstrap`.

    Raises:
        ValueError: as for :func:`crossed_bootstrap`, or the shapes of ``a`` and ``b`` do not match.
    """
    if a.ndim != 2 or b.ndim != 2 or b.shape[1] != a.shape[1] or b.shape[0] not in (1, a.shape[0]):
        raise ValueError(f"a must be [R, I] and b [R, I] or [1, I], got {list(a.shape)} and {list(b.shape)}")
    wins = (torch.sign(a.to(torch.float64) - b.to(torch.float64)) + 1.0) / 2.0
    found = crossed_bootstrap(wins, strata, generator=generator, draws=draws, level=level)
    return found._replace(low=max(found.low, 0.0), high=min(found.high, 1.0))


def influence(table: Tensor, statistic: Statistic) -> Tensor:
    """Compute the first-order effect of each number of a table on a statistic.

    The derivative by the number's weight (infinitesimal jackknife: Jaeckel 1972; Efron 1982, "The Jackknife, the
    Bootstrap and Other Resampling Plans", chapter 6). For the mean: the number minus the mean.

    Args:
        table: ``float64 [R, I]``.

    Returns:
        ``float64 [R, I]``.
    """
    weights = torch.ones(table.numel(), dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(statistic(table.flatten(), weights), weights)
    return gradient.reshape(table.shape) * table.numel()


def crossed_variance(table: Tensor, groups: Sequence[Tensor]) -> Variance:
    """Estimate the variance of the mean of a table under random run seeds and random instances within fixed groups.

    Two-way random effects: with variance a of run seeds, b of instances, e of single cells, the mean varies by a/R +
    b/I + e/(RI). The spread of row means shows a/R + e/(RI), that of column means within groups b/I + e/(RI), and the
    residuals e/(RI): row + column - residual is unbiased. It is never less than either of the first two, so the larger
    of them is used if the estimate is below. Differences between run seeds that favour one family are part of the row
    means. Degrees of freedom after Satterthwaite 1946, "An approximate distribution of estimates of variance
    components"; groups may differ in variance.

    Args:
        table: ``float64 [R, I]``.
        groups: indices of the instances of each group, at least two each.

    Returns:
        the variance; with R = 1 that over instances alone.
    """
    num_runs, num_instances = table.shape
    columns, residuals = [], []
    for group in groups:
        part = table[:, group]
        size = len(group)
        columns.append(Variance(float(part.mean(0).var()) * size / num_instances**2, size - 1))
        if num_runs > 1:
            rest = part - part.mean(1, keepdim=True) - part.mean(0) + part.mean()
            freedom = (num_runs - 1) * (size - 1)
            value = float(rest.square().sum()) / freedom * size / (num_runs * num_instances**2)
            residuals.append(Variance(value, freedom))
    column = _total(columns)
    if num_runs == 1:
        return column
    row = Variance(float(table.mean(1).var()) / num_runs, num_runs - 1)
    whole = _total([row, *columns], residuals)
    return max(whole, row, column)


def times_drawn(groups: Sequence[Tensor], draws: int, generator: torch.Generator) -> Tensor:
    """Draw how often each of n things occurs if every group is resampled with replacement.

    Args:
        groups: indices of the things in each group; together 0 to n - 1.
        draws: number of draws, B.
        generator: source of randomness, on the CPU.

    Returns:
        ``float64 [B, n]``.
    """
    counts = torch.zeros(draws, sum(len(group) for group in groups), dtype=torch.float64)
    one = torch.ones((), dtype=torch.float64)
    for group in groups:
        picks = torch.randint(len(group), (draws, len(group)), generator=generator)
        counts.scatter_add_(1, group[picks], one.expand(picks.shape))
    return counts


def _total(plus: Sequence[Variance], minus: Sequence[Variance] = ()) -> Variance:
    """Add and subtract independent variances, with Satterthwaite's degrees of freedom."""
    value = sum(part.value for part in plus) - sum(part.value for part in minus)
    scatter = sum(part.value**2 / part.freedom for part in (*plus, *minus))
    return Variance(value, value**2 / scatter if scatter > 0.0 else 1.0)


def _groups(strata: Sequence[str]) -> Iterator[list[int]]:
    """Iterate over the indices of each stratum, with strata of one instance pooled."""
    members: dict[str, list[int]] = {}
    for index, stratum in enumerate(strata):
        members.setdefault(stratum, []).append(index)
    several = sorted((group for group in members.values() if len(group) > 1), key=len)
    lone = [index for group in members.values() if len(group) == 1 for index in group]
    if len(lone) == 1:
        lone += several.pop(0)
    yield from several
    if lone:
        yield lone


def _check(table: Tensor, strata: Sequence[str], draws: int, level: float) -> list[Tensor]:
    """Refuse arguments for which there is no interval; return the groups of instances."""
    if table.ndim != 2 or table.shape[0] < 1 or table.shape[1] < 2:
        raise ValueError(f"a table must be [R, I] with R >= 1 and I >= 2, got {list(table.shape)}")
    if len(strata) != table.shape[1]:
        raise ValueError(f"{len(strata)} strata for {table.shape[1]} instances")
    if not table.isfinite().all():
        raise ValueError(f"{int((~table.isfinite()).sum())} of {table.numel()} numbers are not finite")
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be in (0, 1), got {level}")
    if draws < least_draws(level):
        raise ValueError(f"draws must be at least {least_draws(level)} for a level of {level:g}, got {draws}")
    return [torch.tensor(group) for group in _groups(strata)]
