"""Results of an evaluation as tables over run seeds and hosts, and their statistics.

Axis legend: R = run seeds (1 for a controller without run seeds), I = held-out instances.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from esper.config.errors import RunError
from esper.envs.records import EpisodeRecord
from esper.evaluation.play import Outcome
from esper.growth.actions import OP_NAMES
from esper.runtime.controller_names import LEARNED, NEVER
from esper.runtime.rng import generator
from esper.telemetry.counters import OpCounts
from esper.telemetry.results import Measure, ResultRow
from esper.telemetry.statistics import Interval, Mean, crossed_bootstrap, iqm, mean_sem, probability_of_improvement
from esper.views.choices import Kept, KeptModule


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerResult:
    """Results of one controller on all held-out hosts, over the run seeds of an evaluation.

    Attributes:
        name: name of the controller.
        outcomes: an outcome per run seed, or a single one for a controller without run seeds; each has the same
            instances in the same order.
    """

    name: str
    outcomes: tuple[Outcome, ...]

    def episodes(self) -> list[EpisodeRecord]:
        """Return all episodes, run seed by run seed."""
        return [episode for outcome in self.outcomes for episode in outcome.episodes]

    def table(self, number: Callable[[EpisodeRecord], float]) -> Tensor:
        """Compute a number from the record of every episode, ``float64 [R, I]``."""
        return torch.tensor([[number(e) for e in outcome.episodes] for outcome in self.outcomes], dtype=torch.float64)

    def returns(self) -> Tensor:
        """Return unscaled returns, ``float64 [R, I]``."""
        return self.table(lambda episode: episode.episode_return)

    def test_returns(self) -> Tensor | None:
        """Return returns on test images, ``float64 [R, I]``; ``None`` if the reward has none."""
        if any(episode.test_return is None for episode in self.episodes()):
            return None
        return self.table(lambda episode: float(episode.test_return or 0.0))

    def test_accuracy(self) -> Tensor:
        """Return test accuracy of the final networks, ``float64 [R, I]``, as a fraction of 1."""
        return self.table(_test_accuracy)

    def bits(self) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """Return val and test loss of the final networks in bits per byte, ``float64 [R, I]`` each; ``None`` unless the
        task is text.
        """
        return (self.table(_val_bits), self.table(_test_bits)) if self.is_text else (None, None)

    def check_finite(self) -> None:
        """Refuse returns that are not finite, because they have no mean or interval.

        Raises:
            RunError: a return is not finite; the message gives the number of these and the host of the first.
        """
        episodes = self.episodes()
        broken = [episode for episode in episodes if not math.isfinite(episode.episode_return)]
        if broken:
            instance = broken[0].instance
            raise RunError(
                f"{len(broken)} of {len(episodes)} returns of {self.name!r} are not finite, so there is no mean or "
                f"interval; the first is of instance {instance.index}, family {instance.family} (hosts.csv has all)"
            )

    @property
    def is_text(self) -> bool:
        """True if hosts read text."""
        return self.outcomes[0].episodes[0].test_bits is not None

    def families(self) -> list[str]:
        """Return the family of each of the I instances."""
        return [episode.instance.family for episode in self.outcomes[0].episodes]

    def by_host(self, values: Sequence[str]) -> list[str]:
        """Return the value of each of the I instances, from those of the pool in its order."""
        return [values[episode.instance.index] for episode in self.outcomes[0].episodes]

    def kept(self) -> list[Kept]:
        """Return the modules kept in every host, over all run seeds."""
        return [
            Kept(episode.instance.family, tuple(KeptModule(*module) for module in episode.kept))
            for episode in self.episodes()
        ]


def _test_accuracy(episode: EpisodeRecord) -> float:
    assert episode.test_accuracy is not None, "evaluations measure it"
    return episode.test_accuracy


def _val_bits(episode: EpisodeRecord) -> float:
    assert episode.val_bits is not None, "asked of text only"
    return episode.val_bits


def _test_bits(episode: EpisodeRecord) -> float:
    assert episode.test_bits is not None, "asked of text only"
    return episode.test_bits


def survival(episodes: Sequence[EpisodeRecord]) -> float | None:
    """Return modules kept, as a share of those germinated; ``None`` if there were none."""
    germinated = sum(episode.num_germinated for episode in episodes)
    return sum(episode.num_fossilized for episode in episodes) / germinated if germinated else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """Intervals of one evaluation, each with its own random stream, so that none depends on the others.

    Attributes:
        strata: stratum of each instance (:meth:`~esper.envs.instances.InstancePool.strata`).
        draws: number of draws of each bootstrap.
        seed: RNG seed of the draws.
    """

    strata: Sequence[str]
    draws: int
    seed: int

    def mean(self, table: Tensor, *name: str) -> Interval:
        """Return the interval of the mean of ``float64 [R, I]``."""
        return crossed_bootstrap(table, self.strata, generator=self._stream(*name), draws=self.draws)

    def middle(self, table: Tensor, *name: str) -> Interval:
        """Return the interval of the interquartile mean of ``float64 [R, I]``."""
        return crossed_bootstrap(table, self.strata, generator=self._stream(*name), draws=self.draws, statistic=iqm)

    def improvement(self, a: Tensor, b: Tensor, *name: str) -> Interval:
        """Return the interval of the probability that ``a`` is above ``b``."""
        return probability_of_improvement(a, b, self.strata, generator=self._stream(*name), draws=self.draws)

    def _stream(self, *name: str) -> torch.Generator:
        return generator("bootstrap", self.seed, *name)


def result_rows(results: Sequence[ControllerResult], bootstrap: Bootstrap | None = None) -> list[ResultRow]:
    """Make a row for each controller, compared with the learned one and, for text, with never-grow, if these were
    played.

    Args:
        results: results of one run seed or several, all on the same instances.
        bootstrap: source of the intervals; without it, numbers have their standard errors over hosts, for one run seed.
    """
    named = {result.name: result for result in results}
    return [_row(result, named.get(LEARNED), named.get(NEVER), bootstrap) for result in results]


def _row(
    result: ControllerResult,
    learned: ControllerResult | None,
    never: ControllerResult | None,
    bootstrap: Bootstrap | None,
) -> ResultRow:
    name, returns, test = result.name, result.returns(), result.test_accuracy()
    rival, never = (None if other is result else other for other in (learned, never))
    kept = result.table(lambda episode: episode.num_fossilized)
    val_bits, test_bits = result.bits()
    tested = result.test_returns()

    def measure(table: Tensor, what: str) -> Measure | None:
        return mean_sem(table.flatten()) if bootstrap is None else bootstrap.mean(table, name, what)

    def paired(a: Tensor | None, b: Tensor | None, what: str) -> Measure | None:
        return None if a is None or b is None else measure(a - b, what)

    better = None
    if bootstrap is not None and rival is not None:
        better = bootstrap.improvement(rival.returns(), returns, name, "improvement")
    ops = OpCounts.merged([outcome.ops for outcome in result.outcomes]).choice_share()
    return ResultRow(
        name=name,
        num_runs=len(result.outcomes),
        num_hosts=returns.shape[1],
        episode_return=measure(returns, "return"),
        return_iqm=None if bootstrap is None else bootstrap.middle(returns, name, "iqm"),
        return_difference=None if rival is None else measure(rival.returns() - returns, "difference"),
        improvement=better,
        test_return=None if tested is None else measure(tested, "test return"),
        val_accuracy=measure(result.table(lambda episode: episode.val_accuracy), "val"),
        test_accuracy=measure(test, "test"),
        test_difference=None if rival is None else measure(rival.test_accuracy() - test, "test gain"),
        added_parameters=measure(result.table(lambda episode: episode.added_parameters), "added"),
        flops_ratio=measure(result.table(lambda episode: episode.relative_flops), "flops"),
        wall_seconds=sum(outcome.wall_seconds for outcome in result.outcomes) / len(result.outcomes),
        num_fossilized=mean_sem(kept.flatten()) if bootstrap is None else float(kept.mean()),
        num_germinated=float(result.table(lambda episode: episode.num_germinated).mean()),
        survival=survival(result.episodes()),
        op_share=None if ops is None else dict(zip(OP_NAMES, ops.tolist(), strict=True)),
        val_bits=None if val_bits is None else measure(val_bits, "val bits"),
        test_bits=None if test_bits is None else measure(test_bits, "test bits"),
        bits_difference=None if rival is None else paired(rival.bits()[1], test_bits, "bits difference"),
        bits_over_never=None if never is None else paired(test_bits, never.bits()[1], "bits over never"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRow:
    """Results of one controller on the held-out hosts of one family.

    Attributes:
        controller, family: names of both.
        num_hosts: number of hosts of that family.
        episode_return: mean, in points.
        test_accuracy: mean, as a fraction of 1.
        test_bits: mean, in bits per byte; ``None`` unless the task is text.
        survival: modules kept, as a share of those germinated; ``None`` if there were none.
        kept: the most frequent final networks (slot and blueprint, or nothing) and their shares.
    """

    controller: str
    family: str
    num_hosts: int
    episode_return: float
    test_accuracy: float
    test_bits: float | None
    survival: float | None
    kept: dict[str, float]


def network(kept: Iterable[tuple[str, str]]) -> str:
    """Format kept modules as ``r0c0:norm+r0c1:attention``; empty if there are none."""
    return "+".join(f"{slot}:{blueprint}" for slot, blueprint in kept)


NUM_KEPT = 3
"""Number of networks listed in a family's row."""


