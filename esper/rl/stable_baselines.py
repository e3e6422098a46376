"""Growing hosts as a vector environment of Stable-Baselines3, which takes none of gymnasium.

Axis legend: E = environments.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from esper.rl.vector_env import GrowthVectorEnv

try:
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import VecEnv
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("GrowthVecEnv needs Stable-Baselines3: pip install '.[rl]'", name=error.name) from error

MASKS = "action_masks"
"""Name of the only method of single environments."""


class GrowthVecEnv(VecEnv):
    """A :class:`~esper.rl.GrowthVectorEnv` for Stable-Baselines3 and sb3-contrib, as ``MaskablePPO`` needs it.

    ``infos[e]`` has ``illegal``; at the end of an episode also ``terminal_observation``, ``record`` and ``episode``,
    whose ``r`` is the return in points: unscaled, discounted by ``ppo.gamma``.

    Args:
        env: the environment, perhaps in wrappers of gymnasium.

    Raises:
        TypeError: it is another one.
    """

    def __init__(self, env: VectorEnv[Any, Any, NDArray[Any]]) -> None:
        growing = env.unwrapped
        if not isinstance(growing, GrowthVectorEnv):
            raise TypeError(f"env must be a GrowthVectorEnv, got {growing!r:.80}")
        self.env, self._growing, self._began = env, growing, perf_counter()
        self._chosen: NDArray[Any] | None = None
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)

    def reset(self) -> Any:
        """Start new episodes, with the seed given to ``seed()`` since the last reset, if any."""
        observation, _ = self.env.reset(seed=self._seeds[0])
        self._reset_seeds()
        return observation

    def step_async(self, actions: NDArray[Any]) -> None:
        """Remember the actions."""
        self._chosen = actions

    def step_wait(self) -> Any:
        """Apply the actions and train every host one epoch."""
        observation, reward, ended, _, infos = self.env.step(self._chosen)
        found: list[dict[str, Any]] = [{"illegal": bool(illegal)} for illegal in infos["illegal"]]
        for e in ended.nonzero()[0]:
            record = infos["final_info"]["record"][e]
            seconds = round(perf_counter() - self._began, 6)
            episode = {"r": record.episode_return, "l": record.num_epochs, "t": seconds}
            found[e] |= {"terminal_observation": infos["final_obs"][e], "record": record, "episode": episode}
        return observation, reward.astype(np.float32), ended, found

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Call a method of single environments, of which there is only ``action_masks``."""
        if method_name != MASKS:
            raise AttributeError(f"growing hosts have no method {method_name!r}, only {MASKS!r}")
        masks = self._growing.action_masks()
        return [masks[e] for e in self._get_indices(indices)]

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of the whole environment once for each."""
        return [getattr(self.env, attr_name) for _ in self._get_indices(indices)]

    def set_options(self, options: Any = None) -> None:
        """Refuse options of resets; none exist."""
        if options:
            raise ValueError(f"options={options}: none exist")

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refuse to change single environments."""
        raise AttributeError(f"{attr_name!r} of single growing hosts cannot be set")

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """Return true for ``Monitor``, whose entries ``episode`` infos have, and false for all others."""
        return [wrapper_class is Monitor for _ in self._get_indices(indices)]

    def close(self) -> None:
        """Close the environment."""
        self.env.close()
