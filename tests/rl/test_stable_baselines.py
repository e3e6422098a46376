"""Stable-Baselines3 takes growing hosts, and MaskablePPO trains on either form of actions."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from small import NUM_ENVS, NUM_EPOCHS, uniform, vector_env
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor

from esper.rl import GrowthVecEnv

STEPS = 600


class Illegal(BaseCallback):
    """Counts illegal actions, and ended episodes."""

    illegal = episodes = 0

    def _on_step(self) -> bool:
        self.illegal += sum(info["illegal"] for info in self.locals["infos"])
        self.episodes += sum("episode" in info for info in self.locals["infos"])
        return True


def test_it_has_masks_terminal_observations_and_episodes() -> None:
    env, generator = GrowthVecEnv(vector_env()), np.random.default_rng(0)
    assert is_masking_supported(env)
    assert env.env_is_wrapped(Monitor) == [True] * NUM_ENVS
    env.seed(2)
    first = env.reset()
    env.seed(2)
    assert np.array_equal(env.reset(), first)
    for _ in range(NUM_EPOCHS):
        masks = get_action_masks(env)
        assert np.array_equal(env.env_method("action_masks", indices=[1])[0], masks[1])
        observation, reward, done, infos = env.step(uniform(masks, generator))
    assert reward.dtype == np.float32
    assert done.all()
    for info, next_observation in zip(infos, observation, strict=True):
        assert info["terminal_observation"][0] == 1.0
        assert next_observation[0] == 0.0
        assert info["episode"]["r"] == info["record"].episode_return
        assert info["episode"]["l"] == NUM_EPOCHS
    with pytest.raises(AttributeError, match="no method 'seed_all', only 'action_masks'"):
        env.env_method("seed_all")


def test_it_takes_wrapped_hosts_and_refuses_what_else_is_no_host() -> None:
    env = GrowthVecEnv(RecordEpisodeStatistics(vector_env()))
    env.reset()
    assert np.array_equal(get_action_masks(env), np.stack(env.env_method("action_masks")))
    with pytest.raises(ValueError, match=r"options=\{'hosts': 3\}: none exist"):
        env.set_options({"hosts": 3})
    with pytest.raises(TypeError, match="env must be a GrowthVectorEnv, got SyncVectorEnv"):
        GrowthVecEnv(SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")]))


@pytest.mark.slow
@pytest.mark.parametrize(("actions", "observations"), [("flat", "box"), ("factored", "dict")], ids=["flat", "factored"])
def test_maskable_ppo_trains(actions: str, observations: str) -> None:
    env, illegal = GrowthVecEnv(vector_env(actions, observations=observations)), Illegal()
    policy = "MultiInputPolicy" if observations == "dict" else "MlpPolicy"
    model = MaskablePPO(policy, env, n_steps=NUM_EPOCHS, batch_size=10, seed=0, device="cpu")
    before = [parameter.clone() for parameter in model.policy.parameters()]
    model.learn(STEPS, callback=illegal)
    assert model.num_timesteps == STEPS
    assert illegal.episodes == STEPS // NUM_EPOCHS
    assert (illegal.illegal == 0) == (actions == "flat")
    assert all(not parameter.equal(old) for parameter, old in zip(model.policy.parameters(), before, strict=True))
