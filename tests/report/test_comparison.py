"""Paired comparison of configurations over run seeds and hosts that they share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from run_folders import config, result

from esper.report.comparison import Comparison, compare, verdict
from esper.report.figures import coloured, facets
from esper.report.folders import Run
from esper.report.grouping import Sweep, arrange
from esper.report.numbers import quantity

SCORE = quantity("held_out_return")


def run(coef: float, seed: int, returns: Sequence[float], **changes: object) -> Run:
    """A run whose held-out hosts 0, 1, … have these returns."""
    rows = [{"instance": host, "return": value} for host, value in enumerate(returns)]
    whole = config(seed, ppo__ent_coef=coef, **changes)
    content = result(sum(returns) / len(returns), episodes={"learned": rows})
    return Run(path=Path(f"{coef}-{seed}"), state="finished", config=whole, result=content)


def compared(*runs: Run) -> tuple[Comparison, Sweep]:
    sweep = arrange(runs)
    found = compare(sweep, SCORE, "mean")
    assert found is not None
    return found, sweep


def test_a_steady_lead_is_clear_although_seeds_differ_far_more() -> None:
    seeds = (0.0, 10.0, 20.0)
    runs = [run(coef, n, [base + coef, base + coef + 0.01 * n]) for coef in (0.5, 1.0) for n, base in enumerate(seeds)]
    found, sweep = compared(*runs)
    assert verdict(found, sweep) == "ent_coef=1: clearly better than the other"
    lead, own = found.leads
    assert own is None
    assert lead is not None
    assert lead.value == pytest.approx(0.5)
    assert lead.num_seeds == 3


def test_leads_that_change_sign_or_of_one_seed_are_not_clear() -> None:
    found, sweep = compared(run(0.5, 0, [1.0]), run(0.5, 1, [3.0]), run(1.0, 0, [2.5]), run(1.0, 1, [2.9]))
    assert verdict(found, sweep) == "ent_coef=1: not clearly better than any other"
    found, sweep = compared(run(0.5, 0, [1.0, 1.0]), run(1.0, 0, [9.0, 9.0]))
    assert verdict(found, sweep) == "ent_coef=1: not clearly better than any other"
    assert found.leads[0] is not None
    assert found.leads[0].low is None


def test_only_common_hosts_count_and_other_hosts_are_not_compared() -> None:
    more: dict[str, object] = {"instances__num_held_out": 3}
    few, many = [run(0.5, n, [1.0, 1.0]) for n in (0, 1)], [run(1.0, n, [2.0, 2.0, 80.0], **more) for n in (0, 1)]
    found, _ = compared(*few, *many)
    assert found.leads[0] is not None
    assert found.leads[0].value == pytest.approx(1.0)
    elsewhere = [run(1.0, n, [2.0, 2.0], task__name="digits_deep") for n in (0, 1)]
    found, sweep = compared(*few, *elsewhere)
    assert found.leads == (None, None)
    assert verdict(found, sweep).endswith("not compared with 1 without a common run seed or hosts")


def test_intervals_are_wider_with_more_comparisons() -> None:
    runs = [run(coef, n, [coef * (1 + n)]) for coef in (0.1, 0.2, 0.5, 1.0) for n in range(3)]
    two, _ = compared(*runs[6:])
    four, _ = compared(*runs)
    narrow, wide = two.leads[0], four.leads[2]
    assert narrow is not None
    assert wide is not None
    assert narrow.value == wide.value
    assert narrow.low is not None
    assert wide.low is not None
    assert wide.low < narrow.low


def test_one_configuration_has_nothing_to_be_compared_with() -> None:
    assert compare(arrange([run(0.5, 0, [1.0])]), SCORE, "mean") is None


def test_facets_are_of_the_key_of_fewest_values_and_lines_of_the_others() -> None:
    runs = [run(coef, 0, [1.0], ppo__lr=lr) for coef in (0.1, 0.2, 0.5) for lr in (0.001, 0.002)]
    parts = facets(arrange(runs))
    assert [part.title for part in parts] == ["lr=0.001", "lr=0.002"]
    assert [[label for _, label in part.lines] for part in parts] == [
        ["ent_coef=0.1", "ent_coef=0.2", "ent_coef=0.5"]
    ] * 2
    assert len(coloured(arrange(runs), SCORE, "mean")) == 6  # three colours are enough
    many = [run(coef / 100, 0, [coef]) for coef in range(1, 11)]
    assert len(coloured(arrange(many), SCORE, "mean")) == 8
    (whole,) = facets(arrange(runs[::2]))
    assert [label for _, label in whole.lines] == ["ent_coef=0.1", "ent_coef=0.2", "ent_coef=0.5"]
