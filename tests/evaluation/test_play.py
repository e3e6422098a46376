"""Controllers compared on the same held-out hosts, with a frozen policy and correct means."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from helpers import Eager, controller, small_env, small_experiment, some_tuning, undone

from esper.controllers import CONTROLLERS as CONTROLLERS_BY_NAME
from esper.controllers import Controller, PlannedGermination, register_controller
from esper.envs.records import EnvView
from esper.envs.twins import TwinCache
from esper.evaluation.play import NeverGrewError, Outcome, compare, play, require_growth
from esper.evaluation.results import Bootstrap, ControllerResult, result_rows
from esper.experiment.build import Experiment
from esper.growth.actions import OP_WAIT, Blueprint, Op
from esper.policy.normaliser import moments
from esper.telemetry.counters import OpCounts

CONTROLLERS = ("learned", "heuristic", "schedule", "random", "never")


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return small_experiment(
        "env.num_epochs=8", "evaluation.num_hosts=3", f"evaluation.controllers=[{','.join(CONTROLLERS)}]"
    )


@pytest.fixture(scope="module")
def twins(experiment: Experiment) -> TwinCache:
    return TwinCache(experiment.loader, lambda: experiment.population(3))


@pytest.fixture(scope="module")
def outcomes(experiment: Experiment, twins: TwinCache) -> dict[str, Outcome]:
    """Play all controllers, and check that policy and normaliser are unchanged."""
    policy, normaliser = experiment.policy()
    normaliser.merge(moments(torch.randn(20, policy.num_features, generator=torch.Generator().manual_seed(0))))
    before = [{name: value.clone() for name, value in part.state_dict().items()} for part in (policy, normaliser)]
    found = compare(experiment, policy, normaliser, twins, lambda name, done, total: None)
    for part, old in zip((policy, normaliser), before, strict=True):
        assert all(torch.equal(value, old[name]) for name, value in part.state_dict().items()), "evaluation is frozen"
    assert tuple(outcome.name for outcome in found) == CONTROLLERS
    return {outcome.name: outcome for outcome in found}


def test_all_controllers_meet_the_same_held_out_hosts(experiment: Experiment, outcomes: dict[str, Outcome]) -> None:
    instances = [episode.instance for episode in outcomes["never"].episodes]
    assert sorted(instance.index for instance in instances) == [0, 1, 2], "each once"
    assert {instance.split for instance in instances} == {"held_out"}
    for outcome in outcomes.values():
        assert [episode.instance for episode in outcome.episodes] == instances
        assert [episode.environment for episode in outcome.episodes] == [0, 1, 2]
    trained_on = {instance.host_seed for instance in experiment.pool("train", 4)}
    assert not trained_on & {instance.host_seed for instance in instances}


def test_held_out_hosts_may_be_of_a_family_that_is_never_trained_on() -> None:
    experiment = small_experiment(
        "instances.families.starved_1=0",
        "+instances.held_out_families={starved_1:1,narrow_4:1}",
        "instances.num_train=12",
        "instances.num_held_out=6",
    )
    train, held_out = experiment.pool("train", 12), experiment.pool("held_out", 6)
    assert {instance.family for instance in held_out} == {"starved_1", "narrow_4"}
    assert not {instance.family for instance in train} & {instance.family for instance in held_out}
    seeds = [{seed for x in pool for seed in (x.host_seed, x.order_seed)} for pool in (train, held_out)]
    assert not seeds[0] & seeds[1]


def test_hosts_that_diverge_by_themselves_leave_every_table_and_interval_finite() -> None:
    names = ("heuristic", "random", "never", "static_full")
    experiment = small_experiment(
        f"+instances.held_out_families={{intact:1,lr_times_1{'0' * 30}:1}}",
        "env.num_epochs=4",
        "evaluation.num_hosts=4",
        f"evaluation.controllers=[{','.join(names)}]",
    )
    twins = TwinCache(experiment.loader, lambda: experiment.population(4))
    tuning = some_tuning(experiment.slot_ids)
    found = compare(experiment, *experiment.policy(), twins, lambda name, done, total: None, tuning)
    results = [ControllerResult(name=outcome.name, outcomes=(outcome,)) for outcome in found]
    rows = result_rows(results, Bootstrap(strata=results[0].families(), draws=40, seed=0))
    for outcome, result, row in zip(found, results, rows, strict=True):
        assert sum(episode.crashed for episode in outcome.episodes) == 2
        assert outcome.returns().isfinite().all()
        result.check_finite()
        assert all(math.isfinite(number) for number in (*row.episode_return, *row.val_accuracy, *row.test_accuracy))
    assert (results[names.index("never")].returns() == 0).all()


def test_without_families_of_their_own_held_out_hosts_are_mixed_as_those_of_training(experiment: Experiment) -> None:
    pools = [experiment.pool(split, 4) for split in ("train", "held_out")]
    assert [x.family for x in pools[0]] == [x.family for x in pools[1]]


def test_never_is_the_twin_and_returns_exactly_zero(outcomes: dict[str, Outcome], twins: TwinCache) -> None:
    never = outcomes["never"]
    assert (never.returns() == 0).all()
    assert [episode.val_accuracy for episode in never.episodes] == [
        float(twins[episode.instance].accuracy[-1]) for episode in never.episodes
    ]
    assert [episode.test_accuracy for episode in never.episodes] == [
        twins[episode.instance].test_accuracy for episode in never.episodes
    ]
    [row] = result_rows([ControllerResult(name="never", outcomes=(never,))])
    assert row.wait_share == (1, None)
    assert row.added_parameters == (0, 0)


def test_controllers_of_one_class_are_rows_by_the_names_that_they_are_registered_by(
    experiment: Experiment, twins: TwinCache
) -> None:
    names = ("one", "another")
    evaluation = replace(experiment.config.evaluation, controllers=list(names))
    both = replace(experiment, config=replace(experiment.config, evaluation=evaluation))
    with undone():
        for slot, name in enumerate(names):
            register_controller(name, lambda context, slot=slot: Eager(slot))
        found = compare(both, *experiment.policy(), twins, lambda name, done, total: None)
    assert tuple(outcome.name for outcome in found) == names
    assert tuple(outcome.timeline.controller for outcome in found) == names


def test_the_schedule_keeps_a_module_that_is_charged_for(outcomes: dict[str, Outcome]) -> None:
    """A control that really grows: planned at epoch 0, kept as soon as legal."""
    schedule = outcomes["schedule"]
    assert [episode.num_fossilized for episode in schedule.episodes] == [1, 1, 1]
    assert [episode.added_parameters for episode in schedule.episodes] == [600, 600, 600]
    assert (schedule.returns() != 0).all()
    assert schedule.timeline.instance == schedule.episodes[0].instance.index


def test_summaries_are_means_and_standard_errors_over_hosts(outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["schedule"]
    rival = replace(outcomes["random"], name="learned")
    results = [ControllerResult(name=found.name, outcomes=(found,)) for found in (outcome, rival)]
    summary, _ = result_rows(results)
    returns = outcome.returns()
    assert summary.num_hosts == 3
    assert summary.episode_return is not None
    assert summary.episode_return.mean == pytest.approx(float(returns.mean()))
    assert summary.episode_return.sem == pytest.approx(float(returns.std() / 3**0.5))
    assert summary.wait_share is not None
    chosen = outcome.ops.chosen
    assert summary.wait_share.mean == pytest.approx(int(chosen[OP_WAIT]) / int(chosen.sum()))
    difference = summary.return_difference
    assert difference is not None
    apart = rival.returns() - returns
    assert difference.mean == pytest.approx(float(apart.mean()))
    assert difference.sem == pytest.approx(float(apart.std() / 3**0.5)), "of the differences, host by host"


class Breaking(Eager):
    """Breaks the host of environment 1 in its first episode, and again in its second."""

    def __init__(self, env_of: list[object]) -> None:
        super().__init__(0)
        self._env_of, self._steps = env_of, 0

    def act(self, view: EnvView) -> torch.Tensor:
        self._steps += 1
        if self._steps in (4, 6):
            self._env_of[0].population.hosts.values.detach()[1, 0] = torch.nan  # type: ignore[attr-defined]
        return super().act(view)


def test_a_crash_is_counted_once_and_as_the_crash_it_was(experiment: Experiment) -> None:
    env = small_env(experiment, measure_test=True)
    chooser: Controller = Breaking([env])
    outcome = play(chooser, env, lambda done, of: None)
    assert outcome.episodes[1].instance == env.pool.draw(0, 1, 0), "the first of its episodes"
    assert env.instances[1] == env.pool.draw(0, 1, 2)
    assert [episode.crashed for episode in outcome.episodes] == [False, True, False]
    assert [episode.environment for episode in outcome.episodes] == [0, 1, 2]
    assert outcome.episodes[1].episode_return < -10
    assert outcome.timeline.instance != outcome.episodes[1].instance.index, "a whole episode is shown"


def test_if_every_host_crashes_the_first_episode_is_shown_up_to_its_crash(experiment: Experiment) -> None:
    """Not what the environment went on with: another instance, under the same rows."""
    env = small_env(experiment)

    class BreakingAll(Eager):
        steps = 0

        def act(self, view: EnvView) -> torch.Tensor:
            self.steps += 1
            if self.steps == 4:
                env.population.hosts.values.detach()[:, 0] = torch.nan
            return super().act(view)

    outcome = play(BreakingAll(), env, lambda done, of: None)
    assert all(episode.crashed and episode.num_epochs == 4 for episode in outcome.episodes)
    shown = outcome.timeline
    assert shown.instance == outcome.episodes[0].instance.index != env.instances[0].index
    assert len(shown.stages) == len(shown.ops) == len(shown.val_accuracy) == 4
    assert shown.twin_accuracy is not None
    assert env.rewarder.twins is not None
    assert torch.equal(shown.twin_accuracy, env.rewarder.twins[outcome.episodes[0].instance].accuracy[:4])


def test_play_tells_its_progress_and_repeats_itself(experiment: Experiment) -> None:
    told: list[tuple[int, int]] = []
    runs = [
        play(controller(experiment, "heuristic"), small_env(experiment), lambda done, of: told.append((done, of)))
        for _ in range(2)
    ]
    assert told[:9] == [(done, 8) for done in range(9)]
    assert runs[0].episodes == runs[1].episodes


# -------------------------------------------------------------------------------------- controls of an evaluation

TUNED_CONTROLLERS = ("static_final", "schedule_per_family", "static_full", "learned", "probe_rule")


class Growing(Eager):
    """A substitute for a trained policy."""

    name = "learned"


def test_static_networks_stand_in_for_what_was_learned(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcomes come in the order asked for, although static_final needs the learned one first."""
    evaluation = replace(experiment.config.evaluation, controllers=list(TUNED_CONTROLLERS))
    asked = replace(experiment, config=replace(experiment.config, evaluation=evaluation))
    monkeypatch.setitem(CONTROLLERS_BY_NAME._entries, "learned", lambda context: Growing(0))
    families = {instance.family for instance in experiment.pool("held_out", 3)}
    plan = (PlannedGermination(0, 0, Blueprint.CONV_LIGHT),)
    tuning = some_tuning(experiment.slot_ids)
    tuning = replace(tuning, found={**tuning.found, "schedule_per_family": dict.fromkeys(families, plan)})
    policy, normaliser = experiment.policy()
    twins = experiment.twins(3, lambda done, total: None)
    found = compare(asked, policy, normaliser, twins, lambda name, done, total: None, tuning)
    assert tuple(outcome.name for outcome in found) == TUNED_CONTROLLERS
    final, per_family, full, learned, _ = found
    assert [episode.kept for episode in final.episodes] == [episode.kept for episode in learned.episodes]
    assert any(episode.kept for episode in final.episodes)
    assert all(episode.kept == (("r0c0", "conv_light"),) for episode in per_family.episodes)
    assert all(episode.num_fossilized == 3 and episode.relative_flops > 1 for episode in full.episodes)
    assert (full.returns() != per_family.returns()).all()


