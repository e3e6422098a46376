"""FOSSILIZE changes what a module is called, not what the network computes."""

from __future__ import annotations

import torch

from esper.actions import Blueprint, Op
from esper.controllers.base import germinate, on_slot, waiting
from esper.lifecycle import Stage
from tests.helpers import small_env, small_laboratory


def test_fossilizing_preserves_outputs_parameters_and_optimizer_state() -> None:
    env = small_env(small_laboratory())
    env.reset()
    actions = waiting(3)
    actions[0] = germinate(1, Blueprint.CONV_LIGHT)
    env.step(actions)
    while env.state.stage[0, 1] != Stage.HOLDING:
        env.step(waiting(3))
    images = env.nursery.task.val.images
    before = env.population.grown(0, env.state.alpha[0].tolist())(images)
    stacks = [(stack.values.clone(), stack.exp_avg.clone(), stack.steps.clone()) for stack in env.population.stacks()]
    actions = waiting(3)
    actions[0] = on_slot(Op.FOSSILIZE, 1)
    assert env._act(actions).success.all()
    assert env.state.stage[0, 1] == Stage.FOSSILIZED
    assert torch.equal(env.population.grown(0, env.state.alpha[0].tolist())(images), before)
    for stack, (values, moments, steps) in zip(env.population.stacks(), stacks, strict=True):
        assert torch.equal(stack.values, values)
        assert torch.equal(stack.exp_avg, moments)
        assert torch.equal(stack.steps, steps)
