"""Growth as an environment for other people's learners; needs ``pip install '.[rl]'``.

``gymnasium.make_vec("esper.rl:esper/Growth-v0", num_envs=24, preset="digits")`` or :class:`GrowthVectorEnv` for
gymnasium, :class:`GrowthVecEnv` for Stable-Baselines3, :class:`GrowthTorchEnv` for torchrl.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import gymnasium
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("esper.rl needs gymnasium: pip install '.[rl]'", name=error.name) from error

from esper.rl.vector_env import GrowthVectorEnv

if TYPE_CHECKING:
    from esper.rl.stable_baselines import GrowthVecEnv
    from esper.rl.torch_rl import GrowthTorchEnv

__all__ = ["ENV_ID", "GrowthTorchEnv", "GrowthVecEnv", "GrowthVectorEnv"]

ENV_ID = "esper/Growth-v0"

gymnasium.register(ENV_ID, vector_entry_point="esper.rl.vector_env:GrowthVectorEnv")


_LAZY = {"GrowthVecEnv": "stable_baselines", "GrowthTorchEnv": "torch_rl"}
"""Names for one library each, which takes a second and which the others do without, and their modules."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'esper.rl' has no attribute {name!r}")
    return getattr(import_module(f"esper.rl.{_LAZY[name]}"), name)
