"""The simulated growth environment pays what its score model says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from esper.actions import NUM_BLUEPRINTS
from esper.controllers import Never, PlannedGermination, Schedule
from esper.envs.records import EnvView
from esper.rng import generator
from experiments.surrogate.growth import REWARD_SCALE, Instances, fixed_return, oracle_return, plan_returns
from experiments.surrogate.learner import Learner, recipe
from experiments.surrogate.study import environment

HELD_OUT = Instances.draw(66, "held_out")


def points(act: Callable[[EnvView], Tensor]) -> Tensor:
    """Return on every held-out instance, ``float64 [N]``."""
    env = environment(HELD_OUT, len(HELD_OUT.family), generator("test"), in_order=True)
    observation, total = env.reset(), torch.zeros(env.num_envs, dtype=torch.float64)
    for _ in range(env.num_epochs):
        step = env.step(act(env.view(observation)))
        observation = step.observation
        total += step.reward.double() / REWARD_SCALE
    return total


def test_never_growing_earns_exactly_nothing() -> None:
    assert (points(Never().act) == 0).all()


def test_the_best_fixed_plan_earns_what_the_model_says() -> None:
    """To two standard errors of the noise of 66 final scores."""
    slot, blueprint = divmod(int(plan_returns(HELD_OUT).mean(0).argmax()), NUM_BLUEPRINTS)
    played = points(Schedule([PlannedGermination(0, slot, blueprint)], len(HELD_OUT.family)).act)
    assert float(played.mean()) == pytest.approx(fixed_return(HELD_OUT), abs=0.7)


def test_choosing_per_host_is_worth_much_more_than_one_plan() -> None:
    assert oracle_return(HELD_OUT) > 1.4 * fixed_return(HELD_OUT)


def test_the_same_seed_learns_the_same_and_another_does_not() -> None:
    how = recipe("ppo.update_epochs=1", "ppo.num_minibatches=1")

    def learned(seed: int) -> Tensor:
        env = environment(Instances.draw(48, "train"), 4, generator("growth", seed))
        learner = Learner(env, how, seed)
        learner.iterate(0)
        return torch.cat([parameter.flatten() for parameter in learner.policy.parameters()])

    once = learned(0)
    assert torch.equal(once, learned(0))
    assert not torch.equal(once, learned(1))
