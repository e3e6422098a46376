"""PPO and A2C with the recurrent factored policy learn a task that needs op, slot, blueprint and memory."""

from __future__ import annotations

import pytest
import torch
from cue_world import CueWorld, collect, new_buffer, small_policy
from schema_defaults import a2c_settings, ppo_settings

from esper.algorithms import A2C, PPO, Algorithm, Schedule
from esper.policy import GrowthPolicy


def ppo(policy: GrowthPolicy) -> Algorithm:
    schedule = Schedule(lr=3e-3, lr_final=3e-3, ent_coef=0.02, ent_coef_final=0.0, num_iterations=30)
    settings = ppo_settings(update_epochs=4, schedule=schedule)
    return PPO(policy, settings, gamma=1.0, generator=torch.Generator().manual_seed(1))


def a2c(policy: GrowthPolicy) -> Algorithm:
    schedule = Schedule(lr=5e-3, lr_final=5e-3, ent_coef=0.02, ent_coef_final=0.0, num_iterations=120)
    return A2C(policy, a2c_settings(schedule=schedule), gamma=1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "num_iterations", "critic"), [(ppo, 36, "op"), (ppo, 36, "state"), (a2c, 150, "op")]
)
def test_learns_to_name_the_cued_slot_and_blueprint_after_the_cue_is_gone(
    algorithm: object, num_iterations: int, critic: str
) -> None:
    """Random earns 1/27 per free step; without memory at most 11/27: 1 at the cue, 1/9 on the two steps after."""
    policy, world = small_policy(critic=critic), CueWorld(32)
    learner, generator = algorithm(policy), torch.Generator().manual_seed(0)
    buffer, hidden = new_buffer(32, 12), policy.initial_state(32)
    shares = []
    for iteration in range(1, num_iterations + 1):
        hidden = collect(policy, world, buffer, hidden, generator)
        shares.append(float(buffer.data.reward.sum() / buffer.data.choice.sum()))
        learner.update(buffer, iteration)
    assert shares[0] < 0.15
    assert sum(shares[-3:]) / 3 > 0.9, shares
