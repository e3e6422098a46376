"""The search for each control: finds what pays, on worlds whose truth is known and once on real hosts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import small_experiment, some_tuning

from esper.controllers import (
    GrowthPlan,
    HeuristicParameters,
    PlannedGermination,
    Schedule,
    Space,
    Tuning,
    heuristic,
    tunables,
)
from esper.envs.twins import TwinCache
from esper.evaluation.tuning import Arena, arranged, tune
from esper.evaluation.tuning.candidates import drawn, extended, neighbours, postponed
from esper.evaluation.tuning.search import Search, episode_return
from esper.experiment.build import Experiment
from esper.growth.actions import Blueprint

LIGHT, NORM = int(Blueprint.CONV_LIGHT), int(Blueprint.NORM)
FAMILIES = ("intact", "starved_0", "starved_1")


@dataclass
class World:
    """An arena without hosts: what a candidate is worth depends on the host's family alone, plus an offset per host."""

    truth: Callable[[Any, str], float]
    num_epochs: int = 10
    num_instances: int = 24

    def __post_init__(self) -> None:
        self.instances = [SimpleNamespace(family=FAMILIES[number % 3]) for number in range(self.num_instances)]
        self.num_pairs = 0

    def episodes(
        self, build: object, pairs: Sequence[tuple[Any, int]], progress: Callable[[int, int], None]
    ) -> list[SimpleNamespace]:
        self.num_pairs += len(pairs)
        worth = [self.truth(candidate, self.instances[number].family) + 7 * (number % 5) for candidate, number in pairs]
        return [SimpleNamespace(episode_return=points, val_accuracy=-points / 100) for points in worth]


def search(world: World, *, max_seeds: int = 1, budget: int = 200) -> Search:
    compatible = torch.zeros(3, 13, dtype=torch.bool)
    compatible[:, [LIGHT, NORM]] = True
    compatible[2, NORM] = False
    experiment = SimpleNamespace(space=Space(("r0c0", "r0c1", "r0c2"), compatible, max_seeds, world.num_epochs))
    return Search(experiment, world, budget, 0, lambda name, done, total: None)  # type: ignore[arg-type]


def worth(plan: GrowthPlan, family: str) -> float:
    """conv_light pays in slot 2, more so at the starved place itself; a second module a little; early is better."""
    points = {
        ("intact", 0, LIGHT): -5.0,
        ("intact", 1, LIGHT): -5.0,
        ("intact", 2, LIGHT): -3.0,
        ("starved_0", 0, LIGHT): 20.0,
        ("starved_0", 2, LIGHT): 10.0,
        ("starved_1", 1, LIGHT): 20.0,
        ("starved_1", 2, LIGHT): 10.0,
        ("starved_1", 0, NORM): 2.0,
    }
    return sum(points.get((family, step.slot, step.blueprint), -1.0) - 0.1 * step.epoch for step in plan)


def step(slot: int, blueprint: int, epoch: int = 0) -> PlannedGermination:
    return PlannedGermination(epoch, slot, blueprint)


def test_one_plan_for_all_and_one_for_each_family() -> None:
    world = World(worth)
    found = search(world)
    best = found.schedule_best()
    assert best == (step(2, LIGHT),)
    assert world.num_pairs == found.spent["schedule_best"] <= 200
    assert found.schedule_per_family(best) == {
        "intact": (),
        "starved_0": (step(0, LIGHT),),
        "starved_1": (step(1, LIGHT),),
    }
    # Six plans on all hosts, but for what was known already.
    assert found.spent["schedule_per_family"] == world.num_pairs - found.spent["schedule_best"] < 6 * 24
    assert found.means["schedule_per_family"] > found.means["schedule_best"]


def test_where_more_may_be_kept_plans_grow_while_it_pays() -> None:
    found = search(World(worth), max_seeds=3, budget=600)
    best = found.schedule_best()
    assert {(each.slot, each.blueprint) for each in best} == {(0, LIGHT), (1, LIGHT), (2, LIGHT)}
    plans = found.schedule_per_family(())
    assert plans["intact"] == ()
    assert plans["starved_0"] == (step(0, LIGHT), step(2, LIGHT))
    assert plans["starved_1"] == (step(1, LIGHT), step(2, LIGHT), step(0, NORM))


