"""Search for the parameters of each control, within a budget of environment epochs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from esper.config import to_plain
from esper.config.identity import fingerprint
from esper.controllers import (
    Choices,
    Controller,
    GrowthPlan,
    Number,
    Schedule,
    Space,
    Static,
    Tuning,
    everywhere,
    tunables,
)
from esper.envs.records import EpisodeRecord
from esper.envs.twins import TwinCache
from esper.evaluation.tuning.arena import Arena, arranged
from esper.evaluation.tuning.candidates import drawn, extended, neighbours, postponed
from esper.evaluation.tuning.halving import C, Evaluate, Halving, Pair, successive_halving
from esper.experiment.build import Experiment
from esper.runtime.rng import generator

Progress = Callable[[str, int, int], None]

RUNGS = 3
"""Number of rungs for which the number of candidates is chosen, so that each should meet every family once in the
first.
"""


def tune(
    experiment: Experiment,
    twins: TwinCache | None,
    *,
    budget: int,
    seed: int = 0,
    controls: Collection[str] | None = None,
    progress: Progress = lambda name, done, total: None,
) -> Tuning:
    """Tune controls on the training instances, each with the same budget; all ranks together, with one result.

    Args:
        experiment: experiment, whose training instances are those of the learned controller.
        twins: twins for stacks of a rank's share of ``trainer.num_envs``; ``None`` if the reward uses no twins.
        budget: environment epochs for each control, never exceeded; only ``schedule_per_family`` goes
            beyond (see :class:`~esper.controllers.Tuning`).
        seed: seed of draws and of the order of instances.
        controls: names from :func:`~esper.controllers.tunables`; ``None`` for all.
        progress: called with (control, done, total) pairs of one batch.

    Raises:
        ValueError: unknown control, a budget below one episode, or ``probe_rule`` without slot probes.
    """
    wanted = _with_what_they_need(tunables() if controls is None else controls)
    pool = experiment.pool("train", experiment.config.instances.num_train)
    arena = Arena(experiment, twins, arranged(pool.instances, seed))
    if budget < arena.num_epochs:
        raise ValueError(f"a tuning budget of {budget} environment epochs is less than one episode, {arena.num_epochs}")
    search = Search(experiment, arena, budget // arena.num_epochs, seed, progress)
    for name in wanted:
        search.tune(name)
    return Tuning(
        budget=budget,
        seed=seed,
        experiment=fingerprint(to_plain(experiment.config)),
        slot_ids=experiment.slot_ids,
        spent={name: pairs * arena.num_epochs for name, pairs in search.spent.items()},
        returns=search.means,
        found=search.found,
    )


def _with_what_they_need(controls: Collection[str]) -> list[str]:
    """List the controls and those that must be tuned before them, in the order of the registry.

    Raises:
        ValueError: unknown control.
    """
    known = tunables()
    unknown = sorted(set(controls) - set(known))
    if unknown:
        raise ValueError(f"no control to tune: {', '.join(unknown)}; choose from {', '.join(known)}")
    needed = {other for name in controls for other in known[name].after}
    return [name for name in known if name in needed or name in controls]


def episode_return(episode: EpisodeRecord) -> float:
    """Return of an episode, in points."""
    return episode.episode_return


@dataclass(slots=True)
class Search:
    """Search for the parameters of one control after the other.

    Attributes:
        experiment, arena: experiment and player of the candidates.
        budget: pairs for each control.
        seed: seed of draws.
        progress: called with (control, done, total).
        found: parameters found so far, by control.
        spent: pairs by control.
        means: mean score of the chosen parameters by control.
    """

    experiment: Experiment
    arena: Arena
    budget: int
    seed: int
    progress: Progress
    found: dict[str, Any] = field(default_factory=dict)
    spent: dict[str, int] = field(default_factory=dict)
    means: dict[str, float] = field(default_factory=dict)
    _plans: dict[Pair[GrowthPlan], float] = field(default_factory=dict)

    @property
    def space(self) -> Space:
        """Slots of the experiment, and the modules that may grow there."""
        return self.experiment.space

    def tune(self, name: str) -> Any:
        """Find the parameters of a control."""
        self.found[name] = tunables()[name].search(self, name)
        return self.found[name]

    def rule(
        self,
        name: str,
        parameters: Callable[..., Any],
        choices: Choices,
        controller: Callable[[Sequence[Any]], Controller],
    ) -> Any:
        """Find the parameters of a rule-based controller: half of the budget on random ones, the rest around the
        best.

        Args:
            name: name of the controller.
            parameters: dataclass whose defaults are the first candidate, if they are among the choices.
            choices: values to try for each field.
            controller: function that returns the controller from one set of parameters per environment.
        """
        stream = generator("tuning", "candidates", self.seed, name)
        scores: dict[Pair[Any], float] = {}
        usual = asdict(parameters())
        start = [parameters(**usual)] if all(usual[name] in values for name, values in choices.items()) else []
        first = [*start, *drawn(parameters, choices, self._count(self.budget // 2), stream)]
        found = self._halve(name, controller, first, max(1, self.budget // 2), scores)
        rest = self.budget - found.spent
        around = neighbours(found.best, choices, self._count(rest), stream)
        return self._halve(name, controller, around, rest, scores, incumbent=True).best

    def schedule_best(self) -> GrowthPlan:
        """Find the best plan for all hosts: one module, more while they pay and may be kept, then a later start.

        Each step may spend half of the remaining budget, the last one all of it.
        """
        name, compatible = "schedule_best", self.space.compatible
        stream = generator("tuning", "candidates", self.seed, name)
        plan: GrowthPlan = ()
        ranking: Sequence[GrowthPlan] = (plan,)
        for _ in range(self.space.max_seeds):
            rest = self.budget - self.spent.get(name, 0)
            _, *more = extended(plan, compatible)
            # Shuffled, so that a budget too small for all does not cover only the first slots.
            order = torch.randperm(len(more), generator=stream).tolist()
            candidates = [plan, *(more[position] for position in order)]
            found = self._halve(name, Schedule, candidates, max(1, rest // 2), self._plans, incumbent=True)
            ranking = found.ranking
            if found.best == plan:
                break
            plan = found.best
        rest = self.budget - self.spent.get(name, 0)
        later = postponed([plan, *(other for other in ranking[:2] if other != plan)], self.arena.num_epochs)
        return self._halve(name, Schedule, later, rest, self._plans, incumbent=True).best

    def schedule_per_family(self, best: GrowthPlan) -> dict[str, GrowthPlan]:
        """Find the best plan of each family, by every candidate on every one of its instances: an upper bound without a
        budget.
        """
        name, compatible = "schedule_per_family", self.space.compatible
        members: dict[str, list[int]] = {}
        for number, instance in enumerate(self.arena.instances):
            members.setdefault(instance.family, []).append(number)
        plans: dict[str, GrowthPlan] = dict.fromkeys(sorted(members), ())
        for step in range(self.space.max_seeds):
            candidates = {
                family: extended(plan, compatible) if len(plan) < self.space.max_seeds else [plan]
                for family, plan in plans.items()
            }
            if step == 0:
                candidates = {family: [*own, best] for family, own in candidates.items()}
            pairs = [(plan, number) for family, own in candidates.items() for plan in own for number in members[family]]
            news = [pair for pair in dict.fromkeys(pairs) if pair not in self._plans]
            self._plans.update(zip(news, self._evaluate(name, Schedule)(news), strict=True))
            self.spent[name] = self.spent.get(name, 0) + len(news)
            for family, own in candidates.items():
                totals = [sum(self._plans[plan, number] for number in members[family]) for plan in own]
                plans[family] = own[totals.index(max(totals))]
        chosen = [self._plans[plans[each.family], number] for number, each in enumerate(self.arena.instances)]
        self.means[name] = sum(chosen) / len(chosen)
        return plans

    def static(self, name: str, number: Number) -> str:
        """Find the blueprint with the best number when it is in every slot from the start."""
        compatible = self.space.compatible

        def build(blueprints: Sequence[str]) -> Controller:
            return Static([everywhere(blueprint, compatible) for blueprint in blueprints], name)

        best: str = self._halve(name, build, self.space.blueprints, self.budget, {}, number=number).best
        return best

    def _count(self, budget: int) -> int:
        """Return the number of candidates to draw for a budget of pairs."""
        families = len({instance.family for instance in self.arena.instances})
        return max(2, budget // (RUNGS * families))

    def _halve(
        self,
        name: str,
        build: Callable[[Sequence[C]], Controller],
        candidates: Sequence[C],
        budget: int,
        scores: dict[Pair[C], float],
        incumbent: bool = False,
        number: Number = episode_return,
    ) -> Halving[C]:
        found = successive_halving(
            candidates,
            len(self.arena.instances),
            self._evaluate(name, build, number),
            budget,
            scores,
            incumbent=incumbent,
        )
        self.spent[name] = self.spent.get(name, 0) + found.spent
        self.means[name] = found.means[0]
        return found

    def _evaluate(
        self, name: str, build: Callable[[Sequence[C]], Controller], number: Number = episode_return
    ) -> Evaluate[C]:
        def evaluate(pairs: Sequence[Pair[C]]) -> list[float]:
            episodes = self.arena.episodes(build, pairs, lambda done, total: self.progress(name, done, total))
            return [number(episode) for episode in episodes]

        return evaluate
