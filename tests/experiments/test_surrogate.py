"""The simulated growth environment pays what its score model says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from esper.controllers import Never, PlannedGermination, Schedule
from esper.envs.records import EnvView
from esper.experiment.build import build_task_host
from esper.growth.actions import NUM_BLUEPRINTS, Blueprint
from esper.runtime.rng import generator
from esper.tasks import load_task
from experiments.surrogate.growth import (
    FAMILIES,
    PRESET,
    Instances,
    family_plans,
    fixed_return,
    measured_gains,
    oracle_return,
    plan_returns,
)
from experiments.surrogate.learner import Learner, recipe
from experiments.surrogate.simulated import HOST_PARAMETERS
from experiments.surrogate.study import environment, forced_waits_count, main

HELD_OUT = Instances.draw(64, "held_out")
HOW = recipe("ppo.update_epochs=1", "ppo.num_minibatches=1", preset=PRESET)


def points(act: Callable[[EnvView], Tensor]) -> Tensor:
    """Return on every held-out instance, ``float64 [N]``."""
    env = environment(HELD_OUT, len(HELD_OUT.family), generator("test"), HOW, in_order=True)
    observation, total = env.reset(), torch.zeros(env.num_envs, dtype=torch.float64)
    for _ in range(env.num_epochs):
        step = env.step(act(env.view(observation)))
        observation = step.observation
        total += step.reward.double() / HOW.config.reward.scale
    return total


def test_gains_are_those_of_the_page() -> None:
    page = """
| slot, blueprint | added | intact | starved_2 |
|---|---|---|---|
| slot 0, norm | 24 | -0.3 / 27.0 | +1.5 / 98.2 |
| slot 2, conv_heavy | 1192 | +0.2 / 98.2 | +45.3 / 91.0 |
| everywhere, norm | 72 | +9.0 / 1.0 | +9.0 / 1.0 |
"""
    gains = measured_gains(page)
    assert gains[FAMILIES.index("starved_2"), 2, Blueprint.CONV_HEAVY] == 45.3
    assert gains[FAMILIES.index("intact"), 0, Blueprint.NORM] == -0.3
    assert int((gains != 0).sum()) == 4


def test_rent_is_charged_on_as_many_parameters_as_the_real_host_has() -> None:
    task = load_task(HOW.config.task.name, **HOW.config.task.options())
    host = build_task_host(HOW.config, task)
    assert sum(parameter.numel() for parameter in host.parameters()) == HOST_PARAMETERS


def test_never_growing_earns_exactly_nothing() -> None:
    assert (points(Never().act) == 0).all()


def test_plans_earn_what_the_model_says() -> None:
    """The best single plan, and the best of each family, which is worth much more; to the noise of 64 final scores."""
    best = divmod(int(plan_returns(HELD_OUT).mean(0).argmax()), NUM_BLUEPRINTS)

    def earned(plans: Sequence[tuple[int, int] | None]) -> float:
        steps = [[PlannedGermination(0, *plan)] if plan else [] for plan in plans]
        return float(points(Schedule(steps).act).mean())

    fixed, oracle = earned([best] * len(HELD_OUT.family)), earned(family_plans(HELD_OUT))
    assert [fixed, oracle] == pytest.approx([fixed_return(HELD_OUT), oracle_return(HELD_OUT)], abs=0.7)
    assert oracle > 1.25 * fixed


def test_the_same_seed_learns_the_same_and_another_does_not() -> None:
    def learned(seed: int) -> Tensor:
        env = environment(Instances.draw(48, "train"), 4, generator("growth", seed), HOW)
        learner = Learner(env, HOW, seed)
        learner.iterate(0)
        return torch.cat([parameter.flatten() for parameter in learner.policy.parameters()])

    once = learned(0)
    assert torch.equal(once, learned(0))
    assert not torch.equal(once, learned(1))


def test_a_controller_sees_the_chosen_probes_of_the_same_world() -> None:
    def seen(*words: str) -> dict[str, Tensor]:
        how = recipe(*words, preset=PRESET)
        world = environment(HELD_OUT, 4, generator("probes"), how, in_order=True).world
        return dict(zip(world.slot_probes, world.probes().unbind(-1), strict=True))

    everything, some = seen(), seen("observation.slot_probes=[log_first_order_gain,dead_channels]")
    assert list(some) == ["log_first_order_gain", "dead_channels"]
    assert all(torch.equal(some[name], everything[name]) for name in some)
    assert seen("observation.slot_probes=[]") == {}


def test_forced_waits_count_only_where_they_are_asked_to() -> None:
    def choices() -> Tensor:
        learner = Learner(environment(HELD_OUT, 4, generator("forced"), HOW), HOW, seed=0)
        learner.iterate(0)
        return learner.buffer.data.num_legal_ops

    with forced_waits_count():
        assert int(choices().min()) == 2
    assert int(choices().min()) == 1


def test_a_table_that_is_not_known_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["study", "gamma"])
    with pytest.raises(SystemExit):
        main()
    assert "group 'gamma' is unknown; choose from now, seen, before" in capsys.readouterr().err
