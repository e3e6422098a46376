"""The search for each control, within its budget of environment epochs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from esper.blueprints import blueprint_ids
from esper.controllers import (
    TUNED,
    Controller,
    GrowthPlan,
    Heuristic,
    HeuristicParameters,
    ProbeAndKeep,
    ProbeAndKeepParameters,
    ProbeRule,
    ProbeRuleParameters,
    Schedule,
    Static,
    Tuning,
    everywhere,
)
from esper.envs.records import EpisodeRecord
from esper.envs.twins import TwinCache
from esper.evaluation.tuning.arena import Arena, arranged
from esper.evaluation.tuning.candidates import drawn, extended, neighbours, postponed, rule_choices
from esper.evaluation.tuning.fingerprint import fingerprint
from esper.evaluation.tuning.halving import C, Evaluate, Halving, Pair, successive_halving
from esper.experiment.build import Laboratory
from esper.runtime.rng import generator

Progress = Callable[[str, int, int], None]

Number = Callable[[EpisodeRecord], float]
"""What candidates are compared by; higher is better."""

RUNGS = 3
"""Rungs that the number of drawn candidates is chosen for: each should meet every family once in the first."""


def tune(
    laboratory: Laboratory,
    twins: TwinCache | None,
    *,
    budget: int,
    seed: int = 0,
    controls: Collection[str] = TUNED,
    progress: Progress = lambda name, done, total: None,
) -> Tuning:
    """Tune controls on the training instances, each with the same budget; all ranks together, with one result.

    Args:
        laboratory: its training instances are those of the learned controller.
        twins: of stacks as high as a rank's share of ``trainer.num_envs``, or ``None`` for none.
        budget: environment epochs for each control, never exceeded; only the oracle ``schedule_per_family`` goes
            beyond (see :class:`~esper.controllers.Tuning`).
        seed: of draws and of the order of instances.
        controls: names from :data:`~esper.controllers.TUNED`.
        progress: called with (control, done, total) pairs of one batch.

    Raises:
        ValueError: unknown control, a budget below one episode, or ``probe_rule`` without slot probes.
    """
    unknown = sorted(set(controls) - set(TUNED))
    if unknown:
        raise ValueError(f"no control to tune: {', '.join(unknown)}; choose from {', '.join(TUNED)}")
    pool = laboratory.pool("train", laboratory.config.instances.num_train)
    arena = Arena(laboratory, twins, arranged(pool.instances, seed))
    if budget < arena.num_epochs:
        raise ValueError(f"a tuning budget of {budget} environment epochs is less than one episode, {arena.num_epochs}")
    search = Search(laboratory, arena, budget // arena.num_epochs, seed, progress)
    found: dict[str, Any] = {}
    for name in ("heuristic", "probe_rule", "probe_and_keep"):
        if name in controls:
            found[name] = search.rule(name)
    if {"schedule_best", "schedule_per_family"} & set(controls):
        found["schedule_best"] = search.schedule_best()
    if "schedule_per_family" in controls:
        found["schedule_per_family"] = search.schedule_per_family(found["schedule_best"])
    if "static_full" in controls:
        found["static_full"] = search.static("static_full", lambda episode: 100 * episode.val_accuracy)
    if "static_best" in controls:
        found["static_best"] = search.static("static_best", episode_return)
    return Tuning(
        budget=budget,
        seed=seed,
        experiment=fingerprint(laboratory.config),
        slot_ids=laboratory.slot_ids,
        spent={name: pairs * arena.num_epochs for name, pairs in search.spent.items()},
        returns=search.means,
        **found,
    )


def episode_return(episode: EpisodeRecord) -> float:
    """In points."""
    return episode.episode_return


@dataclass(slots=True)
class Search:
    """Looks for the parameters of one control after the other.

    Attributes:
        laboratory, arena: where candidates play.
        budget: pairs for each control.
        seed: of draws.
        progress: called with (control, done, total).
        spent: pairs by control.
        means: mean of what each control was chosen by.
    """

    laboratory: Laboratory
    arena: Arena
    budget: int
    seed: int
    progress: Progress
    spent: dict[str, int] = field(default_factory=dict)
    means: dict[str, float] = field(default_factory=dict)
    _plans: dict[Pair[GrowthPlan], float] = field(default_factory=dict)

    def rule(self, name: str) -> Any:
        """Parameters of a rule-based controller: half of the budget on random ones, the rest around the best."""
        laboratory, epochs = self.laboratory, self.arena.num_epochs
        kind, build = self._rules()[name]
        fitting = [blueprint_ids()[index] for index in laboratory.compatible.any(dim=0).nonzero().flatten().tolist()]
        choices = rule_choices(fitting, len(laboratory.slot_ids), laboratory.max_seeds, epochs)[name]
        stream = generator("tuning", "candidates", self.seed, name)
        scores: dict[Pair[Any], float] = {}
        usual = asdict(kind())
        start = [kind(**usual)] if all(usual[name] in values for name, values in choices.items()) else []
        first = [*start, *drawn(kind, choices, self._count(self.budget // 2), stream)]
        found = self._halve(name, build, first, max(1, self.budget // 2), scores)
        rest = self.budget - found.spent
        around = neighbours(found.best, choices, self._count(rest), stream)
        return self._halve(name, build, around, rest, scores, incumbent=True).best

    def schedule_best(self) -> GrowthPlan:
        """The best plan for all: one module, one more while it pays and may be kept, then a later start.

        Each of these may spend half of what is left, the last one all of it.
        """
        name, compatible = "schedule_best", self.laboratory.compatible
        stream = generator("tuning", "candidates", self.seed, name)
        plan: GrowthPlan = ()
        ranking: Sequence[GrowthPlan] = (plan,)
        for _ in range(self.laboratory.max_seeds):
            rest = self.budget - self.spent.get(name, 0)
            _, *more = extended(plan, compatible)
            # In an order of their own: a budget too small for all must not mean the first slots only.
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
        """The best plan of each family, every candidate on every one of its instances: a ceiling without a budget."""
        name, compatible = "schedule_per_family", self.laboratory.compatible
        members: dict[str, list[int]] = {}
        for number, instance in enumerate(self.arena.instances):
            members.setdefault(instance.family, []).append(number)
        plans: dict[str, GrowthPlan] = dict.fromkeys(sorted(members), ())
        for step in range(self.laboratory.max_seeds):
            candidates = {
                family: extended(plan, compatible) if len(plan) < self.laboratory.max_seeds else [plan]
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
        """The blueprint whose network, with one in every slot from the start, is best by a number of its episodes."""
        compatible = self.laboratory.compatible
        fitting = [blueprint_ids()[index] for index in compatible.any(dim=0).nonzero().flatten().tolist()]

        def build(blueprints: Sequence[str]) -> Controller:
            return Static([everywhere(blueprint, compatible) for blueprint in blueprints], name)

        best: str = self._halve(name, build, fitting, self.budget, {}, number=number).best
        return best

    def _rules(self) -> Mapping[str, tuple[Callable[..., Any], Callable[[Sequence[Any]], Controller]]]:
        num_slots, max_seeds = len(self.laboratory.slot_ids), self.laboratory.max_seeds
        return {
            "heuristic": (HeuristicParameters, lambda rows: Heuristic(rows, num_slots, max_seeds)),
            "probe_rule": (ProbeRuleParameters, ProbeRule),
            "probe_and_keep": (ProbeAndKeepParameters, lambda rows: ProbeAndKeep(rows, num_slots, max_seeds)),
        }

    def _count(self, budget: int) -> int:
        """Candidates to draw for so many pairs."""
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
