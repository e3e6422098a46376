"""Measure what there is to win: ``python -m experiments.digits_mixed.landscape``, from the repository's root.

Train every network that can be built whole from one blueprint or none in each slot on validation hosts of
``digits_mixed``, and random ones on its training hosts, and write the tables of README.md: what the best plan for all
hosts, rules and bandits earn, and how much the best plan of each host would.

Axis legend: N = hosts, P = plans, R = prices.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from esper.config import compose
from esper.envs.instances import Instance
from esper.experiment.build import Experiment, build_experiment
from esper.population.probes import PROBE_NAMES
from esper.runtime.devices import keep_freed_memory
from esper.runtime.rng import generator
from esper.runtime.terminal import secure
from experiments.digits_mixed.returns import MARKS, Networks, Pair, Plan
from experiments.digits_mixed.rivals import (
    Array,
    Episodes,
    Landscape,
    Trials,
    all_plans,
    best_rule,
    few_plans,
    fixed_plan,
    plan_per_price,
    predicted_gains,
    rules,
    shrunk,
    told,
    tried,
)
from experiments.tables import between_markers

HERE = Path(__file__).parent
FOUND = Path("outputs/digits_mixed/networks.jsonl")
HEIGHT = 96
CEILING = "likely best plan of each host, trained again"
RUNS = (0, 1)
"""Trainings of every plan, by whose mean plans are chosen and rivals judged."""

GRADIENTS = PROBE_NAMES.index("log_gradient_norm")
VIEWS = (
    ("", 0, 0),
    (", from gradients only", GRADIENTS, 0),
    (f", with the host's first {MARKS[1]} epochs", 0, 2),
    (f", from gradients and the host's first {MARKS[1]} epochs", GRADIENTS, 2),
)
"""Name of what a rival sees, its first slot probe, and after how many of ``MARKS`` it sees the host alone."""

SEARCHES: tuple[tuple[str, int, tuple[int, ...]], ...] = (
    ("three plans, 13 epochs each, the best kept", 3, (13,)),
    ("four plans, halved after 5 and 10 epochs", 4, (5, 10, 20)),
)
"""Name, number of the bandit's favourite plans, and epochs after which the worse half, or all but one, are dropped."""

JUDGE = 2
"""Training of the plans that the first ones chose, which alone judges them."""