def test_a_later_start_is_found_where_it_pays() -> None:
    def late(plan: GrowthPlan, family: str) -> float:
        return sum(5.0 * (each.slot == 1) - abs(each.epoch - 4) for each in plan)

    assert {each.epoch for each in search(World(late)).schedule_best()} == {4}


def test_where_nothing_pays_the_best_plan_is_empty() -> None:
    assert search(World(lambda plan, family: -len(plan))).schedule_best() == ()


@pytest.mark.parametrize("budget", [1, 2, 7, 100, 1000])
def test_every_search_stays_within_its_budget(budget: int) -> None:
    world = World(lambda candidate, family: float(hash(candidate) % 100))
    found = search(world, budget=budget)
    for name in ("heuristic", "probe_rule", "probe_and_keep"):
        found.tune(name)
    found.schedule_best()
    found.static("static_best", episode_return)
    assert all(0 < spent <= budget for spent in found.spent.values())
    assert sum(found.spent.values()) == world.num_pairs


def test_a_static_network_is_chosen_by_the_number_that_it_is_compared_by() -> None:
    world = World(lambda blueprint, family: 5.0 if blueprint == "norm" else 0.0)
    assert search(world).static("static_best", episode_return) == "norm"
    assert search(world).static("static_full", lambda episode: episode.val_accuracy) == "conv_light"


def test_thresholds_come_close_to_the_best_there_are() -> None:
    """Worth falls with every field's distance from a target; random draws alone would seldom hit all three."""

    def truth(rule: HeuristicParameters, family: str) -> float:
        return -abs(rule.patience - 3) - 5 * abs(rule.improvement - 0.1) - abs(rule.keep_points - 2.0)

    found = search(World(truth), budget=400)
    assert truth(found.tune("heuristic"), "intact") >= -1.0
    assert found.spent["heuristic"] > 200


# ----------------------------------------------------------------------------------------------------- candidates


def test_extended_plans_fill_one_more_slot_with_what_fits() -> None:
    compatible = torch.tensor([[False, True, True], [False, True, False]])
    plan = (step(0, 1),)
    assert extended((), compatible) == [(), (step(0, 1),), (step(0, 2),), (step(1, 1),)]
    assert extended(plan, compatible) == [plan, (step(0, 1), step(1, 1))]


def test_postponed_plans_stay_within_the_episode() -> None:
    plans = postponed([(step(0, 1),), (step(0, 1), step(1, 1, epoch=3))], num_epochs=6)
    assert [[each.epoch for each in plan] for plan in plans] == [[0], [0, 3], [1], [2], [4], [1, 4], [2, 5]]
    assert [plan[0].epoch for plan in postponed([(step(0, 1),)], num_epochs=40)] == [0, 1, 2, 4, 8, 16, 32]
    assert postponed([(step(0, 1),)], num_epochs=1) == [(step(0, 1),)]


def test_drawn_parameters_differ_and_neighbours_change_at_most_two_fields() -> None:
    stream = torch.Generator().manual_seed(0)
    choices = heuristic.choices(small_experiment().space)
    some = drawn(HeuristicParameters, choices, 20, stream)
    assert len(set(some)) == 20
    assert len(drawn(HeuristicParameters, choices, 10_000, stream)) == 4 * 6 * 7, "all there are"
    near = neighbours(some[0], choices, 15, stream)
    assert near[0] == some[0]
    assert len(set(near)) == 16
    fields = ("patience", "improvement", "keep_points")
    changes = [sum(getattr(each, name) != getattr(some[0], name) for name in fields) for each in near[1:]]
    assert set(changes) == {1, 2}
    assert all(getattr(each, name) in choices[name] for each in (*some, *near) for name in fields)


# ------------------------------------------------------------------------------------------------------ real hosts


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return small_experiment("slots.blueprints=[conv_light,norm]", "env.num_epochs=8", "instances.num_train=2")


@pytest.fixture(scope="module")
def twins(experiment: Experiment) -> TwinCache:
    return experiment.twins(3, lambda done, total: None)