def family_rows(result: ControllerResult) -> list[FamilyRow]:
    """Make a controller's rows by family, in alphabetical order, which show a fixed plan at a glance."""
    rows = []
    episodes = result.episodes()
    for family in sorted(set(result.families())):
        own = [episode for episode in episodes if episode.instance.family == family]
        names = [network(episode.kept) or "nothing" for episode in own]
        counts = {name: names.count(name) for name in dict.fromkeys(names)}
        common = sorted(counts, key=lambda name: (-counts[name], name))[:NUM_KEPT]
        rows.append(
            FamilyRow(
                controller=result.name,
                family=family,
                num_hosts=len(own) // len(result.outcomes),
                episode_return=sum(episode.episode_return for episode in own) / len(own),
                test_accuracy=sum(map(_test_accuracy, own)) / len(own),
                test_bits=sum(map(_test_bits, own)) / len(own) if result.is_text else None,
                survival=survival(own),
                kept={name: counts[name] / len(own) for name in common},
            )
        )
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RentRow:
    """Results of one controller on the hosts of one price.

    Attributes:
        controller: its name.
        rent_weight: points that doubling these hosts must earn.
        num_hosts: number of hosts of that price.
        episode_return: mean, in points; a single host has no interval.
        num_fossilized: mean number of modules kept.
    """

    controller: str
    rent_weight: float
    num_hosts: int
    episode_return: Measure
    num_fossilized: float


