"""Shapley values distribute exactly the joint contribution, with no more passes than allowed."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations
from math import factorial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import esper.population.counterfactuals as counterfactuals
from esper.growth.actions import BlendAlgorithm
from esper.population import GrowthStage, Questions, valuate
from esper.population.plan import Rows
from esper.population.shapley import ShapleyPlan, choose_orders, needed_configurations, plan_shapley, shapley_values
from tests.population.growing import CNN_BLUEPRINTS, populate, stir
from tests.population.test_counterfactuals import samples, score, with_modules


def plan(num_modules: int, num_permutations: int, cap: int = 1000, seed: int = 0, slots: int = 0) -> ShapleyPlan:
    """One environment, modules in the first slots."""
    active = torch.arange(slots or num_modules)[None] < num_modules
    return plan_shapley(
        active,
        torch.tensor([True]),
        num_permutations=num_permutations,
        max_configurations=cap,
        stream=lambda env: torch.Generator().manual_seed(seed + env),
    )


def values_of(found: ShapleyPlan, worth: dict[int, float], num_slots: int) -> Tensor:
    """Return values when a set of modules, as a bit mask, is worth a given number of points."""
    everything = max(worth)
    points = torch.tensor([[worth[mask] for mask in found.configurations[0].tolist()]], dtype=torch.float64)
    return shapley_values(found, torch.tensor([worth[everything]], dtype=torch.float64), points, num_slots)[0]


def test_the_glove_game_worked_by_hand() -> None:
    """A left glove (slot 0) and two right ones make one pair: 2/3 for the left one, 1/6 for each right one."""
    worth = {mask: 100.0 * (mask & 1 and mask > 1) + 5.0 for mask in range(8)}
    values = values_of(plan(3, 6), worth, 3)
    assert values.tolist() == pytest.approx([200 / 3, 50 / 3, 50 / 3])
    assert values[1] == values[2], "modules that are alike are worth the same"


def test_a_module_that_changes_nothing_is_worth_nothing() -> None:
    worth = {mask: float((mask & 0b101) ** 2) for mask in range(8)}
    assert values_of(plan(3, 4, seed=3), worth, 3)[1] == 0.0


@given(st.integers(1, 5), st.integers(1, 40), st.integers(5, 40), st.integers(0, 10_000))
def test_values_sum_to_what_all_modules_bring_and_stay_under_the_cap(
    num_modules: int, count: int, cap: int, seed: int
) -> None:
    """Exactly, over however many orders were sampled."""
    stream = torch.Generator().manual_seed(seed)
    worth = dict(enumerate((100 * torch.rand(2**num_modules, generator=stream, dtype=torch.float64)).tolist()))
    found = plan(num_modules, count, cap, seed, slots=6)
    masks = [mask for mask in found.configurations[0].tolist() if mask >= 0]
    assert len(masks) == len(set(masks)) <= cap
    assert 2**num_modules - 1 not in masks, "the present state is known already"
    assert set(masks) == needed_configurations(found.orders[0]), "nothing is run that is not needed"
    values = values_of(found, worth, 6)
    assert values[:num_modules].sum().item() == pytest.approx(worth[2**num_modules - 1] - worth[0], abs=1e-9)
    assert values[num_modules:].isnan().all()


def test_all_orders_are_taken_when_they_fit_and_sampled_ones_otherwise() -> None:
    slots = [0, 2, 5]
    stream = torch.Generator().manual_seed(0)
    assert set(choose_orders(slots, 6, 7, stream)) == set(permutations(slots))
    assert len(choose_orders(slots, 5, 7, stream)) == 5
    for cap in (3, 4, 5, 6):
        sampled = choose_orders(slots, 6, cap, stream)
        assert 1 <= len(sampled) <= 6
        assert len(needed_configurations(sampled)) <= cap, "exact needs 7"
    assert choose_orders(slots, 6, 2, stream) == (), "one order of three modules needs three configurations"
    assert choose_orders([], 6, 7, stream) == ()
    many = choose_orders(range(4), factorial(4) - 1, 1000, stream)
    assert {order[0] for order in many} == set(range(4)), "sampled, not the first ones in order"


def test_the_stream_decides_the_orders() -> None:
    first, again, other = (plan(6, 5, seed=seed).orders for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_only_wanted_environments_are_measured() -> None:
    found = plan_shapley(
        torch.ones(2, 3, dtype=torch.bool),
        torch.tensor([False, True]),
        num_permutations=6,
        max_configurations=64,
        stream=lambda env: torch.Generator(),
    )
    assert found.orders[0] == ()
    assert (found.configurations[0] == -1).all()
    values = shapley_values(found, torch.zeros(2), torch.zeros(found.configurations.shape), 3)
    assert values[0].isnan().all()
    assert values[1].tolist() == [0.0] * 3


def test_three_modules_of_a_network_agree_with_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the engine, with solos and pairs beside them: each function evaluated once."""
    sites = [(0, slot, CNN_BLUEPRINTS[slot], algorithm) for slot, algorithm in enumerate(BlendAlgorithm)]
    population = populate("grouped", [0], sites, torch.float64)
    stir(population)
    alpha = torch.tensor([[0.4, 1.0, 0.7]], dtype=torch.float64)
    empty = torch.zeros(1, 3, dtype=torch.bool)
    data, yes = samples(1), torch.tensor([True])
    seen: list[tuple[int, ...]] = []
    build = counterfactuals.build_plan

    def spy(rows: Rows, *arguments, **options):  # type: ignore[no-untyped-def]
        seen.extend(tuple(row) for row in (rows.alpha > 0).int().tolist())
        return build(rows, *arguments, **options)

    monkeypatch.setattr(counterfactuals, "build_plan", spy)
    found = plan(3, 6)
    valuation = valuate(
        population,
        data,
        Questions(
            alpha=alpha,
            developing=empty,
            kept=empty,
            kept_wanted=yes,
            pairs_due=yes,
            configurations=found.configurations,
        ),
    )
    assert sorted(seen) == sorted(set(seen))
    assert len(seen) == 8
    values = shapley_values(found, valuation.scores.points, valuation.configurations, 3)[0]

    growth = GrowthStage(alpha=alpha, developing=empty, isolated=empty)

    def f(on: Iterable[int]) -> float:
        return score(population, 0, with_modules(alpha[0], on, growth, 0), data)

    for slot in range(3):
        others = [other for other in range(3) if other != slot]
        exact = (f([slot]) - f([])) / 3 + (f([0, 1, 2]) - f(others)) / 3
        exact += sum(f([other, slot]) - f([other]) for other in others) / 6
        assert values[slot].item() == pytest.approx(exact, abs=1e-9)