def test_a_pair_is_worth_the_same_whatever_it_is_played_with(experiment: Experiment, twins: TwinCache) -> None:
    arena = Arena(experiment, twins, arranged(experiment.pool("train", 2).instances, 0))
    plans: list[GrowthPlan] = [(), (step(0, LIGHT),), (step(2, NORM, epoch=1),)]
    pairs = [(plan, number) for plan in plans for number in range(2)]
    told: list[tuple[int, int]] = []
    together = arena.episodes(Schedule, pairs, lambda done, total: told.append((done, total)))
    returns = [episode.episode_return for episode in together]
    assert told == [(0, 6), (3, 6), (6, 6)]
    assert returns[:2] == [0, 0], "the empty plan is the twin"
    assert all(returns[2:])
    alone = [arena.episodes(Schedule, [pair], lambda done, total: None)[0] for pair in pairs]
    assert [episode.episode_return for episode in alone] == returns


@pytest.mark.slow
def test_every_control_is_tuned_within_the_budget_and_the_same_twice(experiment: Experiment, twins: TwinCache) -> None:
    told: list[str] = []
    runs = [
        tune(experiment, twins, budget=24, seed=3, progress=lambda name, done, total: told.append(name))
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert set(told) == set(tunables())
    tuning = runs[0]
    assert set(tuning.found["schedule_per_family"]) == {instance.family for instance in experiment.pool("train", 2)}
    assert {tuning.found["static_full"], tuning.found["static_best"]} <= {"conv_light", "norm"}
    assert tuning.spent.keys() == tuning.returns.keys() == set(tunables())
    for name, spent in tuning.spent.items():
        assert spent % 8 == 0
        assert 0 < spent <= 24 or name == "schedule_per_family"
    assert Tuning.from_record(json.loads(json.dumps(tuning.to_record()))) == tuning


def test_only_what_is_asked_for_is_tuned(experiment: Experiment, twins: TwinCache) -> None:
    tuning = tune(experiment, twins, budget=16, controls=["static_full"])
    assert set(tuning.spent) == {"static_full"}
    assert set(tuning.found) == {"static_full"}
    with pytest.raises(ValueError, match="no control to tune: never; choose from heuristic"):
        tune(experiment, twins, budget=16, controls=["never"])
    with pytest.raises(ValueError, match="a tuning budget of 7 environment epochs is less than one episode, 8"):
        tune(experiment, twins, budget=7)


def test_instances_are_reordered_within_their_families() -> None:
    pool = small_experiment().pool("train", 4).instances
    many = [replace(pool[number % 2], index=number, family="ab"[number % 2]) for number in range(40)]
    one, other = arranged(many, 1), arranged(many, 2)
    assert [instance.family for instance in one] == [instance.family for instance in many]
    assert sorted(instance.index for instance in one) == list(range(40))
    assert one != many
    assert one != other
    assert one == arranged(many, 1)


# ----------------------------------------------------------------------------------------------------------- records


def test_records_are_json_and_come_back() -> None:
    tuning = some_tuning(["r0c0", "r0c1"])
    assert Tuning.from_record(json.loads(json.dumps(tuning.to_record()))) == tuning
    empty = Tuning(budget=1, seed=0, experiment="0123", slot_ids=("r0c0",))
    assert Tuning.from_record(json.loads(json.dumps(empty.to_record()))) == empty


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 0}, "not a tuning record of version 1: its version is 0"),
        ({"extra": 1}, r"fields \['extra'\] are missing or unknown"),
        ({"heuristic": {"patience": 9}}, "patience=9 must be from 1 to 4"),
        ({"probe_rule": {"colour": 1}}, "colour"),
        ({"schedule_best": [{"epoch": 0, "slot": 0, "blueprint": "lucky"}]}, "unknown blueprint 'lucky'"),
        ({"schedule_best": [{"epoch": 0}]}, "tuning record: 'blueprint'"),
    ],
)
def test_a_record_that_is_none_is_refused(change: dict[str, object], message: str) -> None:
    record = some_tuning(["r0c0"]).to_record() | change
    with pytest.raises(ValueError, match=message):
        Tuning.from_record(record)
