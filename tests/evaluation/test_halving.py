"""Successive halving on worlds with a known truth: it finds the best, spends what it reports, and stays within the
budget.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.evaluation.tuning import successive_halving


class World:
    """Candidate c scores ``truth[c]`` on average; instances differ from one another far more than candidates do."""

    def __init__(self, truth: Sequence[float], num_instances: int, noise: float = 1.0, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        instance = 30 * torch.randn(num_instances, generator=generator)
        both = noise * torch.randn(len(truth), num_instances, generator=generator)
        self.scores = (torch.tensor(truth)[:, None] + instance + both).tolist()
        self.calls: list[list[tuple[int, int]]] = []

    def __call__(self, pairs: Sequence[tuple[int, int]]) -> list[float]:
        self.calls.append(list(pairs))
        return [self.scores[candidate][number] for candidate, number in pairs]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return [pair for call in self.calls for pair in call]


@pytest.mark.parametrize("seed", range(5))
def test_it_finds_the_best_among_many_where_instances_differ_more_than_candidates(seed: int) -> None:
    """A budget of 8 instances per candidate; the winner leads by three times the noise of a single pair."""
    truth = [0.1 * (number % 10) for number in range(40)]
    truth[23] = 3.9
    world = World(truth, 60, seed=seed)
    found = successive_halving(range(40), 60, world, 320, {})
    assert found.best == 23
    assert found.spent == len(world.pairs) <= 320


def test_the_best_get_more_instances_and_all_that_are_compared_meet_the_same() -> None:
    world = World([float(number) for number in range(12)], 50, noise=0.1)
    found = successive_halving(range(12), 50, world, 120, {})
    met = [sorted(number for candidate, number in world.pairs if candidate == each) for each in range(12)]
    first, second, last = met[0], met[8], met[11]
    assert first == list(range(3)), "a third of the budget on all twelve"
    assert all(numbers == first for numbers in met[:8])
    assert second == met[9] == list(range(3 + 10)), "half of the rest on the best four"
    assert last == met[10] == list(range(found.num_instances))
    assert found.num_instances > 13
    assert found.ranking == (11, 10)
    mean = sum(world.scores[11][: found.num_instances]) / found.num_instances
    assert found.means[0] == pytest.approx(mean)


@given(
    truth=st.lists(st.floats(-5, 5), min_size=1, max_size=30),
    num_instances=st.integers(1, 20),
    budget=st.integers(1, 400),
    eta=st.integers(2, 4),
)
def test_the_budget_is_never_exceeded_and_no_pair_is_paid_for_twice(
    truth: list[float], num_instances: int, budget: int, eta: int
) -> None:
    world = World(truth, num_instances)
    scores: dict[tuple[int, int], float] = {}
    found = successive_halving(range(len(truth)), num_instances, world, budget, scores, eta=eta)
    assert len(set(world.pairs)) == len(world.pairs) == found.spent == len(scores) <= budget
    left = budget - found.spent
    assert found.num_instances == num_instances or left < len(found.ranking), "nothing is saved that could still tell"
    assert list(found.means) == sorted(found.means, reverse=True)


def test_what_is_known_costs_nothing_and_counts() -> None:
    world = World([0.0, 1.0], 10, noise=0.0)
    known = {(candidate, number): world.scores[candidate][number] for candidate in (0, 1) for number in range(4)}
    found = successive_halving([0, 1], 10, world, 6, known)
    assert world.pairs == [(candidate, number) for number in (4, 5, 6) for candidate in (0, 1)]
    assert (found.spent, found.num_instances, found.best) == (6, 7, 1)
    assert successive_halving([0, 1], 7, world, 0, known).spent == 0


def test_an_incumbent_is_not_lost_to_luck_on_a_few_instances() -> None:
    """Instances 0 and 1 speak against the first candidate, which is known to be the best on all twenty."""
    scores = {(0, number): 0.0 if number < 2 else 2.0 for number in range(20)}

    def evaluate(pairs: Sequence[tuple[int, int]]) -> list[float]:
        return [1.0] * len(pairs)

    assert successive_halving(range(12), 20, evaluate, 60, dict(scores)).best != 0
    assert successive_halving(range(12), 20, evaluate, 60, dict(scores), incumbent=True).best == 0


def test_ties_go_to_the_first() -> None:
    assert successive_halving("cab", 5, lambda pairs: [1.0] * len(pairs), 15, {}).ranking == ("c", "a", "b")


def test_a_budget_for_some_takes_the_first_candidates_and_one_for_none_is_refused() -> None:
    world = World([float(number) for number in range(9)], 5, noise=0.0)
    assert successive_halving(range(9), 5, world, 4, {}).best == 3
    with pytest.raises(ValueError, match="a budget of 0 pairs is too small for any of 9 candidates"):
        successive_halving(range(9), 5, world, 0, {})
