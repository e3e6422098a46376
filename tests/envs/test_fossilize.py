"""FOSSILIZE changes a module's stage, not the network's output."""

from __future__ import annotations

import pytest
import torch

from esper.config import compose
from esper.controllers.base import germinate, on_slot, waiting
from esper.growth import Stage
from esper.growth.actions import Blueprint, Op
from tests.helpers import small_env, small_experiment
from tests.tiers import few


def test_fossilizing_preserves_outputs_parameters_and_optimizer_state() -> None:
    env = small_env(small_experiment())
    env.reset()
    actions = waiting(3)
    actions[0] = germinate(1, Blueprint.CONV_LIGHT)
    env.step(actions)
    while env.state.stage[0, 1] != Stage.HOLDING:
        env.step(waiting(3))
    images = env.loader.task.val.inputs
    before = env.population.grown(0, env.state.alpha[0].tolist())(images)
    stacks = [(stack.values.clone(), stack.exp_avg.clone(), stack.steps.clone()) for stack in env.population.stacks()]
    actions = waiting(3)
    actions[0] = on_slot(Op.FOSSILIZE, 1)
    assert env.act(actions).success.all()
    assert env.state.stage[0, 1] == Stage.FOSSILIZED
    assert torch.equal(env.population.grown(0, env.state.alpha[0].tolist())(images), before)
    for stack, (values, moments, steps) in zip(env.population.stacks(), stacks, strict=True):
        assert torch.equal(stack.values, values)
        assert torch.equal(stack.exp_avg, moments)
        assert torch.equal(stack.steps, steps)


@pytest.mark.parametrize("words", [("+preset=smoke",), ("+preset=digits", "+debug=fast"), ("+debug=fast",)], ids=str)
@few(1)
def test_a_short_episode_is_long_enough_to_keep_a_module(words: tuple[str, ...]) -> None:
    """Short runs represent real ones, so every stage must be reachable."""
    config = compose(*words)
    experiment = small_experiment(
        *(f"slots.{key}={getattr(config.slots, key)}" for key in ("min_training_epochs", "min_cull_age")),
        f"env.num_epochs={config.env.num_epochs}",
    )
    env = small_env(experiment, num_envs=2)
    env.reset()
    stages = []
    for epoch in range(config.env.num_epochs):
        actions = waiting(2)
        if epoch == 0:
            actions[0] = germinate(1, Blueprint.CONV_LIGHT)
        elif env.state.stage[0, 1] == Stage.HOLDING:
            actions[0] = on_slot(Op.FOSSILIZE, 1)
        env.step(actions)
        stages.append(Stage(int(env.state.stage[0, 1])))
    assert stages[-1] == Stage.FOSSILIZED
