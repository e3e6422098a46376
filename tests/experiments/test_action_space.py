"""Simulated growth with flat actions pays MaskablePPO what it pays the policy, and the study's settings can start."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esper.config import compose, to_plain
from esper.growth.actions import Head, Op
from esper.growth.flat import flat_actions
from esper.runtime.rng import generator
from experiments.action_space.flat import FlatEnv
from experiments.action_space.study import LEAN, SETTINGS
from experiments.surrogate.growth import NUM_EPOCHS, PRESET, Instances
from experiments.surrogate.learner import recipe
from experiments.surrogate.simulated import SimulatedEnv
from experiments.surrogate.study import environment


def simulated() -> SimulatedEnv:
    return environment(Instances.draw(4, "train"), 4, generator("test"), recipe(preset=PRESET), in_order=True)


def test_an_episode_of_flat_actions_is_that_of_their_rows() -> None:
    flat, plain = FlatEnv(simulated()), simulated()
    plain.reset()
    rows = flat._actions.actions
    total, stream = torch.zeros(4), np.random.default_rng(0)
    for epoch in range(NUM_EPOCHS):
        chosen = np.array([stream.choice(np.flatnonzero(legal)) for legal in flat.action_masks()])
        _, reward, ended, _, infos = flat.step(chosen)
        expected = plain.step(rows[chosen]).reward
        assert np.array_equal(reward, expected.numpy())
        total += expected
        assert ended.all() == (epoch + 1 == NUM_EPOCHS)
    assert [record.episode_return for record in infos["final_info"]["record"]] == pytest.approx(total.tolist())
    assert flat.action_masks()[:, 0].all()


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_can_start(name: str) -> None:
    recipe(*SETTINGS[name], preset=PRESET)


def test_the_recipe_lean_is_that_of_the_presets() -> None:
    ours, theirs = recipe(*LEAN, preset=PRESET).config, compose(f"+preset={PRESET}", "recipe=lean")
    assert to_plain(ours)["policy"] == to_plain(theirs)["policy"]
    assert to_plain(ours)["ppo"] == to_plain(theirs)["ppo"]


def test_the_study_leaves_the_policy_the_choices_of_the_flat_actions() -> None:
    choices = recipe(*SETTINGS["flat's choices"], preset=PRESET).config.policy.choices.indices()
    rows = flat_actions(["r0c0"], ["noop", "norm"])
    germinations, culls = (rows[rows[:, Head.OP] == op] for op in (Op.GERMINATE, Op.CULL))
    assert set(choices[Head.OP]) == set(rows[:, Head.OP].tolist())
    for head in (Head.STYLE, Head.TEMPO, Head.ALPHA_TARGET):
        assert choices[head] == germinations[:, head].unique().tolist()
    assert choices[Head.ALPHA_SPEED] == culls[:, Head.ALPHA_SPEED].unique().tolist()
