"""The landscape of digits_arrival: plans grow when they say, and are chosen where they are not judged."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import small_env, small_experiment, undone

from esper.controllers import PlannedGermination, Schedule
from esper.controllers.base import waiting
from esper.growth import Stage

with undone():  # tests of the registry are about Esper's own
    from experiments.digits_arrival import rivals as study
    from experiments.digits_arrival import timing
    from experiments.digits_arrival.landscape import CEILING, Plan, Timed, plans, rivals, table
    from experiments.digits_arrival.rivals import SLOT
    from experiments.hosts import again


def test_a_plan_germinates_in_its_epoch_and_a_rule_once_after_the_loss_has_risen() -> None:
    env = small_env(small_experiment("env.num_epochs=6"))
    rows = [Plan(name="epoch 2", start=lambda instance: 2), Plan(name="rise", jump=-100.0), Plan(name="never")]
    timed, observation = Timed(rows, env.reset() and env.instances), env.observation()
    grown = []
    for _ in range(env.num_epochs):
        actions = timed.act(env.view(observation))
        assert torch.equal(actions[2:], waiting(1))
        observation = env.step(actions).observation
        grown.append((env.state.stage[:2, SLOT] != Stage.DORMANT).tolist())
    assert [first for first, _ in grown] == [False, False, True, True, True, True]
    assert [second for _, second in grown] == [False, False, True, True, True, True], "two losses are needed"


def test_the_rivals_of_the_study_grow_in_the_best_epoch_and_after_a_rise(monkeypatch: pytest.MonkeyPatch) -> None:
    context: Any = SimpleNamespace(num_envs=3)
    fixed, rule = study.best_epoch(context), study.RisenLoss(3)
    assert (fixed.name, rule.name) == ("best_epoch", "risen_loss")
    monkeypatch.setattr(study, "JUMP", -100.0)  # any two losses
    for controller, first in ((fixed, study.EPOCH), (rule, 2)):
        env = small_env(small_experiment("env.num_epochs=18"))
        observation, grown = env.reset(), []
        for _ in range(env.num_epochs):
            observation = env.step(controller.act(env.view(observation))).observation
            grown.append((env.state.stage[:, SLOT] != Stage.DORMANT).tolist())
        assert grown[first - 1] == [False] * 3
        assert grown[first] == [True] * 3


def test_what_is_kept_is_dated_by_its_germination_and_compared_with_the_arrival() -> None:
    env = small_env(small_experiment("env.num_epochs=12"))
    plans = [[PlannedGermination(epoch, SLOT, study.MODULE)] if epoch else [] for epoch in (1, 3, None)]
    since = timing.kept_since(Schedule(plans), env)
    assert since[:2].tolist() == [1.0, 3.0]
    assert np.isnan(since[2])
    arrivals, kept = np.array([5.0, 1.0, 3.0, 9.0]), np.array([6.0, 2.0, 2.0, np.nan])
    assert timing.row(7, arrivals, kept) == "| 7 | 3 | 2.0 | 2.0 | 6.0 | 0.87 | +1 | 67 |"


def test_plans_are_fixed_relative_or_rules_and_know_the_arrival_of_their_host() -> None:
    found = {plan.name: plan for plan in plans(12)}
    host = replace(small_experiment().pool("train", 1)[0], arrival=3)
    starts = {name: plan.start(host) for name, plan in found.items() if plan.start}
    assert starts == {
        **{f"epoch {epoch}": epoch for epoch in (0, 4)},
        **{"4 epochs before it": 0, "with the arrival": 3, "1 epoch after it": 4},
        **{f"{epochs} epochs after it": 3 + epochs for epochs in (2, 4, 8)},
    }
    assert sum(plan.start is None for plan in found.values()) == 2
    assert again(host, 0) == host
    assert len({again(host, run).order_seed for run in range(3)}) == 3


def test_no_plan_is_chosen_by_the_returns_that_judge_it() -> None:
    """One host likes another plan than all others; one order of the data flatters a plan."""
    rows = plans(12)
    earned = np.zeros((2, len(rows), 3))
    earned[:, 0, :2], earned[:, 1, 2] = 5.0, 9.0
    earned[0, 5, 0] = 100.0
    found = rivals(rows, earned, earned)
    assert found["epoch 0"].tolist() == [5.0, 5.0, 0.0]
    assert found["best fixed schedule"].tolist() == [0.0, 0.0, 0.0]
    assert found[CEILING].tolist() == [2.5, 5.0, 9.0]
    assert "| best fixed schedule | +0.0 |  | 0.0 |" in table(found, found)