def rent_rows(result: ControllerResult, bootstrap: Bootstrap) -> list[RentRow]:
    """Make a controller's rows by price, in order; none if hosts have no prices of their own."""
    prices = [episode.instance.rent_weight for episode in result.outcomes[0].episodes]
    returns, kept = result.returns(), result.table(lambda episode: episode.num_fossilized)
    rows = []
    for price in sorted({price for price in prices if price is not None}):
        own = [number for number, other in enumerate(prices) if other == price]
        part = replace(bootstrap, strata=[bootstrap.strata[number] for number in own])
        paid = returns[:, own]
        alone = Mean(float(paid.mean()), None) if len(own) == 1 else None
        rows.append(
            RentRow(
                controller=result.name,
                rent_weight=price,
                num_hosts=len(own),
                episode_return=alone or part.mean(paid, result.name, f"rent {price:g}"),
                num_fossilized=float(kept[:, own].mean()),
            )
        )
    return rows


def normalized_return(learned: ControllerResult, baseline: ControllerResult, target: ControllerResult) -> float | None:
    """Return the mean return of the learned controller, scaled so that the baseline has 0 and the target 1.

    ``None`` if these two are less than two standard errors over hosts apart, or if there is only one host: then one
    plan may serve all, and there is no scale.
    """
    gaps = target.returns().mean(0) - baseline.returns().mean(0)
    gap = mean_sem(gaps)
    if gap is None or gap.sem is None or gap.mean <= 0 or gap.mean <= 2 * gap.sem:
        return None
    return float(learned.returns().mean() - baseline.returns().mean()) / gap.mean


def episode_record(episode: EpisodeRecord) -> dict[str, object]:
    """Convert one episode to plain values for files, with kept modules by slot and the host's own price, if any."""
    price = episode.instance.rent_weight
    names = (
        *("episode_return", "val_accuracy", "test_accuracy", "val_bits", "test_bits", "added_parameters"),
        *("test_return", "relative_flops", "num_germinated", "num_fossilized"),
    )
    return {
        "instance": episode.instance.index,
        "family": episode.instance.family,
        **({} if price is None else {"rent_weight": price}),
        **{name: getattr(episode, name) for name in names},
        "kept": dict(episode.kept),
        "crashed": episode.crashed,
    }


def logged_record(episode: EpisodeRecord) -> dict[str, object]:
    """Convert one episode to its record in the ``result.json`` of a training run."""
    record = episode_record(episode)
    return {"return": record.pop("episode_return"), **record, "shapley": dict(episode.shapley)}
