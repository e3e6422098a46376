"""Intervals hold what they promise, and statistics are what their definitions say."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import stdtrit
from torch import Tensor

from esper.telemetry import statistics
from esper.telemetry.confidence import least_draws
from esper.telemetry.statistics import (
    Interval,
    Statistic,
    crossed_bootstrap,
    crossed_variance,
    influence,
    iqm,
    mean,
    probability_of_improvement,
    times_drawn,
)
from experiments.intervals.coverage import CASES, coverage

STRATA = tuple("abc"[index % 3] for index in range(12))


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_table(num_runs: int = 5, num_instances: int = 12, seed: int = 1) -> Tensor:
    return torch.randn(num_runs, num_instances, dtype=torch.float64, generator=stream(seed))


def interval(table: Tensor, strata: Sequence[str] = STRATA, draws: int = 2000, **options: object) -> Interval:
    return crossed_bootstrap(table, strata, draws=draws, **{"generator": stream()} | options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2, 3, 4], 2.5),
        ([1, 2, 3, 4, 5, 6, 7, 100], 4.5),
        ([7], 7.0),
        # Of 3 values, 0.75 are cut at either end: a quarter of each outer one and the whole middle one are left.
        ([0, 1, 8], (0.25 * 0 + 1 + 0.25 * 8) / 1.5),
        # Of 5 values, 1.25 are cut at either end.
        ([10, 0, 1, 2, 5], (0.75 * 1 + 2 + 0.75 * 5) / 2.5),
    ],
)
def test_iqm_is_the_mean_of_the_middle_half(values: list[float], expected: float) -> None:
    assert float(iqm(torch.tensor(values, dtype=torch.float64))) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=40)
@given(st.lists(st.integers(-50, 50), min_size=1, max_size=12), st.integers(0, 1000))
def test_a_weight_is_a_number_of_copies_and_order_does_not_matter(values: list[int], seed: int) -> None:
    numbers = torch.tensor(values, dtype=torch.float64)
    counts = torch.randint(0, 4, (len(values),), generator=stream(seed)) + (torch.arange(len(values)) == 0)
    shuffled = torch.randperm(int(counts.sum()), generator=stream(seed))
    copies = numbers.repeat_interleave(counts)[shuffled]
    for statistic in (mean, iqm):
        weighted = float(statistic(numbers, counts.to(torch.float64)))
        assert weighted == pytest.approx(float(statistic(copies)), abs=1e-9)
        assert weighted == pytest.approx(float(statistic(numbers, 3.0 * counts.to(torch.float64))), abs=1e-9)


@pytest.mark.parametrize("statistic", [mean, iqm])
@pytest.mark.parametrize("num_runs", [1, 5])
def test_constant_differences_have_an_interval_of_no_width(statistic: Statistic, num_runs: int) -> None:
    found = interval(torch.full((num_runs, 12), 0.3), statistic=statistic)
    assert found[:3] == pytest.approx([0.3] * 3, abs=1e-7)
    assert found.low == pytest.approx(found.high, abs=1e-12)


@pytest.mark.parametrize("statistic", [mean, iqm])
def test_only_the_generator_decides_on_the_draws(statistic: Statistic) -> None:
    table = random_table()
    first = interval(table, statistic=statistic, generator=stream(3))
    assert first == interval(table, statistic=statistic, generator=stream(3))
    assert first != interval(table, statistic=statistic, generator=stream(4))


def test_draws_do_not_depend_on_how_many_are_held_at_a_time_in_what_they_estimate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = random_table()
    whole = interval(table, draws=10_000)
    monkeypatch.setattr(statistics, "CHUNK_VALUES", 600)
    parts = interval(table, draws=10_000)
    assert parts == pytest.approx(whole, abs=0.03 * (whole.high - whole.low))


@pytest.mark.parametrize("statistic", [mean, iqm])
def test_the_order_of_run_seeds_and_instances_does_not_matter(statistic: Statistic) -> None:
    table = random_table()
    rows, columns = torch.randperm(5, generator=stream(5)), torch.randperm(12, generator=stream(6))
    before = interval(table, draws=10_000, statistic=statistic)
    after = interval(table[rows][:, columns], [STRATA[index] for index in columns], draws=10_000, statistic=statistic)
    assert after.estimate == pytest.approx(before.estimate, abs=1e-12)
    # What is left is the noise of 10,000 draws.
    assert after == pytest.approx(before, abs=0.03 * (before.high - before.low))


@pytest.mark.parametrize("statistic", [mean, iqm])
def test_shifting_and_scaling_the_differences_shifts_and_scales_the_interval(statistic: Statistic) -> None:
    table = random_table()
    plain, moved = interval(table, statistic=statistic), interval(5.0 + 2.0 * table, statistic=statistic)
    assert moved[:3] == pytest.approx([5.0 + 2.0 * end for end in plain[:3]])


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.sampled_from([-1e6, -1.0, 0.0, 0.0, 0.0, 1.0, 7.0, 1e6]), min_size=4, max_size=12),
    num_runs=st.integers(1, 2),
    level=st.sampled_from([0.5, 0.8, 0.95]),
    statistic=st.sampled_from([mean, iqm]),
    seed=st.integers(0, 1000),
)
def test_an_interval_contains_its_estimate_however_few_the_draws(
    values: list[float], num_runs: int, level: float, statistic: Statistic, seed: int
) -> None:
    table = torch.tensor(values, dtype=torch.float64)[: len(values) // 2 * 2].view(num_runs, -1)
    options = {"draws": least_draws(level), "level": level, "generator": stream(seed)}
    found = interval(table, ["one"] * table.shape[1], statistic=statistic, **options)
    assert found.low <= found.estimate <= found.high


def test_what_families_differ_by_is_not_uncertainty() -> None:
    table = random_table()
    shift = torch.tensor([{"a": 0.0, "b": 100.0, "c": -50.0}[name] for name in STRATA])
    plain, shifted = interval(table), interval(table + shift)
    assert shifted.high - shifted.low == pytest.approx(plain.high - plain.low)
    assert interval(table + shift, ["one"] * 12).high > shifted.high + 10


def test_one_run_seed_is_said_to_leave_out_the_variance_of_run_seeds() -> None:
    assert not interval(random_table(num_runs=1)).over_runs
    assert interval(random_table(num_runs=2)).over_runs


def test_run_seeds_that_agree_count_as_one_and_those_that_differ_widen() -> None:
    one = random_table(num_runs=1)
    alike = interval(one.expand(5, -1))
    apart = interval(one + torch.tensor([[-2.0], [-1.0], [0.0], [1.0], [2.0]]))
    alone = interval(one)
    assert alike.high - alike.low == pytest.approx(alone.high - alone.low, rel=0.05)
    assert apart.high - apart.low > 1.5 * (alone.high - alone.low)


def test_the_interval_of_normal_run_seeds_is_students() -> None:
    rows = torch.tensor([[-1.2], [-0.4], [0.1], [0.5], [1.0]], dtype=torch.float64)
    found = interval(rows.expand(-1, 12), draws=20_000)
    half = float(rows.std()) / 5**0.5 * float(stdtrit(4, 0.975))
    assert found.high - found.low == pytest.approx(2 * half, rel=0.05)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_a_higher_level_is_wider(level: float) -> None:
    table = random_table()
    inner, outer = interval(table, level=level - 0.2), interval(table, level=level)
    assert outer.low < inner.low < inner.high < outer.high


@pytest.mark.parametrize("statistic", [mean, iqm])
def test_influence_is_the_first_order_effect_of_weight(statistic: Statistic) -> None:
    table = random_table(num_runs=3, num_instances=11)
    found = influence(table, statistic).flatten()
    assert float(found.mean()) == pytest.approx(0.0, abs=1e-12)
    base = float(statistic(table.flatten(), torch.ones(33, dtype=torch.float64)))
    for index in range(33):
        weights = torch.ones(33, dtype=torch.float64)
        weights[index] += 1e-6
        slope = (float(statistic(table.flatten(), weights)) - base) / 1e-6
        assert float(found[index]) == pytest.approx(33 * slope, abs=1e-4)


@pytest.mark.parametrize(("runs", "instances", "cells"), [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (1.0, 2.0, 3.0)])
def test_the_variance_of_a_crossed_mean_is_unbiased(runs: float, instances: float, cells: float) -> None:
    source, groups = stream(), [torch.arange(0, 20), torch.arange(20, 60)]
    found = 0.0
    for _ in range(300):
        table = (
            5.0
            + runs * torch.randn(8, 1, dtype=torch.float64, generator=source)
            + instances * torch.randn(1, 60, dtype=torch.float64, generator=source)
            + cells * torch.randn(8, 60, dtype=torch.float64, generator=source)
        )
        found += crossed_variance(table, groups).value / 300
    assert found == pytest.approx(runs**2 / 8 + instances**2 / 60 + cells**2 / 480, rel=0.1)


def test_the_variance_is_no_less_than_what_rows_or_columns_show() -> None:
    table = random_table()
    table -= table.mean(0)
    assert crossed_variance(table, [torch.arange(12)]) == pytest.approx((float(table.mean(1).var()) / 5, 4))
    table -= table.mean(1, keepdim=True)
    assert crossed_variance(table, [torch.arange(12)]).value == pytest.approx(0.0, abs=1e-12)


def test_every_group_is_resampled_to_its_own_size() -> None:
    groups = [torch.tensor([0, 3, 4]), torch.tensor([1, 2])]
    counts = times_drawn(groups, 500, stream())
    for group in groups:
        assert (counts[:, group].sum(1) == len(group)).all()
        assert counts[:, group].mean(0).tolist() == pytest.approx([1.0] * len(group), abs=0.15)


def test_instances_alone_in_their_families_still_show_variance() -> None:
    table = random_table(num_runs=1)
    every = interval(table, [str(index) for index in range(12)])
    assert every == interval(table, ["all"] * 12)
    lone = interval(table, ["alone", *"a" * 4, *"b" * 7])
    assert lone == pytest.approx(interval(table, [*"a" * 5, *"b" * 7]), abs=0.1 * (lone.high - lone.low))


def test_probability_of_improvement_counts_ties_half_and_stays_in_its_range() -> None:
    a = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    found = probability_of_improvement(a, torch.tensor([[0.0, 2.0, 5.0, 1.0]]), ["f"] * 4, generator=stream())
    assert found.estimate == pytest.approx(0.625)
    assert 0.0 <= found.low < found.estimate < found.high <= 1.0
    same = probability_of_improvement(a, a, ["f"] * 4, generator=stream())
    assert same[:3] == (0.5, 0.5, 0.5)


def test_improvement_one_way_is_what_it_lacks_the_other_way() -> None:
    a, b = random_table(seed=1), random_table(num_runs=1, seed=2)
    there = probability_of_improvement(a, b, STRATA, generator=stream())
    back = probability_of_improvement(b.expand(5, -1), a, STRATA, generator=stream())
    assert back.estimate == pytest.approx(1.0 - there.estimate)
    assert (back.low, back.high) == pytest.approx((1.0 - there.high, 1.0 - there.low), abs=0.02)


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (torch.zeros(12), {}, r"got \[12\]"),
        (torch.zeros(5, 1), {"strata": "a"}, r"I >= 2, got \[5, 1\]"),
        (torch.zeros(5, 11), {}, "12 strata for 11 instances"),
        (torch.full((5, 12), torch.nan), {}, "60 of 60 numbers are not finite"),
        (torch.zeros(5, 12), {"draws": 0}, "draws must be at least 40 for a level of 0.95, got 0"),
        (torch.zeros(5, 12), {"draws": 1}, "draws must be at least 40 for a level of 0.95, got 1"),
        (torch.zeros(5, 12), {"draws": 199, "level": 0.99}, "draws must be at least 200 for a level of 0.99, got 199"),
        (torch.zeros(5, 12), {"level": 1.0}, r"in \(0, 1\), got 1.0"),
    ],
)
def test_what_has_no_interval_is_refused(table: Tensor, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        interval(table, **options)  # type: ignore[arg-type]


def test_tables_that_are_not_paired_are_refused() -> None:
    with pytest.raises(ValueError, match=r"got \[5, 12\] and \[4, 12\]"):
        probability_of_improvement(torch.zeros(5, 12), torch.zeros(4, 12), STRATA, generator=stream())


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["mean", "IQM"])
@pytest.mark.parametrize("num_runs", [5, 10])
@pytest.mark.parametrize("case", [name for name in CASES if name != "episodes alone"])
def test_95_per_cent_intervals_cover_the_truth_that_often(case: str, num_runs: int, measure: str) -> None:
    assert 0.92 <= coverage(CASES[case], num_runs, measure, "corrected", tables=500) <= 0.97


@pytest.mark.slow
def test_simpler_intervals_do_not() -> None:
    def share(case: str, method: str) -> float:
        return coverage(CASES[case], 5, "mean", method, tables=500)

    assert share("run seeds differ", "crossed percentiles") < 0.90
    assert share("run seeds differ", "pooled pairs") < 0.60
    assert share("instances differ", "run seeds alone") < 0.60
    assert share("both", "pooled pairs") < 0.90
    assert share("both", "run seeds alone") < 0.90
