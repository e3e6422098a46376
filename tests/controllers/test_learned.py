"""The learned controller keeps modules greedily if it keeps them when sampled."""

from __future__ import annotations

import torch
from schema_defaults import growth_rules
from simulated import Simulated, fits_all

from esper.controllers import Learned
from esper.growth import Stage
from esper.growth.actions import NUM_BLUEPRINTS, Op
from esper.policy import GrowthPolicy, Normaliser
from esper.runtime.options import Greedy

PROBABILITIES = {
    Op.WAIT: 0.6,
    Op.GERMINATE: 0.16,
    Op.CULL: 0.02,
    Op.FOSSILIZE: 0.16,
    Op.SET_ALPHA_TARGET: 0.03,
    Op.EXTEND: 0.03,
}
"""Probabilities of a policy that sees nothing, before its masks: WAIT is the most probable op of every step."""


def kept(deterministic: bool, greedy: Greedy, num_envs: int = 16) -> float:
    """Share of hosts with a module that is kept at the end of an episode."""
    torch.manual_seed(0)
    policy = GrowthPolicy(2, NUM_BLUEPRINTS, num_probes=4, encoder_dim=8, lstm_dim=8, head_dim=8, value_dim=8)
    last = policy.heads.networks["op"][-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor([PROBABILITIES[op] for op in Op]).log())
    normaliser = Normaliser(torch.ones(policy.num_features, dtype=torch.bool))
    stream = torch.Generator().manual_seed(0)
    learned = Learned(policy, normaliser, num_envs, generator=stream, deterministic=deterministic, greedy=greedy)
    rules = growth_rules(max_developing=2, max_seeds=2, min_training_epochs=2, min_cull_age=2, embargo_epochs=1)
    world = Simulated(num_envs, fits_all(2), rules, sick=0.0)
    world.play(learned, 25)
    return float((world.state.stage == Stage.FOSSILIZED).any(1).float().mean())


def test_a_policy_that_keeps_when_sampled_keeps_by_hazard_and_waits_for_ever_by_mode() -> None:
    assert kept(deterministic=False, greedy=Greedy.mode) > 0.5
    assert kept(deterministic=True, greedy=Greedy.hazard) == 1.0
    assert kept(deterministic=True, greedy=Greedy.mode) == 0.0
