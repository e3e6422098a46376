"""Statistics over run seeds: intervals only from several seeds, and no invented values for missing ones."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from run_folders import metrics, result
from scipy import stats

from esper.report.folders import Run
from esper.report.numbers import (
    Estimate,
    curve,
    estimate,
    flops_ratio,
    quantity,
    tail_mean,
    training_return,
    wall_seconds,
)
from esper.telemetry.statistics import iqm

KEY = "charts/episodic_return"


def run(*gains: float | None) -> Run:
    return Run(path=Path("run"), state="finished", metrics=[metrics(n, gain) for n, gain in enumerate(gains, start=1)])


def test_the_mean_has_students_interval() -> None:
    # Mean 4, s = 2, n = 3: 4 ± 4.3027 * 2 / sqrt(3).
    found = estimate([2.0, 4.0, 6.0], "mean")
    assert found is not None
    assert (found.value, found.num_seeds) == (4.0, 3)
    low, high = stats.t.interval(0.95, 2, loc=4.0, scale=2 / math.sqrt(3))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_the_interquartile_mean_drops_the_ends_and_its_interval_holds_it() -> None:
    values = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 700.0]
    found = estimate(values, "iqm")
    assert found is not None
    assert found.value == pytest.approx(3.5) == pytest.approx(float(iqm(torch.tensor(values))))
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high
    assert estimate(values, "iqm") == found  # the same report twice


@pytest.mark.parametrize("statistic", ["mean", "iqm"])
def test_one_seed_has_no_interval_and_none_has_nothing(statistic: str) -> None:
    assert estimate([3.0], statistic) == (3.0, None, None, 1)
    assert estimate([None, 3.0, None], statistic) == (3.0, None, None, 1)
    assert estimate([None], statistic) is None
    assert estimate([], statistic) is None
    equal = estimate([2.0, 2.0], statistic)
    assert equal == (2.0, 2.0, 2.0, 2)


def test_an_interval_of_an_accuracy_that_is_clipped_shows_its_ends() -> None:
    accuracy = quantity("test_accuracy")
    assert accuracy.show_interval(Estimate(0.5, 0.4, 0.6, 2), "mean") == "± 10.0"
    assert accuracy.show_interval(Estimate(0.2, -0.1, 0.5, 2), "mean") == "[0.0, 50.0]"
    assert accuracy.difference.show_interval(Estimate(0.2, -0.1, 0.5, 2), "mean") == "± 30.0"
    assert quantity("held_out_return").ends(Estimate(0.2, -1.0, 1.4, 2)) == (-1.0, 1.4)


def test_a_curve_counts_the_runs_that_got_there() -> None:
    found = curve([run(1.0, 2.0, None), run(3.0)], KEY, "iteration", "mean")
    assert found.x.tolist() == [1, 2, 3]
    assert found.count.tolist() == [2, 1, 0]
    assert found.value[:2].tolist() == [2.0, 2.0]
    assert np.isnan(found.value[2])
    assert found.low[0] < 2.0 < found.high[0]
    assert np.isnan([*found.low[1:], *found.high[1:]]).all()  # one run tells no spread


def test_a_curve_over_env_epochs_and_a_long_one_by_its_middle_half() -> None:
    runs = [run(*(float(seed) for _ in range(500))) for seed in (0, 1, 2, 30)]
    found = curve(runs, KEY, "charts/env_epochs", "iqm")
    assert found.x[0] == 20.0
    assert found.x[-1] == 10_000.0
    assert 50 < len(found.x) <= 100
    assert found.value == pytest.approx(1.5)


def test_numbers_of_a_run() -> None:
    longer = run(*range(1, 21))
    assert training_return(longer) == 19.5  # the last two of twenty
    assert training_return(run(1.0, 2.0, 3.0)) == 3.0
    assert training_return(run(1.0, None)) is None
    assert training_return(run()) is None
    assert tail_mean([run(1.0, 5.0), run(7.0), run()], KEY) == 6.0
    assert wall_seconds(run(1.0, 1.0)) == 6.0  # rollouts and updates so far
    longer.result = result()
    assert wall_seconds(longer) == 12.0
    assert flops_ratio(longer) == 2.0
    assert flops_ratio(run()) is None
    assert quantity("env_epochs").of(longer) == 400.0
