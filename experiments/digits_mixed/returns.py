"""Returns of networks built whole: which blueprint, or none, stands in each slot from the first epoch on.

Every rival of this study is judged by :class:`Networks`, which trains many networks side by side and keeps what it has
measured in a file, so that an interrupted study resumes.

Axis legend: E = networks side by side, S = slots.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from esper.blueprints import blueprint_ids
from esper.config.identity import MAPPING, digest, experiment_sections, without
from esper.config.store import to_plain
from esper.envs.instances import Instance
from esper.experiment.build import Experiment
from esper.growth import Incubation
from esper.growth.actions import BlendAlgorithm
from esper.population import GrowthStage, Population, evaluate, probe_hosts, train_epoch
from esper.runtime.rng import generator

Plan: TypeAlias = tuple[str | None, ...]
"""Blueprint of each slot, ``None`` for an empty one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One network to train: a plan on a host; another ``run`` has other modules and another order of the same data."""

    plan: Plan
    instance: Instance
    run: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Points of score on val, also early, after each of :data:`MARKS`; accuracy on test in %; and added parameters as a
    share of the host's.
    """

    points: float
    early: tuple[float, ...]
    test: float
    share: float


class Networks:
    """Trainer of networks, with a file of what it has measured.

    Args:
        experiment: task, host and training.
        path: file of results, a line each; their keys do not depend on the commit.
        height: E, networks trained side by side.
    """

    sections: tuple[str, ...] = ("task", "host", "env")
    """Sections of the configuration that a network depends on."""

    def __init__(self, experiment: Experiment, path: Path, height: int) -> None:
        self._experiment, self._path = experiment, path
        self._population = experiment.population(height)
        plain = without(experiment_sections(to_plain(experiment.config)), NOT_OF_A_NETWORK)
        sections = {name: plain[name] for name in self.sections}
        self._world = digest(sections, str(plain["instances"]["alive_channels"]))
        lines = path.read_text().splitlines() if path.exists() else []
        records = [json.loads(line) for line in lines]
        self._known = {record.pop("key"): Score(**record | {"early": tuple(record["early"])}) for record in records}
        self.num_trained = 0

    def scores(self, pairs: Sequence[Pair]) -> list[Score]:
        """Return the score of each pair, measuring those that are missing."""
        keys = [self._key(pair) for pair in pairs]
        missing = [(key, pair) for key, pair in dict(zip(keys, pairs, strict=True)).items() if key not in self._known]
        # Networks alike side by side: a stack with a module for a few hosts only wastes little.
        missing.sort(key=lambda item: [str(blueprint) for blueprint in item[1].plan])
        height = self._population.num_envs
        self._path.parent.mkdir(parents=True, exist_ok=True)
        for begin in range(0, len(missing), height):
            some = missing[begin : begin + height]
            found = self._train([pair for _, pair in some])
            self.num_trained += len(some)
            with self._path.open("a") as file:
                for (key, _), score in zip(some, found, strict=True):
                    file.write(json.dumps({"key": key, **asdict(score)}) + "\n")
                    self._known[key] = score
        return [self._known[key] for key in keys]

    def gains(self, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
        """Return each pair's points over the same host without modules, and the share that it added, ``[n]`` each.

        The return of a pair is gain - rent x share, at any price.
        """
        bare = [replace(pair, plan=(None,) * len(pair.plan)) for pair in pairs]
        both = self.scores([*pairs, *bare])
        grown, alone = both[: len(pairs)], both[len(pairs) :]
        gains = [own.points - other.points for own, other in zip(grown, alone, strict=True)]
        return torch.tensor(gains, dtype=torch.float64), torch.tensor([s.share for s in grown], dtype=torch.float64)

    def probes(self, instances: Sequence[Instance]) -> Tensor:
        """Measure the slot probes of hosts of fresh hosts, as controllers see them, ``float64 [n, S x F]``."""
        loader, height, found = self._experiment.loader, self._population.num_envs, []
        for begin in range(0, len(instances), height):
            some = instances[begin : begin + height]
            rows = [some[row % len(some)] for row in range(height)]
            loader.place(self._population, range(height), rows)
            x, y = loader.first_batch(rows, [0] * height, self._population.device)
            found.append(probe_hosts(self._population, x, y).flatten(1)[: len(some)])
        return torch.cat(found).double()

    def _key(self, pair: Pair) -> str:
        host = without(asdict(pair.instance), ("index", "rent_weight", "arrival", "first_classes"))
        return digest(self._world, {"plan": list(pair.plan), "instance": host, "run": pair.run}, length=16)

    def _train(self, pairs: Sequence[Pair]) -> list[Score]:
        loader, population = self._experiment.loader, self._population
        training = loader.training
        pairs_now = [pairs[row % len(pairs)] for row in range(population.num_envs)]
        rows = [pair.instance for pair in pairs_now]
        loader.place(population, range(population.num_envs), rows)
        for env, pair in enumerate(pairs_now):
            self._plant(population, env, pair)
        grown = population.blueprint >= 0
        nothing = torch.zeros_like(grown)
        growth = GrowthStage(alpha=grown.double(), developing=nothing, isolated=nothing)
        samples, val, lr = loader.train(rows), loader.val(rows), loader.lr(rows)
        early = []
        for epoch in range(training.num_epochs):
            train_epoch(
                population,
                samples,
                loader.order(rows, [epoch + OTHER_RUN * pair.run for pair in pairs_now]),
                growth,
                incubation=Incubation.auxiliary,
                num_steps=training.steps_per_epoch,
                lr=lr,
                max_grad_norm=training.max_grad_norm,
            )
            if epoch + 1 in MARKS:
                early.append(evaluate(population, val, growth.alpha)[0].points)
        points, test = (evaluate(population, part, growth.alpha)[0] for part in (val, loader.test(rows)))
        share = population.num_parameters().sum(1).double() / population.num_host_parameters().double()
        return [
            Score(
                points=float(points.points[env]),
                early=tuple(float(mark[env]) for mark in early),
                test=100 * float(test.accuracy[env]),
                share=float(share[env]),
            )
            for env in range(len(pairs))
        ]

    def _plant(self, population: Population, env: int, pair: Pair) -> None:
        """Create the modules of a plan from the streams that the environment would use."""
        for birth, (slot, blueprint) in enumerate((s, b) for s, b in enumerate(pair.plan) if b is not None):
            stream = generator("module", pair.instance.host_seed, slot, birth + OTHER_RUN * pair.run)
            population.germinate(env, slot, blueprint_ids().index(blueprint), BlendAlgorithm.ADD, stream)


NOT_OF_A_NETWORK = (MAPPING, "task.root", "task.url", "task.verify")
"""Keys that change a network by rounding at most."""

MARKS = (3, 5, 10, 13, 20, 27)
"""Epochs after which points are kept besides those at the end."""

OTHER_RUN = 1000
"""Distance between the random streams of two runs of one pair: more than the epochs and modules of an episode."""
