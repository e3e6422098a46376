"""Growth as an environment for other people's learners; needs ``pip install '.[rl]'``.

``gymnasium.make_vec("esper.rl:esper/Growth-v0", num_envs=24, preset="digits")`` or :class:`GrowthVectorEnv` for
gymnasium, :class:`GrowthVecEnv` for Stable-Baselines3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import gymnasium
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("esper.rl needs gymnasium: pip install '.[rl]'", name=error.name) from error

from esper.rl.vector_env import GrowthVectorEnv

if TYPE_CHECKING:
    from esper.rl.stable_baselines import GrowthVecEnv

__all__ = ["ENV_ID", "GrowthVecEnv", "GrowthVectorEnv"]

ENV_ID = "esper/Growth-v0"

gymnasium.register(ENV_ID, vector_entry_point="esper.rl.vector_env:GrowthVectorEnv")


def __getattr__(name: str) -> Any:
    if name != "GrowthVecEnv":
        raise AttributeError(f"module 'esper.rl' has no attribute {name!r}")
    from esper.rl.stable_baselines import GrowthVecEnv  # takes a second, and gymnasium does without it

    return GrowthVecEnv
