"""A2C: its loss by hand, the effect of a step, and what stays unchanged."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from cue_world import filled_buffer, small_policy
from helpers import NEEDS_FP16
from schema_defaults import a2c_settings, constant

from esper.algorithms import A2C, A2CSettings, RolloutBuffer, UpdateResult
from esper.growth.actions import Head
from esper.policy import GrowthPolicy


def update(policy: GrowthPolicy, buffer: RolloutBuffer, settings: A2CSettings) -> UpdateResult:
    return A2C(policy, settings, gamma=0.9).update(buffer, 1)


def parameters(policy: GrowthPolicy) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])


def test_one_step_of_one_environment_by_hand() -> None:
    """Two legal ops have probability 1/2 each; the chosen one pays 3 where 1 was expected."""
    policy = small_policy(critic="state")
    buffer = filled_buffer(policy, num_envs=1, num_steps=1, forced_share=0.0)
    data = buffer.data
    data.masks.op[..., 2:] = False  # WAIT or GERMINATE, of which a new policy prefers neither
    data.actions.zero_()
    data.reward.fill_(3.0)
    data.value.fill_(1.0)
    data.terminated.fill_(True)
    with torch.no_grad():
        policy.heads.networks["op"][-1].weight.zero_()
        said = float(data.evaluate(policy).q)
    metrics = update(policy, buffer, a2c_settings()).metrics
    assert metrics["losses/policy_loss"] == pytest.approx(2 * math.log(2), rel=1e-5)
    assert metrics["losses/value_loss"] == pytest.approx((said - 3) ** 2 / 2, rel=1e-5)
    assert metrics["losses/entropy"] == pytest.approx(1.0, rel=1e-5)  # normalised, of one head
    assert metrics["losses/entropy/op"] == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("critic", ["op", "state"])
def test_a_step_follows_the_gradient_of_the_whole_rollout_clipped(critic: str) -> None:
    policy = small_policy(critic=critic)
    buffer, reference = filled_buffer(policy), copy.deepcopy(policy)
    data, choice = buffer.data, buffer.data.num_legal_ops > 1
    a2c = A2C(policy, replace(a2c_settings(), schedule=constant(0.1, 0.03)), gamma=0.9)
    a2c.optimizer.optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    norm = a2c.update(buffer, 1).metrics["losses/grad_norm"]
    advantages, returns = data.advantages(0.9, 0.95)
    said = data.evaluate(reference)
    gain = (advantages * said.log_prob.sum(-1))[choice].mean() + 0.03 * said.entropy.sum(-1)[choice].mean()
    (0.25 * (said.q - returns).square().mean() - gain).backward()
    assert float(torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)) == pytest.approx(norm, rel=1e-4)
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    torch.testing.assert_close(parameters(policy), parameters(reference), atol=1e-6, rtol=1e-4)


def test_what_was_rewarded_becomes_more_probable() -> None:
    policy = small_policy()
    buffer = filled_buffer(policy)
    data = buffer.data
    data.value.zero_()
    data.reward.copy_(data.actions[..., Head.OP] == 1)
    before = data.evaluate(policy).log_prob.sum(-1).detach()
    update(policy, buffer, a2c_settings(gae_lambda=0.0, vf_coef=0.0, ent_coef=0.0))
    moved = data.evaluate(policy).log_prob.sum(-1).detach() - before
    assert float(moved[data.reward > 0].mean()) > 1e-3


@pytest.mark.parametrize("column", ["reward", "value", "log_prob"])
def test_a_rollout_that_is_not_finite_changes_nothing_and_is_counted(column: str) -> None:
    policy = small_policy()
    buffer, before = filled_buffer(policy), parameters(policy)
    getattr(buffer.data, column)[2] = torch.nan
    metrics = update(policy, buffer, a2c_settings()).metrics
    if column == "log_prob":  # what the rollout's policy said is no part of the loss: there is no ratio
        assert metrics["losses/skipped_minibatches"] == 0
    else:
        assert metrics["losses/skipped_minibatches"] == 1
        assert metrics["losses/policy_loss"] is metrics["losses/grad_norm"] is None
        assert torch.equal(before, parameters(policy))
    assert all(value is None or math.isfinite(value) for value in metrics.values())


@NEEDS_FP16
def test_in_fp16_an_overflow_is_a_skipped_step_at_a_lower_scale() -> None:
    policy = small_policy(autocast_dtype=torch.float16)
    a2c = A2C(policy, a2c_settings(), gamma=0.9)
    buffer, before = filled_buffer(policy), parameters(policy)
    assert set(a2c.shared) == {"optimizer", "scaler"}
    a2c.optimizer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    assert a2c.update(buffer, 1).metrics["losses/skipped_minibatches"] == 1
    assert a2c.optimizer.scaler.get_scale() == 2.0**59
    assert torch.equal(before, parameters(policy))
    a2c.optimizer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    assert a2c.update(buffer, 1).metrics["losses/skipped_minibatches"] == 0
    assert not torch.equal(before, parameters(policy))
