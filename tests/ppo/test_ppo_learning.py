"""PPO with the recurrent factored policy learns a task that needs op, slot, blueprint and memory."""

from __future__ import annotations

import pytest
import torch
from cue_world import CueWorld, collect, new_buffer, small_policy

from esper.ppo import PPOSettings, linear_schedule, ppo_update


@pytest.mark.slow
@pytest.mark.parametrize("critic", ["op", "state"])
def test_learns_to_name_the_cued_slot_and_blueprint_after_the_cue_is_gone(critic: str) -> None:
    """Random earns 1/27 per free step; without memory at most 11/27: 1 at the cue, 1/9 on the two steps after."""
    policy, world = small_policy(critic=critic), CueWorld(32)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3, eps=1e-5)
    buffer, hidden = new_buffer(32, 12), policy.initial_state(32)
    generator, order = torch.Generator().manual_seed(0), torch.Generator().manual_seed(1)
    settings = PPOSettings(update_epochs=4)
    shares = []
    for iteration in range(36):
        hidden = collect(policy, world, buffer, hidden, generator)
        free = buffer.data.num_legal_ops > 1
        shares.append(float(buffer.data.reward.sum() / free.sum()))
        ppo_update(policy, optimizer, buffer, settings, linear_schedule(iteration, 0.02, 0.0, 30), order)
    assert shares[0] < 0.15
    assert sum(shares[-3:]) / 3 > 0.9, shares
