"""The policy's optimizer takes the steps of PyTorch's plain Adam, or those of the state that it is given."""

from __future__ import annotations

import copy

import torch
from cue_world import small_policy

from esper.algorithms.optimizer import EagerAdam
from esper.policy import GrowthPolicy

STEPS = 20


def steps(policy: GrowthPolicy, optimizer: torch.optim.Optimizer, seed: int = 0) -> list[torch.Tensor]:
    """Return the parameters after steps along the same random gradients."""
    draws = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        for parameter in policy.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=draws)
        optimizer.step()
    return [parameter.detach() for parameter in policy.parameters()]


def test_it_takes_the_steps_of_plain_adam() -> None:
    policy = small_policy()
    plain = copy.deepcopy(policy)
    taken = steps(policy, EagerAdam(policy.parameters(), lr=1e-3, eps=1e-5))
    expected = steps(plain, torch.optim.Adam(plain.parameters(), lr=1e-3, eps=1e-5, fused=False))
    for one, other in zip(taken, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_with_the_state_of_a_plain_adam_it_goes_on_to_the_bit() -> None:
    policy = small_policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3, eps=1e-5, fused=False)
    steps(policy, optimizer)
    resumed = copy.deepcopy(policy)
    adam = EagerAdam(resumed.parameters(), lr=1e-3, eps=1e-5)
    adam.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for one, other in zip(steps(resumed, adam, 1), steps(policy, optimizer, 1), strict=True):
        assert torch.equal(one, other)