class Study:
    """The hosts, plans and networks of the study.

    Args:
        found: file of measured networks.
        prices: R, those to judge at; without any, those of the preset.
        words: changes of the preset.
        trainer: trains and measures networks.
        height: networks trained side by side.
    """

    def __init__(
        self,
        found: Path,
        prices: Sequence[float] = (),
        words: Sequence[str] = (),
        trainer: Callable[[Experiment, Path, int], Networks] = Networks,
        height: int = HEIGHT,
    ) -> None:
        self.experiment: Experiment = build_experiment(compose("+preset=digits_mixed", "env.mapping=grouped", *words))
        config = self.experiment.config
        assert config.slots.blueprints is not None, "the preset names them"
        assert config.reward.rent_weights is not None, "the preset names them"
        self.blueprints, self.prices = tuple(config.slots.blueprints), np.array(prices or config.reward.rent_weights)
        self.plans = few_plans(self.blueprints, len(self.experiment.slot_ids))
        self.networks = trainer(self.experiment, found, height)

    def hosts(self, split: str, count: int) -> tuple[Instance, ...]:
        """Return the first hosts of a split."""
        return self.experiment.pool(split, count).instances

    def landscape(self, hosts: Sequence[Instance]) -> tuple[Landscape, Trials]:
        """Train every plan on some hosts in each of :data:`RUNS`, and return their means, and what each run showed."""
        pairs = [Pair(plan=plan, instance=host, run=run) for run in RUNS for host in hosts for plan in self.plans]
        scores = self.networks.scores(pairs)
        shape = len(RUNS), len(hosts), len(self.plans)
        points = np.array([(*score.early, score.points) for score in scores]).reshape(*shape, -1)
        shares = np.array([score.share for score in scores]).reshape(shape)[0]
        bare = self.plans.index(self._bare)
        trials = Trials(points - self._alone(hosts)[:, None, None], points - points[:, :, [bare]])
        trials.over_end[:, :, bare, -1] = 0.0
        joins = np.unique([host.family for host in hosts], return_inverse=True)[1]
        return Landscape(trials.gains.mean(0), shares, self.prices, self._probes(hosts), joins), trials

    def episodes(self, count: int) -> Episodes:
        """Train ``count`` random ones of all plans, on each training host about equally often."""
        plans = all_plans(self.blueprints, len(self.experiment.slot_ids))
        hosts = self.hosts("train", self.experiment.config.instances.num_train)
        streams = [generator("bandit", lap) for lap in range(-(-count // len(hosts)))]
        rows = torch.cat([torch.randperm(len(hosts), generator=stream) for stream in streams])[:count].numpy()
        some = [torch.randint(len(plans), (len(hosts),), generator=stream) for stream in streams]
        chosen = [plans[number] for number in torch.cat(some)[:count].tolist()]
        gains, _ = self.networks.gains(
            [Pair(plan=plan, instance=hosts[row]) for row, plan in zip(rows, chosen, strict=True)]
        )
        return Episodes(rows, self._probes(hosts)[rows], chosen, gains.numpy())

    def again(self, hosts: Sequence[Instance], chosen: NDArray[np.int64]) -> Array:
        """Train plans ``chosen: [N, R]`` once more, and return their gains, ``[N, R]``."""
        plans = [(host, self.plans[plan]) for host, row in zip(hosts, chosen.tolist(), strict=True) for plan in row]
        scores = self.networks.scores([Pair(plan=plan, instance=host, run=JUDGE) for host, plan in plans])
        gains = np.array([score.points for score in scores]).reshape(chosen.shape) - self._alone(hosts)[:, None]
        return np.where(chosen == self.plans.index(self._bare), 0.0, gains)

    def curves(self, hosts: Sequence[Instance]) -> Array:
        """Return the points of hosts without modules after each of ``MARKS``, in the first run, ``[N, M]``."""
        return np.array([s.early for s in self.networks.scores([Pair(plan=self._bare, instance=h) for h in hosts])])

    @property
    def _bare(self) -> Plan:
        return (None,) * len(self.experiment.slot_ids)

    def _alone(self, hosts: Sequence[Instance]) -> Array:
        """Return the points of each host without modules, on average over all runs, ``[N]``."""
        pairs = [Pair(plan=self._bare, instance=host, run=run) for host in hosts for run in (*RUNS, JUDGE)]
        points: Array = np.array([s.points for s in self.networks.scores(pairs)]).reshape(len(hosts), -1).mean(1)
        return points

    def _probes(self, hosts: Sequence[Instance]) -> Array:
        probes = self.networks.probes(hosts).numpy()
        return probes.reshape(len(hosts), len(self.experiment.slot_ids), -1)


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of some hosts.

    Attributes:
        hosts: N.
        world, trials: returns of every plan, see :meth:`Study.landscape`.
        known: networks of training hosts, for bandits.
        guess: gains that the bandit ``mlp`` predicts, ``[N, P]``.
        noise: variance of a gain from training to training.
    """

    hosts: Sequence[Instance]
    world: Landscape
    trials: Trials
    known: Episodes
    guess: Array
    noise: float

    @classmethod
    def of(cls, study: Study, hosts: Sequence[Instance], episodes: int) -> Measured:
        """Measure whatever is missing."""
        (world, trials), known = study.landscape(hosts), study.episodes(episodes)
        guess = predicted_gains("mlp", known, world, study.plans, study.blueprints)
        return cls(hosts, world, trials, known, guess, float((trials.gains[0] - trials.gains[1]).var() / 2))

    def facts(self, study: Study, split: str) -> str:
        """Say how many hosts and networks there are."""
        joins, count = len({host.family for host in self.hosts}), len(self.hosts)
        known = len(self.known.plans) + count * 5 // 6 * len(study.plans) * len(RUNS)
        return (
            f"{count} {split.replace('_', '-')} hosts of {joins} joins, {len(study.plans)} plans, each network trained "
            f"twice; bandits learned from {len(self.known.plans)} random networks of training hosts and those of the "
            f"other folds, {known * study.experiment.config.env.num_epochs:,} epochs of a host. Another training of "
            f"the same network moves its gain by {self.noise**0.5:.1f} points (standard deviation)."
        )


def without_looking(measured: Measured) -> dict[str, Array]:
    """Return what rivals earn that see at most the price, ``[N, R]``."""
    world = measured.world
    return {
        "never": np.zeros((len(measured.hosts), len(world.prices))),
        "one plan for all": fixed_plan(world),
        "one plan for each price": plan_per_price(world),
    }


def looking(study: Study, measured: Measured) -> dict[str, Array]:
    """Return what rivals earn that see a part of the probes, and the host's first epochs, ``[N, R]``."""
    world, known = measured.world, measured.known
    own = study.curves(measured.hosts)
    others = study.curves(study.hosts("train", study.experiment.config.instances.num_train))
    found = {}
    for name, first, marks in VIEWS:
        views = (
            replace(world, probes=seen(world.probes[..., first:], own[:, :marks])),
            replace(known, probes=seen(known.probes[..., first:], others[known.hosts, :marks])),
        )
        found |= {rival + name: earned for rival, earned in readers(study, *views).items()}
    return found


def searching(measured: Measured) -> dict[str, Array]:
    """Return what searches earn on each host, ``[N, R]``."""
    world, trials, found = measured.world, measured.trials, {}
    order = (-replace(world, gains=measured.guess).returns).argsort(2)
    for name, count, epochs in SEARCHES:
        numbers = [MARKS.index(epoch) for epoch in epochs]
        found[name] = tried(world, trials, order[..., :count], numbers)
        found[f"{name}, if trials cost nothing"] = tried(world, trials, order[..., :count], numbers, whole=True)
    return found


def ceilings(study: Study, measured: Measured) -> dict[str, Array]:
    """Return what the best plans of each host earn, ``[N, R]``: the likely best trained again, and as measured."""
    world = measured.world
    likely = world.best(shrunk(world.gains, measured.guess, measured.noise / len(RUNS)))
    trained_again = study.again(measured.hosts, likely)
    return {
        CEILING: world.of(likely) - np.take_along_axis(world.gains, likely, axis=1) + trained_again,
        "best plan of each host, as measured": world.returns.max(2),
    }


def trial_table(trials: Trials, guess: Array, curves: Array) -> str:
    """Format how much of what the bandit ``guess`` does not predict shows after each mark."""
    lines = [f"| epochs | {' | '.join(map(str, MARKS))} |", "|" + "---|" * (len(MARKS) + 1)]
    shares = zip(*(told(trials, guess, curves, mark) for mark in range(len(MARKS))), strict=True)
    for name, row in zip(("the host alone", "and the network's lead over it"), shares, strict=True):
        lines.append(f"| {name} | {' | '.join(f'{share:.0%}' for share in row)} |")
    return "\n".join(lines)


def seen(probes: Array, curves: Array) -> Array:
    """Add each host's curve ``[n, M]`` to the probes ``[n, S, F]`` of all of its slots."""
    return np.concatenate([probes, np.repeat(curves[:, None], probes.shape[1], axis=1)], axis=2)


def readers(study: Study, world: Landscape, known: Episodes) -> dict[str, Array]:
    """Return what rivals earn that read the slot probes, ``[N, R]``."""
    acts = rules(study.plans, world.probes, study.blueprints)
    found = {"a rule on one probe for each price": best_rule(world, acts)}
    for kind in ("ridge", "mlp", "forest"):
        gains = predicted_gains(kind, known, world, study.plans, study.blueprints)
        found[f"supervised bandit, {kind}"] = world.of(world.best(gains))
    return found


def table(found: dict[str, Array], prices: Array) -> str:
    """Format what the rivals earn at each price, and how far each is below the best plans trained again."""
    top = found[CEILING]
    lines = [
        f"| rival | all prices | {' | '.join(f'rent {price:g}' for price in prices)} | below the ceiling |",
        "|" + "---|" * (len(prices) + 3),
    ]
    for name, earned in found.items():
        gaps = (top - earned).mean(1)
        error = gaps.std(ddof=1) / len(gaps) ** 0.5
        means = " | ".join(f"{mean:+.1f}" for mean in earned.mean(0))
        below = "" if earned is top else f"{gaps.mean():+.1f} ± {error:.1f}"
        lines.append(f"| {name} | {earned.mean():+.1f} | {means} | {below} |")
    return "\n".join(lines)


def main() -> None:
    """Measure whatever is missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=40, help="hosts to judge on, the split's first")
    parser.add_argument("--split", choices=("validation", "held_out"), default="validation")
    parser.add_argument("--episodes", type=int, default=300, help="random plans on training hosts for the bandits")
    parser.add_argument("--prices", type=float, nargs="+", default=(), help="other prices than those of the preset")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    study = Study(FOUND, options.prices)
    measured = Measured.of(study, study.hosts(options.split, options.hosts), options.episodes)
    found = without_looking(measured) | looking(study, measured) | searching(measured) | ceilings(study, measured)
    parts = {
        "rivals": table(found, study.prices),
        "trials": trial_table(measured.trials, measured.guess, study.curves(measured.hosts)),
        "facts": measured.facts(study, options.split),
    }
    page = HERE / "README.md"
    text = page.read_text()
    for name, content in parts.items():
        text = between_markers(text, name, content)
    page.write_text(text)


if __name__ == "__main__":
    secure()
    main()