def ops(**counts: int) -> OpCounts:
    found = OpCounts()
    for name, count in counts.items():
        found.attempted[Op[name.upper()]] = found.chosen[Op[name.upper()]] = count
    return found


@pytest.mark.parametrize("name", ["random", "schedule", "heuristic", "probe_rule", "schedule_best", "static_full"])
def test_a_control_that_never_grew_is_refused_with_what_it_did(name: str) -> None:
    tuning = some_tuning(["r0c0"])
    with pytest.raises(NeverGrewError, match=rf"'{name}' germinated nothing on any held-out host.*WAIT 90, EXTEND 2"):
        require_growth(name, 0, ops(wait=90, extend=2), tuning)
    require_growth(name, 1, ops(wait=90), tuning)


def test_growing_nothing_is_right_for_some() -> None:
    tuning = some_tuning(["r0c0"])
    for name in ("never", "learned", "static_final"):
        require_growth(name, 0, ops(wait=90), tuning)
    require_growth("heuristic", 0, ops(wait=90), None)
    require_growth("random", 0, ops(wait=3), None)
    nothing_pays = replace(tuning, found={"schedule_best": (), "schedule_per_family": {"intact": ()}})
    for name in ("schedule_best", "schedule_per_family", "probe_rule"):
        require_growth(name, 0, ops(wait=90), nothing_pays)


def test_comparing_with_a_control_that_never_grew_fails(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = replace(experiment.config.evaluation, controllers=["schedule"])
    asked = replace(experiment, config=replace(experiment.config, evaluation=evaluation))
    monkeypatch.setattr(Experiment, "schedule", lambda self: [])
    policy, normaliser = experiment.policy()
    with pytest.raises(NeverGrewError, match=r"the control 'schedule' germinated nothing.*WAIT 24"):
        compare(asked, policy, normaliser, None, lambda name, done, total: None)
