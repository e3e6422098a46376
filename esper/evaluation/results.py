"""What an evaluation found, as tables over run seeds and hosts, and the statistics of them.

Axis legend: R = run seeds (1 for a controller that has none), I = held-out instances.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.config.errors import RunError
from esper.envs.records import EpisodeRecord
from esper.evaluation.play import Outcome
from esper.growth.actions import OP_NAMES
from esper.runtime.rng import generator
from esper.telemetry.counters import OpCounts
from esper.telemetry.statistics import Interval, crossed_bootstrap, iqm, probability_of_improvement
from esper.views.choices_plot import Kept, KeptModule
from esper.views.evaluation import EvaluationRow

LEARNED = "learned"
"""The learned controller, taking its most probable actions."""

SAMPLED = "learned_sampled"
"""The same, sampling its actions."""

OF_RUNS = (LEARNED, SAMPLED, "static_final")
"""Controllers that every run seed has its own of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One controller on all held-out hosts.

    Attributes:
        name: the controller.
        outcomes: one per run seed, or one for all; each has the same instances in the same order.
    """

    name: str
    outcomes: tuple[Outcome, ...]

    def table(self, number: Callable[[EpisodeRecord], float]) -> Tensor:
        """A number of every episode, ``float64 [R, I]``."""
        return torch.tensor([[number(e) for e in outcome.episodes] for outcome in self.outcomes], dtype=torch.float64)

    def returns(self) -> Tensor:
        """Unscaled returns, ``float64 [R, I]``."""
        return self.table(lambda episode: episode.episode_return)

    def test_accuracy(self) -> Tensor:
        """Of the final networks, ``float64 [R, I]``, as a fraction of 1."""
        return self.table(_test_accuracy)

    def test_bits(self) -> Tensor | None:
        """Of the final networks, ``float64 [R, I]``, in bits per byte; ``None`` where the task is not text."""
        return self.table(_test_bits) if self.is_text else None

    def check_finite(self) -> None:
        """Refuse returns of which no mean or interval can be told.

        Raises:
            RunError: says how many there are, and of which host the first is.
        """
        episodes = [episode for outcome in self.outcomes for episode in outcome.episodes]
        broken = [episode for episode in episodes if not math.isfinite(episode.episode_return)]
        if broken:
            instance = broken[0].instance
            raise RunError(
                f"{len(broken)} of {len(episodes)} returns of {self.name!r} are not finite, so there is no mean or "
                f"interval; the first is of instance {instance.index}, family {instance.family} (hosts.csv has all)"
            )

    @property
    def is_text(self) -> bool:
        """Whether hosts read text."""
        return self.outcomes[0].episodes[0].test_bits is not None

    def families(self) -> list[str]:
        """Family of each of the I instances."""
        return [episode.instance.family for episode in self.outcomes[0].episodes]

    def kept(self) -> list[Kept]:
        """What was kept in every host, of all run seeds."""
        return [
            Kept(episode.instance.family, tuple(KeptModule(*module) for module in episode.kept))
            for outcome in self.outcomes
            for episode in outcome.episodes
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
    """Modules kept, as a share of those germinated; ``None`` if none was."""
    germinated = sum(episode.num_germinated for episode in episodes)
    return sum(episode.num_fossilized for episode in episodes) / germinated if germinated else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Intervals of one evaluation, each from its own stream: none depends on what else is asked for.

    Attributes:
        strata: family of each instance.
        draws: of each bootstrap.
        seed: RNG seed of the draws.
    """

    strata: Sequence[str]
    draws: int
    seed: int

    def interval(self, table: Tensor, *name: str) -> Interval:
        """Of the mean of ``float64 [R, I]``."""
        return crossed_bootstrap(table, self.strata, generator=self._stream(*name), draws=self.draws)

    def middle(self, table: Tensor, *name: str) -> Interval:
        """Of the interquartile mean of ``float64 [R, I]``."""
        return crossed_bootstrap(table, self.strata, generator=self._stream(*name), draws=self.draws, statistic=iqm)

    def improvement(self, a: Tensor, b: Tensor, *name: str) -> Interval:
        """Of the probability that ``a`` is above ``b``."""
        return probability_of_improvement(a, b, self.strata, generator=self._stream(*name), draws=self.draws)

    def row(self, standing: Standing, learned: Standing | None, never: Standing | None = None) -> EvaluationRow:
        """A controller's line, beside the learned one and, of text, never-grow, if they are there."""
        name, returns, test = standing.name, standing.returns(), standing.test_accuracy()
        ops = OpCounts.merged([outcome.ops for outcome in standing.outcomes]).choice_share()
        rival = None if learned is None or learned.name == name else learned
        return EvaluationRow(
            name=name,
            num_runs=len(standing.outcomes),
            num_hosts=returns.shape[1],
            episode_return=self.interval(returns, name, "return"),
            return_iqm=self.middle(returns, name, "iqm"),
            return_difference=None if rival is None else self.interval(rival.returns() - returns, name, "difference"),
            improvement=None if rival is None else self.improvement(rival.returns(), returns, name, "improvement"),
            val_accuracy=self.interval(standing.table(lambda episode: episode.val_accuracy), name, "val"),
            test_accuracy=self.interval(test, name, "test"),
            test_difference=None if rival is None else self.interval(rival.test_accuracy() - test, name, "test gain"),
            added_parameters=self.interval(standing.table(lambda episode: episode.added_parameters), name, "added"),
            flops_ratio=float(standing.table(lambda episode: episode.relative_flops).mean()),
            wall_seconds=sum(outcome.wall_seconds for outcome in standing.outcomes) / len(standing.outcomes),
            num_fossilized=float(standing.table(lambda episode: episode.num_fossilized).mean()),
            num_germinated=float(standing.table(lambda episode: episode.num_germinated).mean()),
            survival=survival([episode for outcome in standing.outcomes for episode in outcome.episodes]),
            op_share=None if ops is None else dict(zip(OP_NAMES, ops.tolist(), strict=True)),
            **self._bits(standing, rival, None if never is None or never.name == name else never),
        )

    def _bits(self, standing: Standing, learned: Standing | None, never: Standing | None) -> dict[str, Interval]:
        """What is said of text alone, by field of a row."""
        name, bits = standing.name, standing.test_bits()
        if bits is None:
            return {}
        found = {
            "val_bits": self.interval(standing.table(_val_bits), name, "val bits"),
            "test_bits": self.interval(bits, name, "test bits"),
        }
        if learned is not None:
            found["bits_difference"] = self.interval(learned.table(_test_bits) - bits, name, "bits difference")
        if never is not None:
            found["bits_over_never"] = self.interval(bits - never.table(_test_bits), name, "bits over never")
        return found

    def _stream(self, *name: str) -> torch.Generator:
        return generator("bootstrap", self.seed, *name)


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRow:
    """One controller on the hosts of one family.

    Attributes:
        controller, family: which.
        num_hosts: of that family.
        episode_return: mean, in points.
        test_accuracy: mean, as a fraction of 1.
        test_bits: mean, in bits per byte; ``None`` where the task is not text.
        survival: modules kept, as a share of those germinated; ``None`` if none was.
        kept: the commonest networks that hosts ended with (slot and blueprint, or nothing) and their shares.
    """

    controller: str
    family: str
    num_hosts: int
    episode_return: float
    test_accuracy: float
    test_bits: float | None
    survival: float | None
    kept: dict[str, float]


