"""Simulated growth with flat actions pays MaskablePPO what it pays the policy, and the study's settings can start."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esper.config import compose, to_plain
from esper.growth.actions import Head, Op
from esper.growth.flat import flat_actions
from esper.policy import Normaliser
from esper.policy.normaliser import moments
from esper.runtime.rng import generator
from experiments.action_space.flat import FlatEnv
from experiments.action_space.study import LEAN, TABLES, no_memory, raw_observations
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


@pytest.mark.parametrize(("table", "name"), [(table, name) for table, settings in TABLES.items() for name in settings])
def test_a_setting_can_start(table: str, name: str) -> None:
    recipe(*TABLES[table][name], preset=PRESET)


def test_without_memory_a_step_depends_on_itself_alone() -> None:
    lstm, x = torch.nn.LSTM(3, 4, batch_first=True), torch.randn(2, 5, 3)
    state = torch.zeros(1, 2, 4), torch.zeros(1, 2, 4)
    remembering, _ = lstm(x, state)
    with no_memory():
        output, after = lstm(x, state)
        alone = torch.cat([lstm(x[:, [step]], after)[0] for step in range(5)], dim=1)
    assert torch.allclose(output, alone)
    assert torch.allclose(output[:, 0], remembering[:, 0])
    assert not torch.allclose(output[:, 1], remembering[:, 1])
    assert all(not part.any() for part in after)
    assert torch.equal(lstm(x, state)[0], remembering)


def test_raw_observations_are_changed_by_no_normaliser() -> None:
    normaliser, x = Normaliser(torch.ones(3, dtype=torch.bool)), 3 + torch.randn(50, 3)
    with raw_observations():
        normaliser.merge(moments(x))
    assert torch.equal(normaliser(x.clamp(-5, 5)), x.clamp(-5, 5))


def test_the_recipe_lean_is_that_of_the_presets() -> None:
    ours, theirs = recipe(*LEAN, preset=PRESET).config, compose(f"+preset={PRESET}", "recipe=lean")
    assert to_plain(ours)["policy"] == to_plain(theirs)["policy"]
    assert to_plain(ours)["ppo"] == to_plain(theirs)["ppo"]


def test_the_study_leaves_the_policy_the_choices_of_the_flat_actions() -> None:
    choices = recipe(*TABLES["action_space"]["flat's choices"], preset=PRESET).config.policy.choices.indices()
    rows = flat_actions(["r0c0"], ["noop", "norm"])
    germinations, culls = (rows[rows[:, Head.OP] == op] for op in (Op.GERMINATE, Op.CULL))
    assert set(choices[Head.OP]) == set(rows[:, Head.OP].tolist())
    for head in (Head.STYLE, Head.TEMPO, Head.ALPHA_TARGET):
        assert choices[head] == germinations[:, head].unique().tolist()
    assert choices[Head.ALPHA_SPEED] == culls[:, Head.ALPHA_SPEED].unique().tolist()
