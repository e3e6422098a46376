"""MaskablePPO of sb3-contrib learns to grow networks: ``python -m examples.maskable_ppo``.

With one random seed: 0.9 points above never growing for random legal actions on held-out hosts, 3.9 after four
rollouts, which are 1,920 epochs of hosts. Comparisons over run seeds are in benchmarks/rl.md.
"""

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks

from esper.rl import GrowthVecEnv, GrowthVectorEnv

HOSTS, EPOCHS, ROLLOUTS = 24, 20, 4
OVERRIDES = [
    f"env.num_epochs={EPOCHS}",
    "instances.num_train=24",
    f"evaluation.num_hosts={HOSTS}",
    "env.mapping=matmul",
]


def hosts(split: str) -> GrowthVecEnv:
    return GrowthVecEnv(GrowthVectorEnv(HOSTS, preset="digits", overrides=OVERRIDES, split=split))


def played(env: GrowthVecEnv, model: MaskablePPO | None) -> list:
    """Play one episode on every host, with random legal actions if there is no model."""
    generator, records = np.random.default_rng(0), []
    env.seed(0)
    observation = env.reset()
    while len(records) < HOSTS:
        masks = get_action_masks(env)
        if model is None:
            actions = np.array([generator.choice(np.flatnonzero(legal)) for legal in masks])
        else:
            actions, _ = model.predict(observation, action_masks=masks, deterministic=True)
        observation, _, _, infos = env.step(actions)
        records += [info["record"] for info in infos if "record" in info]
    return records


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = MaskablePPO("MlpPolicy", hosts("train"), n_steps=EPOCHS, seed=0, device="cpu")
    model.learn(ROLLOUTS * HOSTS * EPOCHS)
    held_out = hosts("held_out")
    for name, learned in (("random", None), ("maskable_ppo", model)):
        records = played(held_out, learned)
        points, test = (np.mean([getattr(r, key) for r in records]) for key in ("episode_return", "test_accuracy"))
        kept = np.mean([record.num_fossilized for record in records])
        print(f"{name}: {points:+.2f} points above never growing, {kept:.2f} modules kept, {100 * test:.1f} % of test")
