"""Growth as a vector environment keeps gymnasium's contract, and its rewards are those of Esper's own environment."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import wrappers
from gymnasium.spaces import Box
from gymnasium.utils import env_checker
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from processes import run
from small import NUM_ENVS, NUM_EPOCHS, OVERRIDES, plain_env, uniform, vector_env

from esper.blueprints import blueprint_ids
from esper.config.errors import UsageError
from esper.controllers import RandomLegal
from esper.growth.flat import flat_actions
from esper.rl import ENV_ID, GrowthVectorEnv


@pytest.fixture(scope="module")
def env() -> GrowthVectorEnv:
    return vector_env()


def test_the_spaces_are_as_documented(env: GrowthVectorEnv) -> None:
    num_slots, width = len(env._experiment.slot_ids), env.config.observation.num_features
    observation, infos = env.reset(seed=0)
    assert env.single_action_space.n == 1 + num_slots * (len(blueprint_ids()) + 3)
    assert observation.shape == (NUM_ENVS, width + num_slots)
    assert env.action_masks().shape == (NUM_ENVS, env.single_action_space.n)
    assert infos == {}
    for single, batch in (
        (env.single_observation_space, env.observation_space),
        (env.single_action_space, env.action_space),
    ):
        assert batch_space(single, NUM_ENVS) == batch


def test_an_episode_ends_and_the_next_begins_in_the_same_step(env: GrowthVectorEnv) -> None:
    env.reset(seed=0)
    generator, total = np.random.default_rng(0), np.zeros(NUM_ENVS)
    for _ in range(NUM_EPOCHS):
        observation, reward, terminated, truncated, infos = env.step(uniform(env.action_masks(), generator))
        assert observation in env.observation_space
        assert not truncated.any()
        assert not infos["illegal"].any()
        total += reward
    assert terminated.all()
    assert infos["_final_obs"].all()
    epoch = 0
    assert [float(last[epoch]) for last in infos["final_obs"]] == [1.0] * NUM_ENVS
    assert (observation[:, epoch] == 0).all()
    for number, record in enumerate(infos["final_info"]["record"]):
        assert record.environment == number
        assert record.num_epochs == NUM_EPOCHS
        assert record.episode_return == pytest.approx(total[number] / env.config.reward.scale, abs=1e-4)


def test_gymnasiums_checks_pass(env: GrowthVectorEnv) -> None:
    made = gymnasium.make_vec(ENV_ID, num_envs=NUM_ENVS, preset="smoke", overrides=OVERRIDES)
    assert isinstance(made, GrowthVectorEnv)
    assert made.spec is not None
    assert made.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    env_checker.check_reset_seed_determinism(made)
    env_checker.check_reset_options(made)
    env_checker.check_reset_return_type(made)
    env_checker.check_seed_deprecation(made)
    for space, name in ((made.observation_space, "observation"), (made.action_space, "action")):
        env_checker.check_space_limit(space, name)
    first, again = ([made.reset(seed=7)[0], *(made.step(np.zeros(NUM_ENVS, int))[0] for _ in range(3))] for _ in "12")
    assert env_checker.data_equivalence(first, again, exact=True)
    kept = [(array, array.copy()) for array in (made.reset(seed=7)[0], made.step(np.zeros(NUM_ENVS, int))[0])]
    made.step(np.zeros(NUM_ENVS, int))
    assert all(np.array_equal(array, copy) for array, copy in kept), "arrays handed out must not change later"


def test_gymnasiums_own_wrappers_take_it(env: GrowthVectorEnv) -> None:
    counted = wrappers.vector.RecordEpisodeStatistics(env)
    wrapped = wrappers.vector.ClipReward(wrappers.vector.NormalizeReward(counted), -1, 1)
    wrapped = wrappers.vector.TransformAction(wrapped, lambda actions: actions % 2)
    wrapped = wrappers.vector.DictInfoToList(wrapped)
    wrapped.reset(seed=0)
    for _ in range(NUM_EPOCHS):
        observation, reward, *_, infos = wrapped.step(np.full(NUM_ENVS, 2))
    assert observation in wrapped.observation_space
    assert np.abs(reward).max() <= 1
    assert all(info["episode"]["l"] == NUM_EPOCHS for info in infos)
    assert all(info["final_obs"][0] == 1.0 for info in infos)


def test_the_dictionary_has_the_same_numbers(env: GrowthVectorEnv) -> None:
    named = vector_env(observations="dict")
    box, _ = env.reset(seed=3)
    both, _ = named.reset(seed=3)
    germinate = np.full(NUM_ENVS, int(np.flatnonzero(named.action_masks()[0])[1]))
    box, both = env.step(germinate)[0], named.step(germinate)[0]
    assert both in named.observation_space
    assert both["blueprints"].any()
    assert np.array_equal(box, np.hstack([both["features"], both["blueprints"].astype(np.float32) - 1]))
    assert isinstance(named.single_observation_space["features"], Box)


def test_the_factored_form_replays_an_episode_of_the_random_controller() -> None:
    plain, outside = plain_env(run_seed=5), vector_env("factored")
    controller = RandomLegal(torch.Generator().manual_seed(0))
    observation, _ = plain.reset(), outside.reset(seed=5)
    rewards = []
    for _ in range(NUM_EPOCHS):
        actions = controller.act(plain.view(observation))
        result = plain.step(actions)
        observation = result.observation
        _, reward, _, _, infos = outside.step(actions.numpy())
        assert reward.tolist() == result.reward.tolist()
        assert not infos["illegal"].any()
        rewards.append(reward)
    assert np.any(rewards)


def test_the_flat_form_replays_a_random_episode_of_its_actions(env: GrowthVectorEnv) -> None:
    plain, generator = plain_env(run_seed=5), np.random.default_rng(0)
    rows = flat_actions(plain.slot_ids, blueprint_ids())
    plain.reset()
    env.reset(seed=5)
    rewards = []
    for _ in range(NUM_EPOCHS):
        actions = uniform(env.action_masks(), generator)
        _, reward, *_ = env.step(actions)
        assert reward.tolist() == plain.step(rows[actions]).reward.tolist()
        rewards.append(reward)
    assert np.any(rewards)


@pytest.mark.slow
def test_no_legal_action_is_ever_illegal() -> None:
    num_envs, num_actions = 50, 10_000
    env, generator = vector_env(num_envs=num_envs), np.random.default_rng(0)
    env.reset(seed=0)
    for _ in range(num_actions // num_envs):
        *_, infos = env.step(uniform(env.action_masks(), generator))
        assert not infos["illegal"].any()
        assert env.growth is not None
        assert env.growth.history.last_success.numpy().all() or "_final_obs" in infos


def test_illegal_combinations_do_nothing_and_are_counted() -> None:
    env = vector_env("factored")
    env.reset(seed=0)
    cull = np.zeros((NUM_ENVS, 8), dtype=int)
    cull[0, 0] = 2  # in an empty slot
    _, _, _, _, infos = env.step(cull)
    assert infos["illegal"].tolist() == [True, False, False]
    masks = env.action_masks()
    assert masks.shape == (NUM_ENVS, int(env.single_action_space.nvec.sum()))
    offsets = np.concatenate([[0], env.single_action_space.nvec.cumsum()])
    assert all(masks[:, low:high].any(1).all() for low, high in pairwise(offsets))


@pytest.mark.parametrize(
    "actions", [np.full(NUM_ENVS, 49), np.full(NUM_ENVS, -1), np.zeros(NUM_ENVS), [[0]] * 3, 0, [0], [0] * 4, []]
)
def test_actions_outside_the_space_are_refused(env: GrowthVectorEnv, actions: object) -> None:
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"actions must be integers of shape \[3\], from 0, below 49, got"):
        env.step(actions)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_hosts_learn_whatever_mode_the_learner_acts_in(mode: Callable[[], AbstractContextManager[None]]) -> None:
    actions, found = np.zeros(NUM_ENVS, dtype=int), []
    for context in (nullcontext, mode):
        with context():
            env = vector_env()
            env.reset(seed=0)
            found.append([env.step(actions)[0] for _ in range(3)])
    assert np.array_equal(*found)


def test_a_step_before_the_first_reset_is_refused() -> None:
    env = vector_env()
    for use in (env.action_masks, lambda: env.step(np.zeros(NUM_ENVS, dtype=int))):
        with pytest.raises(gymnasium.error.ResetNeeded, match="must be reset before their first step"):
            use()


def test_bad_arguments_are_refused_in_one_line() -> None:
    cases = [
        ({"preset": "smok"}, UsageError, r"preset: unknown 'smok' \(did you mean 'smoke'\?\); choose from"),
        ({"overrides": ["slots.nmu_slots=2"]}, UsageError, r"unknown key 'slots.nmu_slots' \(did you mean"),
        ({"actions": "fat"}, ValueError, r"actions: unknown 'fat' \(did you mean 'flat'\?\); choose from"),
        ({"observations": "array"}, ValueError, "observations: unknown 'array'; choose from box, dict"),
        ({"overrides": ["trainer.num_envs=3"]}, ValueError, r"^overrides=\['trainer.num_envs=3'\]: .* by num_envs=2$"),
        ({"overrides": ["preset=smoke"]}, ValueError, r"^overrides=\['preset=smoke'\]: .* by preset='digits'$"),
        ({"overrides": "env.num_epochs=6"}, ValueError, r"^overrides='env.num_epochs=6': give a list of words"),
        ({"split": "test"}, ValueError, "split: unknown 'test'; choose from train, held_out, validation"),
    ]
    for options, error, message in cases:
        with pytest.raises(error, match=message) as raised:
            GrowthVectorEnv(2, **options)  # type: ignore[arg-type]
        assert "\n" not in str(raised.value)


def test_held_out_hosts_come_in_the_order_of_an_evaluation() -> None:
    env = vector_env(num_envs=4, split="held_out")
    env.reset(seed=0)
    for _ in range(NUM_EPOCHS):
        *_, infos = env.step(np.zeros(4, dtype=int))
    records = infos["final_info"]["record"]
    assert sorted(record.instance.index for record in records) == [0, 1, 2, 3]
    assert {record.instance.split for record in records} == {"held_out"}
    assert all(record.test_accuracy is not None for record in records)


def test_without_gymnasium_one_line_names_the_extra() -> None:
    program = "import sys; sys.modules['gymnasium'] = None; import esper.rl"
    done = run([sys.executable, "-c", program])
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: esper.rl needs gymnasium: pip install '.[rl]'"
