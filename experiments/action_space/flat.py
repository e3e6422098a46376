"""MaskablePPO of sb3-contrib on simulated growth, with its flat actions and default settings.

Axis legend: E = environments, N = held-out instances.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO

from esper.growth.actions import BLUEPRINT_IDS, NUM_BLUEPRINTS
from esper.rl import GrowthVecEnv
from esper.rl.actions import Flat
from esper.rl.observations import OneBox
from esper.runtime.rng import generator
from experiments.surrogate.growth import NUM_EPOCHS, NUM_SLOTS, PRESET, Instances
from experiments.surrogate.learner import recipe
from experiments.surrogate.simulated import SimulatedEnv
from experiments.surrogate.study import (
    NUM_HELD_OUT,
    NUM_TRAIN,
    RECENT_EPISODES,
    Check,
    Run,
    check,
    environment,
    held_out_env,
)

NUM_STEPS = 75
"""Steps of each environment in a rollout, 1,800 in all of the 2,048 that are the default, so that evaluations fall
between rollouts.
"""


class FlatEnv:
    """A simulated environment in the form of :class:`esper.rl.GrowthVectorEnv` with flat actions."""

    def __init__(self, env: SimulatedEnv) -> None:
        self.env, self.num_envs = env, env.num_envs
        self._seen = env.reset()
        self._actions = Flat(env.num_envs, env.slot_ids, BLUEPRINT_IDS)
        self._observations = OneBox(self._seen.features.shape[1], NUM_SLOTS, NUM_BLUEPRINTS, self._actions.num_choices)
        self.single_action_space, self.single_observation_space = self._actions.space, self._observations.space
        self.render_mode = None
        self._returns = np.zeros(self.num_envs)

    def reset(self, *, seed: int | None = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start new episodes, whatever the seed."""
        self._seen, self._returns = self.env.reset(), np.zeros(self.num_envs)
        return self._seen_in_a_box(), {}

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Advance one epoch; new episodes start with the last."""
        result = self.env.step(self._actions.rows(actions))
        self._seen, ended = result.observation, result.terminated.numpy()
        self._returns += result.reward.numpy()
        infos: dict[str, Any] = {"illegal": np.zeros(self.num_envs, dtype=np.bool_)}
        if ended.any():
            infos["final_obs"] = self._seen_in_a_box()
            records = [SimpleNamespace(episode_return=value, num_epochs=NUM_EPOCHS) for value in self._returns]
            infos["final_info"] = {"record": records}
            self.reset()
        return self._seen_in_a_box(), result.reward.numpy(), ended, np.zeros_like(ended), infos

    def _seen_in_a_box(self) -> Any:
        return self._observations.of(self._seen, self.action_masks())

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the legal actions, ``bool [E, n]``."""
        return self._actions.masks(self._seen.masks)


def train_maskable(seed: int, env_epochs: int) -> Run:
    """Train MaskablePPO, and evaluate on held-out instances after every quarter."""
    how = recipe(preset=PRESET)
    size, scale = how.config.trainer.num_envs, how.config.reward.scale
    env = environment(Instances.draw(NUM_TRAIN, "train"), size, generator("growth", seed), how)
    vec_env = GrowthVecEnv(FlatEnv(env))  # type: ignore[arg-type]
    model = MaskablePPO(
        "MlpPolicy", vec_env, n_steps=NUM_STEPS, seed=seed, device="cpu", stats_window_size=RECENT_EPISODES
    )
    held_out = Instances.draw(NUM_HELD_OUT, "held_out")
    run = Run(checks=[], explained_variance=[])
    for _ in range(4):
        model.learn(env_epochs // 4, reset_num_timesteps=False)
        sampled = float(np.mean([episode["r"] for episode in model.ep_info_buffer or []])) / scale
        run.checks.append(_look(model, held_out, sampled))
    return run


def _look(model: MaskablePPO, held_out: Instances, sampled: float) -> Check:
    how = recipe(preset=PRESET)
    simulated = held_out_env(held_out, how)
    env = FlatEnv(simulated)
    observation, total = env.reset()[0], 0.0
    for _ in range(NUM_EPOCHS - 1):
        actions, _ = model.predict(observation, action_masks=env.action_masks(), deterministic=True)
        observation, reward, *_ = env.step(actions)
        total += float(reward.mean())
    actions, _ = model.predict(observation, action_masks=env.action_masks(), deterministic=True)
    total += float(simulated.step(env._actions.rows(actions)).reward.mean())  # no reset, so that what was kept is there
    return check(simulated, held_out, model.num_timesteps, total / how.config.reward.scale, sampled)
