"""Growing hosts as an environment of torchrl.

Axis legend: E = environments, D = features, S = slots, n = flat actions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from esper.rl.vector_env import GrowthVectorEnv

try:
    from tensordict import TensorDict
    from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, Unbounded
    from torchrl.envs import EnvBase
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("GrowthTorchEnv needs torchrl: pip install '.[torchrl]'", name=error.name) from error


class GrowthTorchEnv(EnvBase):  # type: ignore[misc]
    """A :class:`~esper.rl.GrowthVectorEnv` for torchrl, ``batch_size [E]``.

    ``action``, ``int64 [E]``, is the index of a flat action, ``action_mask``, ``bool [E, n]``, says which are legal:
    torchrl's ``ActionMask`` makes random actions legal, ``MaskedCategorical`` those of a policy. Observations are
    ``features``, ``float32 [E, D]``, and ``blueprints``, ``int64 [E, S]``, as in the vector environment, and
    ``illegal``, ``bool [E, 1]``, about the last action; ``reward`` is ``float32 [E, 1]``, scaled by ``reward.scale``.
    The observation after the last step of an episode is its own.

    Args:
        num_envs: E.
        options: of :class:`~esper.rl.GrowthVectorEnv`, but for ``actions`` and ``observations``.

    Raises:
        UsageError: the configuration is refused.
        ValueError: ``actions`` or ``observations`` are given; on a reset, of single hosts whose episode has not ended.
    """

    def __init__(self, num_envs: int = 1, **options: Any) -> None:
        for name in options.keys() & {"actions", "observations"}:
            raise ValueError(f"{name}={options[name]!r}: torchrl has flat actions and observations as a dictionary")
        super().__init__(device="cpu", batch_size=[num_envs])
        self.growth = GrowthVectorEnv(num_envs, actions="flat", observations="dict", **options)
        spaces: Any = self.growth.single_observation_space
        box, choices = spaces["features"], spaces["action_mask"].n
        kinds = torch.from_numpy(spaces["blueprints"].nvec).expand(num_envs, -1)
        low, high = (torch.from_numpy(bound).expand(num_envs, -1) for bound in (box.low, box.high))
        self.observation_spec = Composite(
            features=Bounded(low, high),
            blueprints=MultiCategorical(kinds[0], shape=kinds.shape),
            action_mask=Binary(choices, shape=(num_envs, choices), dtype=torch.bool),
            illegal=Binary(1, shape=(num_envs, 1), dtype=torch.bool),
            shape=(num_envs,),
        )
        self.action_spec = Categorical(choices, shape=(num_envs,))
        self.reward_spec = Unbounded(shape=(num_envs, 1))
        self._seed: int | None = None
        self._ended = torch.zeros(num_envs, dtype=torch.bool)
        self._begun: Any = None  # observations of episodes that have begun

    def _set_seed(self, seed: int | None) -> None:
        self._seed = seed

    def _reset(self, tensordict: Any = None, **_: Any) -> Any:
        asked = None if tensordict is None else tensordict.get("_reset", None)
        which = torch.ones_like(self._ended) if asked is None else asked.flatten()
        if which.all() and (self._seed is not None or not self._ended.all()):
            observation, _infos = self.growth.reset(seed=self._seed)
            self._begun, self._seed = self._seen(observation, torch.zeros_like(self._ended)), None
        elif (which & ~self._ended).any():
            raise ValueError("hosts whose episode has not ended cannot be reset alone: hosts train together")
        self._ended = self._ended & ~which
        return self._begun.clone()

    def _step(self, tensordict: Any) -> Any:
        observation, reward, ended, _, infos = self.growth.step(tensordict["action"].numpy())
        illegal, self._ended = torch.from_numpy(infos["illegal"]), torch.from_numpy(ended)
        self._begun = self._seen(observation, illegal)
        found = self._begun.clone()
        for number in ended.nonzero()[0]:
            found[number] = self._seen(infos["final_obs"][number], illegal[number])
        done = self._ended[:, None]
        found.update({"reward": torch.from_numpy(reward)[:, None].float(), "done": done, "terminated": done.clone()})
        return found

    def _seen(self, observation: dict[str, Any], illegal: Tensor) -> Any:
        arrays = {name: torch.from_numpy(values.copy()) for name, values in observation.items()}
        arrays["action_mask"] = arrays["action_mask"].bool()
        return TensorDict(arrays | {"illegal": illegal.bool()[..., None]}, batch_size=illegal.shape)
