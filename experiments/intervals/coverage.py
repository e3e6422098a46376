"""Coverage of 95 % intervals: ``python -m experiments.intervals.coverage``, from the root of the repository.

Prints the tables of README.md.

Axis legend: R = run seeds, I = instances.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.runtime.terminal import secure
from esper.telemetry.statistics import Statistic, crossed_bootstrap, iqm, mean, times_drawn

NUM_INSTANCES = 64
FAMILY_MEANS = torch.tensor((0.0, 8.0, 3.0, 6.0, 2.0, -1.0, 5.0), dtype=torch.float64)
FAMILY_OF = torch.arange(NUM_INSTANCES) % len(FAMILY_MEANS)
FAMILIES = [torch.arange(index, NUM_INSTANCES, len(FAMILY_MEANS)) for index in range(len(FAMILY_MEANS))]
STRATA = tuple(f"family{index}" for index in FAMILY_OF.tolist())
NUM_RUNS = (5, 7, 10)
TABLES = 1000
DRAWS = 400
POPULATION = 20_000
"""Size per instance of the sample that estimates the true value of statistics other than the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A distribution of differences in return between two controllers; standard deviations in points.

    Attributes:
        runs: between run seeds.
        instances: between instances of one family.
        cells: between single episodes.
        runs_by_family: between run seeds in their additional gain on one family.
        skewed: draw instances and episodes from exponential instead of normal distributions.
    """

    runs: float
    instances: float
    cells: float
    runs_by_family: float = 0.0
    skewed: bool = False

    def tables(self, count: int, num_runs: int, generator: torch.Generator) -> Tensor:
        """Draw tables of differences, ``float64 [count, R, I]``."""

        def normal(*shape: int) -> Tensor:
            return torch.randn(count, *shape, dtype=torch.float64, generator=generator)

        def noise(*shape: int) -> Tensor:
            if not self.skewed:
                return normal(*shape)
            return torch.empty(count, *shape, dtype=torch.float64).exponential_(generator=generator) - 1.0

        return (
            FAMILY_MEANS[FAMILY_OF]
            + self.runs * normal(num_runs, 1)
            + self.runs_by_family * normal(num_runs, len(FAMILY_MEANS))[:, :, FAMILY_OF]
            + self.instances * noise(1, NUM_INSTANCES)
            + self.cells * noise(num_runs, NUM_INSTANCES)
        )


CASES = {
    "run seeds differ": Case(runs=3.0, instances=1.5, cells=1.5),
    "instances differ": Case(runs=0.1, instances=6.0, cells=1.5),
    "both": Case(runs=1.0, instances=6.0, cells=3.0),
    "run seeds favour families": Case(runs=1.0, instances=3.0, cells=2.0, runs_by_family=4.0),
    "skewed": Case(runs=0.7, instances=6.0, cells=3.0, skewed=True),
    "run seeds and episodes": Case(runs=1.5, instances=0.0, cells=6.0),
    "episodes alone": Case(runs=0.0, instances=0.0, cells=6.0),
}


def wins(differences: Tensor) -> Tensor:
    """Return 1 for differences above zero, else 0; the mean is the probability of improvement."""
    return (differences > 0).to(torch.float64)


def unchanged(differences: Tensor) -> Tensor:
    """Return the differences themselves."""
    return differences


MEASURES: dict[str, tuple[Callable[[Tensor], Tensor], Statistic]] = {
    "mean": (unchanged, mean),
    "IQM": (unchanged, iqm),
    "P(improvement)": (wins, mean),
}

Ends = tuple[float, float]
Method = Callable[[Tensor, Statistic, torch.Generator], Ends]


def corrected(table: Tensor, statistic: Statistic, generator: torch.Generator) -> Ends:
    """Interval as reported by evaluations."""
    found = crossed_bootstrap(table, STRATA, generator=generator, draws=DRAWS, statistic=statistic)
    return found.low, found.high


def crossed_percentiles(table: Tensor, statistic: Statistic, generator: torch.Generator) -> Ends:
    """Percentile interval over resampled run seeds and instances within families, without correction."""
    runs = times_drawn([torch.arange(len(table))], DRAWS, generator)
    instances = times_drawn(FAMILIES, DRAWS, generator)
    return _percentiles(table, runs.unsqueeze(2) * instances.unsqueeze(1), statistic)


def run_seeds_alone(table: Tensor, statistic: Statistic, generator: torch.Generator) -> Ends:
    """Percentile interval over resampled run seeds, with fixed instances."""
    runs = times_drawn([torch.arange(len(table))], DRAWS, generator)
    return _percentiles(table, runs.unsqueeze(2).expand(-1, -1, NUM_INSTANCES), statistic)


def pooled_pairs(table: Tensor, statistic: Statistic, generator: torch.Generator) -> Ends:
    """Percentile interval over all R x I differences, as if they were independent."""
    return _percentiles(table, times_drawn([torch.arange(table.numel())], DRAWS, generator), statistic)


METHODS: dict[str, Method] = {
    "corrected": corrected,
    "crossed percentiles": crossed_percentiles,
    "run seeds alone": run_seeds_alone,
    "pooled pairs": pooled_pairs,
}


def _percentiles(table: Tensor, weights: Tensor, statistic: Statistic) -> Ends:
    drawn = statistic(table.flatten(), weights.flatten(1))
    low, high = drawn.quantile(torch.tensor((0.025, 0.975), dtype=torch.float64)).tolist()
    return low, high


def true_value(case: Case, measure: str, generator: torch.Generator) -> float:
    """Return the statistic over the whole population of run seeds and instances."""
    change, statistic = MEASURES[measure]
    if change is unchanged and statistic is mean:
        return float(FAMILY_MEANS[FAMILY_OF].mean())
    values = change(case.tables(POPULATION, 1, generator)).flatten()
    return float(statistic(values, torch.ones_like(values)))


def coverage(case: Case, num_runs: int, measure: str, method: str, *, tables: int = TABLES, seed: int = 0) -> float:
    """Return the share of simulated tables whose interval contains the truth.

    Args:
        case: distribution of the tables.
        num_runs: R.
        measure, method: keys of :data:`MEASURES` and :data:`METHODS`.
        tables: number of tables.
        seed: seed of tables and draws.
    """
    generator = torch.Generator().manual_seed(seed)
    change, statistic = MEASURES[measure]
    truth = true_value(case, measure, generator)
    hits = 0
    for table in change(case.tables(tables, num_runs, generator)):
        low, high = METHODS[method](table, statistic, generator)
        hits += low <= truth <= high
    return hits / tables


def main() -> None:
    """Print coverage in per cent, one table per measure."""
    torch.set_num_threads(1)
    for measure in MEASURES:
        print(f"\n| {measure} | R | {' | '.join(METHODS)} |\n|---|---|{'---|' * len(METHODS)}")
        for name, case in CASES.items():
            for num_runs in NUM_RUNS:
                shares = [f"{100 * coverage(case, num_runs, measure, method):.1f}" for method in METHODS]
                print(f"| {name} | {num_runs} | {' | '.join(shares)} |")
                sys.stdout.flush()


if __name__ == "__main__":
    secure()
    main()
