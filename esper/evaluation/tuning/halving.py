"""Successive halving over candidates and instances: all candidates get a small budget, the best get more.

Jamieson and Talwalkar 2016 (Non-stochastic best arm identification), with instances as the resource: a candidate's
score is its mean over instances, and all candidates in a comparison have met the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

C = TypeVar("C", bound=Hashable)

Pair: TypeAlias = tuple[C, int]
"""A candidate, and the number of an instance."""

Evaluate: TypeAlias = Callable[[Sequence[Pair[C]]], Sequence[float]]
"""Function that returns the scores of pairs, in their order; higher is better."""

ETA = 3
"""Reduction factor: one in so many candidates remains from each rung to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Halving(Generic[C]):
    """Result of a search.

    Attributes:
        ranking: candidates of the last rung, best first; ties in the order of candidates.
        means: mean score of each, over the instances that all of them met.
        num_instances: number of these instances.
        spent: number of evaluated pairs.
    """

    ranking: tuple[C, ...]
    means: tuple[float, ...]
    num_instances: int
    spent: int

    @property
    def best(self) -> C:
        """Candidate with the highest mean."""
        return self.ranking[0]


def successive_halving(
    candidates: Sequence[C],
    num_instances: int,
    evaluate: Evaluate[C],
    budget: int,
    scores: dict[Pair[C], float],
    *,
    incumbent: bool = False,
    eta: int = ETA,
) -> Halving[C]:
    """Find the candidate with the highest mean.

    Each rung may spend an equal part of the remaining budget, on one instance after another for all remaining
    candidates; then the best ``1 / eta`` of them remain. The last rung spends the rest, as far as there are instances.

    Args:
        candidates: in order of preference; if the budget does not suffice for all to meet one instance, the last ones
            are dropped.
        num_instances: number of instances, taken in the order of their numbers.
        evaluate: called once per rung with all of its pairs.
        budget: largest number of pairs to evaluate.
        scores: known scores, which cost nothing; new ones are added.
        incumbent: keep the first candidate until the last rung, so that a known good one is not lost by bad luck on a
            few instances.
        eta: factor by which each rung reduces the number of candidates, at least 2.

    Raises:
        ValueError: there is no candidate, or the budget does not suffice for one pair.
    """
    alive = _affordable(list(dict.fromkeys(candidates)), budget, scores)
    first = alive[0]
    sizes = _rungs(len(alive), eta)
    spent = seen = 0
    for rung, size in enumerate(sizes):
        kept = alive[:size]
        alive = [*kept, first] if incumbent and first not in kept else kept
        allowed = (budget - spent) // (len(sizes) - rung)
        pairs: list[Pair[C]] = []
        while seen < num_instances:
            news = [(candidate, seen) for candidate in alive if (candidate, seen) not in scores]
            # The first instance is always evaluated: without a score nothing can be ranked.
            if len(pairs) + len(news) > (allowed if seen else budget):
                break
            pairs += news
            seen += 1
        if pairs:
            scores.update(zip(pairs, evaluate(pairs), strict=True))
            spent += len(pairs)
        means = {candidate: sum(scores[candidate, number] for number in range(seen)) / seen for candidate in alive}
        alive.sort(key=lambda candidate: -means[candidate])  # stable: ties stay in order
    return Halving(
        ranking=tuple(alive),
        means=tuple(means[candidate] for candidate in alive),
        num_instances=seen,
        spent=spent,
    )


def _affordable(candidates: list[C], budget: int, scores: dict[Pair[C], float]) -> list[C]:
    """Return the first candidates that can all meet the first instance."""
    kept: list[C] = []
    cost = 0
    for candidate in candidates:
        cost += (candidate, 0) not in scores
        if cost > budget:
            break
        kept.append(candidate)
    if not kept:
        raise ValueError(f"a budget of {budget} pairs is too small for any of {len(candidates)} candidates")
    return kept


def _rungs(count: int, eta: int) -> list[int]:
    """Return the number of candidates in each rung: the last one compares at most ``eta``."""
    sizes = [count]
    while sizes[-1] > eta:
        sizes.append(-(-sizes[-1] // eta))
    return sizes