NUM_KEPT = 3
"""Networks that a family's row names."""


def family_rows(standing: Standing) -> list[FamilyRow]:
    """A controller's lines by family, in alphabetical order: a fixed plan is seen here at a glance."""
    rows = []
    episodes = [episode for outcome in standing.outcomes for episode in outcome.episodes]
    for family in sorted(set(standing.families())):
        own = [episode for episode in episodes if episode.instance.family == family]
        names = ["+".join(f"{slot}:{kind}" for slot, kind in episode.kept) or "nothing" for episode in own]
        counts = {name: names.count(name) for name in dict.fromkeys(names)}
        common = sorted(counts, key=lambda name: (-counts[name], name))[:NUM_KEPT]
        rows.append(
            FamilyRow(
                controller=standing.name,
                family=family,
                num_hosts=len(own) // len(standing.outcomes),
                episode_return=sum(episode.episode_return for episode in own) / len(own),
                test_accuracy=sum(map(_test_accuracy, own)) / len(own),
                test_bits=sum(map(_test_bits, own)) / len(own) if standing.is_text else None,
                survival=survival(own),
                kept={name: counts[name] / len(own) for name in common},
            )
        )
    return rows


def way_to_the_oracle(learned: Standing, best: Standing, oracle: Standing) -> float | None:
    """How far the learned controller is on the way from the best fixed schedule (0) to the oracle (1), in return.

    ``None`` where the two are less than two standard errors over hosts apart, or there is only one host: as far as can
    be told one plan serves all, and there is no way.
    """
    gaps = oracle.returns().mean(0) - best.returns().mean(0)
    if len(gaps) < 2:
        return None
    distance = float(gaps.mean())
    if distance <= 0 or distance <= 2 * float(gaps.std()) / len(gaps) ** 0.5:
        return None
    return float(learned.returns().mean() - best.returns().mean()) / distance
