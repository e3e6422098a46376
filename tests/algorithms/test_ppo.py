"""PPO's promises about its steps, its early stop and its diagnostics."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from cue_world import filled_buffer, small_policy
from helpers import NEEDS_FP16, RATIO_TOLERANCES
from schema_defaults import constant, ppo_settings

from esper.algorithms import PPO, PPOSettings, RolloutBuffer, UpdateResult, gae
from esper.growth.actions import HEADS, OP_GERMINATE, OP_NAMES, Head
from esper.policy import GrowthPolicy
from esper.telemetry.events import RatioExplosion
from tests.tiers import few

ONE_STEP = ppo_settings(num_minibatches=1, update_epochs=1)


def learner(policy: GrowthPolicy, settings: PPOSettings, gamma: float = 1.0) -> PPO:
    return PPO(policy, settings, gamma=gamma, generator=torch.Generator().manual_seed(2))


def update(policy: GrowthPolicy, buffer: RolloutBuffer, settings: PPOSettings, gamma: float = 1.0) -> UpdateResult:
    return learner(policy, settings, gamma).update(buffer, 1)


def descent(policy: GrowthPolicy, settings: PPOSettings, lr: float) -> PPO:
    """Take steps of plain gradient descent."""
    ppo = learner(policy, replace(settings, schedule=constant(lr, 0.0)))
    ppo.optimizer.optimizer = torch.optim.SGD(policy.parameters(), lr=lr)
    return ppo


def parameters(policy: GrowthPolicy) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in policy.parameters()]


def same(before: list[torch.Tensor], policy: GrowthPolicy) -> bool:
    return all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


@pytest.mark.parametrize("conditional", [False, True])
def test_the_first_passes_ratio_is_one(conditional: bool) -> None:
    policy = small_policy(conditional_heads=conditional)
    metrics = update(policy, filled_buffer(policy), ONE_STEP).metrics
    for name in ("ratio_min", "ratio_mean", "ratio_max"):
        assert metrics[f"losses/{name}"] == pytest.approx(1, abs=1e-5)
    assert metrics["losses/ratio_std"] == pytest.approx(0, abs=1e-5)
    assert metrics["losses/approx_kl"] == pytest.approx(0, abs=1e-9)
    assert metrics["losses/clipfrac"] == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=NEEDS_FP16)])
def test_the_first_passes_ratio_is_one_in_half_precision_too(dtype: torch.dtype) -> None:
    policy = small_policy(autocast_dtype=dtype)
    metrics = update(policy, filled_buffer(policy), ONE_STEP).metrics
    for name in ("ratio_min", "ratio_mean", "ratio_max"):
        assert metrics[f"losses/{name}"] == pytest.approx(1, abs=RATIO_TOLERANCES[dtype])


def test_scaling_the_loss_changes_no_step_but_one_that_overflows_which_is_skipped() -> None:
    policy = small_policy()
    buffer, twin, before = filled_buffer(policy), copy.deepcopy(policy), parameters(policy)
    scaled = learner(policy, ONE_STEP)
    scaled.optimizer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scaled.update(buffer, 1)
    assert not same(before, policy)
    update(twin, buffer, ONE_STEP)
    for ours, theirs in zip(policy.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
    assert scaled.optimizer.scaler.get_scale() == 2.0**10

    # Above the largest fp32 number once the loss is multiplied in, so that gradients are infinite.
    before, scaler = parameters(policy), torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-100)
    policy.trunk_norm.weight.register_hook(lambda gradient: gradient * 2.0**10)
    scaled = learner(policy, ppo_settings(num_minibatches=4, update_epochs=1))
    scaled.optimizer.scaler = scaler
    metrics = scaled.update(buffer, 1).metrics
    assert metrics["losses/skipped_minibatches"] == 1
    assert scaler.get_scale() == 2.0**27
    assert not same(before, policy), "the three minibatches after it are stepped on"
    assert all(parameter.isfinite().all() for parameter in policy.parameters())


def test_it_changes_the_policy_and_repeats_exactly_from_the_same_generator() -> None:
    policy = small_policy()
    twin, buffer, before = copy.deepcopy(policy), filled_buffer(policy), parameters(policy)
    settings = ppo_settings(update_epochs=2)
    first = update(policy, buffer, settings)
    assert not same(before, policy)
    assert update(twin, buffer, settings) == first
    assert same(parameters(policy), twin)


def test_kl_is_checked_before_the_step() -> None:
    policy = small_policy()
    buffer, before = filled_buffer(policy), parameters(policy)
    buffer.data.log_prob[..., Head.OP] -= 0.5 * (buffer.data.log_prob[..., Head.OP] != 0)
    metrics = update(policy, buffer, ppo_settings(target_kl=0.05)).metrics
    assert metrics["losses/early_stop_epoch"] == 0
    assert metrics["losses/approx_kl"] == pytest.approx(0.1487, abs=0.01)  # exp(0.5) - 1.5
    assert metrics["losses/policy_loss"] is None
    assert same(before, policy)
    metrics = update(policy, buffer, ppo_settings(target_kl=None, update_epochs=1)).metrics
    assert metrics["losses/early_stop_epoch"] is None
    assert not same(before, policy)


def test_kl_stops_later_epochs_at_one_and_a_half_times_the_target() -> None:
    policy = small_policy()
    settings = ppo_settings(lr=3e-4, target_kl=1e-3, update_epochs=50, num_minibatches=1)
    metrics = update(policy, filled_buffer(policy), settings).metrics
    stopped, kl = metrics["losses/early_stop_epoch"], metrics["losses/approx_kl"]
    assert stopped is not None
    assert 0 < stopped < 50
    assert kl is not None
    assert kl > 1.5e-3


@pytest.mark.parametrize("norm_adv", [False, True])
@pytest.mark.parametrize("column", ["reward", "value", "bootstrap_value"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@few(5)
def test_a_minibatch_with_a_non_finite_loss_is_skipped_and_the_others_are_not(
    norm_adv: bool, column: str, value: float
) -> None:
    """One environment's numbers reach neither the others nor the update's report."""
    policy = small_policy()
    buffer, before = filled_buffer(policy), parameters(policy)
    buffer.data.terminated[3, -1] = False
    getattr(buffer.data, column)[3] = value
    result = update(policy, buffer, ppo_settings(num_minibatches=8, update_epochs=1, norm_adv=norm_adv))
    assert result.metrics["losses/skipped_minibatches"] == 1
    assert all(number is None or math.isfinite(number) for number in result.metrics.values())
    assert not same(before, policy)
    assert all(parameter.isfinite().all() for parameter in policy.parameters())


def test_a_skipped_minibatch_leaves_the_metrics_finite() -> None:
    policy = small_policy()
    buffer = filled_buffer(policy)
    germinated = (buffer.data.actions[..., Head.OP] == OP_GERMINATE).nonzero()[0]
    buffer.data.log_prob[germinated[0], germinated[1]] = torch.nan
    metrics = update(policy, buffer, ppo_settings(num_minibatches=8, update_epochs=1)).metrics
    assert metrics["losses/skipped_minibatches"] == 1
    assert all(value is None or math.isfinite(value) for value in metrics.values())


def test_without_a_finite_minibatch_parameters_and_optimizer_stay_as_they_are() -> None:
    policy = small_policy()
    ppo = learner(policy, ppo_settings(num_minibatches=2, update_epochs=3))
    ppo.update(filled_buffer(policy), 1)
    optimizer = ppo.optimizer.optimizer
    buffer, before, state = filled_buffer(policy), parameters(policy), copy.deepcopy(optimizer.state_dict())
    buffer.data.reward[:] = torch.inf
    metrics = ppo.update(buffer, 2).metrics
    assert metrics["losses/skipped_minibatches"] == 6
    assert metrics["losses/value_loss"] is None
    assert metrics["losses/grad_norm"] is None
    assert same(before, policy)
    after = optimizer.state_dict()["state"]
    assert all(torch.equal(after[key]["exp_avg"], state["state"][key]["exp_avg"]) for key in after)
    assert all(after[key]["step"] == state["state"][key]["step"] for key in after)


def test_a_non_finite_gradient_is_skipped_too() -> None:
    policy = small_policy()
    buffer, before = filled_buffer(policy), parameters(policy)
    policy.trunk_norm.weight.register_hook(lambda gradient: gradient * torch.nan)
    assert update(policy, buffer, ONE_STEP).metrics["losses/skipped_minibatches"] == 1
    assert same(before, policy)


def test_a_ratio_explosion_names_the_worst_entries() -> None:
    policy = small_policy()
    buffer = filled_buffer(policy)
    data = buffer.data
    env, step = next((e, s) for e, s in (data.actions[..., Head.OP] == OP_GERMINATE).nonzero().tolist())
    data.log_prob[env, step, Head.BLUEPRINT] -= 4.0
    result = update(policy, buffer, replace(ONE_STEP, target_kl=None))
    (explosion,) = result.events
    assert isinstance(explosion, RatioExplosion)
    assert (explosion.iteration, explosion.update_epoch, explosion.minibatch, explosion.count) == (1, 0, 0, 1)
    entry = explosion.worst[0]
    assert [entry[key] for key in ("environment", "step", "head", "op")] == [env, step, "blueprint", OP_NAMES[1]]
    assert entry["new_log_prob"] - entry["old_log_prob"] == pytest.approx(4, abs=1e-4)
    assert entry["ratio"] == pytest.approx(54.6, rel=1e-3)
    assert result.metrics["losses/ratio_max"] == pytest.approx(54.6, rel=1e-3)


def test_an_ordinary_update_reports_no_explosion() -> None:
    policy = small_policy()
    assert update(policy, filled_buffer(policy), ppo_settings(update_epochs=2)).events == ()


def test_entropy_of_the_loss_counts_choice_steps_and_the_reported_one_counts_each_heads_own_choices() -> None:
    policy = small_policy()
    buffer = filled_buffer(policy)
    data = buffer.data
    evaluation = data.evaluate(policy)
    entropy, choice = evaluation.entropy.detach(), data.num_legal_ops > 1
    metrics = update(policy, buffer, ONE_STEP).metrics
    bonus = (entropy * torch.tensor(ONE_STEP.entropy_multipliers)).sum() / choice.sum()
    assert metrics["losses/entropy"] == pytest.approx(float(bonus), rel=1e-5)
    germinates = data.actions[..., Head.OP] == OP_GERMINATE
    of_slot = entropy[..., Head.SLOT][data.actions[..., Head.OP] != 0]
    assert metrics["losses/entropy/slot"] == pytest.approx(float(of_slot.mean()), rel=1e-5)
    assert metrics["losses/entropy/blueprint"] == pytest.approx(float(entropy[germinates, Head.BLUEPRINT].mean()))
    assert metrics["losses/entropy/alpha_curve"] is None  # CULL at alpha 0 has no curve
    assert metrics["losses/entropy/alpha_speed"] is None
    assert metrics["charts/forced_wait_share"] == pytest.approx(1 - float(choice.float().mean()))
    assert {f"losses/entropy/{head}" for head in HEADS} <= set(metrics)


def test_the_entropy_bonus_is_what_ent_coef_buys() -> None:
    """A high coefficient raises the entropy of a peaked policy when advantages are 0."""
    policy = small_policy()
    with torch.no_grad():
        policy.heads.networks["op"][-1].bias[1] += 3
    buffer = filled_buffer(policy)
    buffer.data.reward.zero_()
    settings = ppo_settings(ent_coef=1.0, norm_adv=False, vf_coef=0.0, target_kl=None, num_minibatches=1)
    before = update(policy, buffer, settings).metrics["losses/entropy/op"]
    after = update(policy, filled_buffer(policy), ONE_STEP).metrics["losses/entropy/op"]
    assert before is not None
    assert after is not None
    assert after > before + 0.02


def test_forced_steps_do_not_move_the_policy_but_train_the_critic() -> None:
    policy = small_policy()
    buffer = filled_buffer(policy)
    data = buffer.data
    free = data.num_legal_ops > 1
    reference = copy.deepcopy(policy)
    settings = replace(ONE_STEP, vf_coef=0.0, norm_adv=False)
    advantages, _ = gae(data.reward, data.value, data.bootstrap_value, data.terminated, data.truncated, 1.0, 0.95)
    descent(policy, settings, lr=0.1).update(buffer, 1)
    evaluation = data.evaluate(reference)
    joint = evaluation.log_prob.sum(-1)[free].exp() / data.log_prob.sum(-1)[free].exp()
    (-(joint * advantages[free]).mean()).backward()
    torch.nn.utils.clip_grad_norm_(reference.parameters(), settings.max_grad_norm)
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    for ours, expected in zip(policy.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-4)
    data.masks.op[..., 1:] = False
    data.actions.zero_()
    data.log_prob.zero_()
    before = parameters(policy)
    metrics = update(policy, buffer, ONE_STEP).metrics
    assert metrics["charts/forced_wait_share"] == 1
    assert metrics["losses/policy_loss"] == 0
    assert metrics["losses/ratio_max"] is None
    assert not same(before, policy)


def test_per_head_ratios_are_clipped_one_by_one() -> None:
    policy = small_policy()
    buffer = filled_buffer(policy)
    settings = replace(ONE_STEP, ratio="per_head", target_kl=None)
    assert update(copy.deepcopy(policy), buffer, settings).metrics["losses/clipfrac"] == 0
    relevant = (buffer.data.log_prob != 0).sum()
    germinated = buffer.data.actions[..., Head.OP] == OP_GERMINATE
    buffer.data.log_prob[germinated, Head.STYLE] -= 1.0
    share = update(copy.deepcopy(policy), buffer, settings).metrics["losses/clipfrac"]
    assert share == pytest.approx(float(germinated.sum() / relevant))


@pytest.mark.parametrize("norm_adv", [True, False])
def test_normalised_advantages_do_not_know_the_scale_of_the_reward(norm_adv: bool) -> None:
    moved = []
    for scale in (1.0, 100.0):
        policy = small_policy()
        buffer, before = filled_buffer(policy), parameters(policy)
        buffer.data.value.zero_()
        buffer.data.bootstrap_value.zero_()
        buffer.data.reward.mul_(scale)
        settings = replace(ONE_STEP, norm_adv=norm_adv, vf_coef=0.0, max_grad_norm=1e9)
        descent(policy, settings, lr=1e-3).update(buffer, 1)
        moved.append(torch.cat([(a - b).flatten() for a, b in zip(parameters(policy), before, strict=True)]))
    same_step = bool(torch.allclose(moved[0], moved[1], atol=1e-6))
    assert same_step == norm_adv


def test_value_clipping_holds_the_critic_to_what_it_said_in_the_rollout() -> None:
    """The loss of a critic that moved far towards the returns is as if it had not moved."""
    policy = small_policy()
    buffer = filled_buffer(policy)
    buffer.data.q.sub_(100)
    losses = [
        update(copy.deepcopy(policy), buffer, replace(ONE_STEP, clip_vloss=clip)).metrics["losses/value_loss"]
        for clip in (False, True)
    ]
    assert losses[0] < 10
    assert losses[1] > 4000


def test_gamma_discounts_advantages_and_the_returns_that_values_are_held_against() -> None:
    policy = small_policy()
    buffer = filled_buffer(policy)
    results = [update(copy.deepcopy(policy), buffer, ONE_STEP, gamma).metrics for gamma in (1.0, 0.5)]
    for name in ("value_loss", "explained_variance"):
        assert results[0][f"losses/{name}"] != results[1][f"losses/{name}"]


def test_gradient_norm_is_measured_before_and_limited_by_the_clip() -> None:
    policy = small_policy()
    buffer, before = filled_buffer(policy), parameters(policy)
    settings = replace(ONE_STEP, max_grad_norm=1e-3)
    metrics = descent(policy, settings, lr=1.0).update(buffer, 1).metrics
    norm = metrics["losses/grad_norm"]
    assert norm is not None
    assert norm > 1e-2
    moved = sum(float((a - b).detach().square().sum()) for a, b in zip(before, policy.parameters(), strict=True)) ** 0.5
    assert moved == pytest.approx(1e-3, rel=1e-2)


def test_explained_variance_is_of_stored_values_and_complete_episodes() -> None:
    policy = small_policy()
    buffer = filled_buffer(policy, num_steps=9)
    buffer.data.reward[:] = torch.arange(9.0)
    buffer.data.terminated[:] = False
    buffer.data.terminated[:, 7] = True
    buffer.data.value[:, :8] = torch.arange(9.0).flip(0).cumsum(0).flip(0)[:8]
    buffer.data.value[:, 8] = 1e3  # its episode is not over
    assert update(policy, buffer, ONE_STEP).metrics["losses/explained_variance"] == pytest.approx(1)
    buffer.data.reward.zero_()
    assert update(policy, buffer, ONE_STEP).metrics["losses/explained_variance"] is None
    buffer.data.terminated[:] = False
    assert update(policy, buffer, ONE_STEP).metrics["losses/explained_variance"] is None


def test_the_op_critic_leaves_the_op_head_its_gradient() -> None:
    """The op logits' gradient follows the true advantages of the ops in a single state with known payoffs. The sampled
    op's Q as the baseline would subtract exactly the differences between ops, and leave no gradient.

    The sampled op's Q as the baseline would subtract exactly what distinguishes the ops, and leave no gradient.
    """
    policy, num_envs = small_policy(), 3000
    buffer = filled_buffer(policy, num_envs=num_envs, num_steps=1, forced_share=0.0)
    data = buffer.data
    payoff = torch.tensor([0.3, -1.0, 2.0])  # of WAIT, GERMINATE and CULL, the legal ones
    data.reward[:] = payoff[data.actions[..., Head.OP]]
    data.terminated[:] = True
    data.value[:] = payoff.mean()  # V = sum pi Q of a fitted critic under a new, uniform policy
    bias = policy.heads.networks["op"][-1].bias
    before = bias.detach().clone()
    settings = replace(ONE_STEP, norm_adv=False, vf_coef=0.0, max_grad_norm=1e9)
    descent(policy, settings, lr=1.0).update(buffer, 1)
    moved = bias.detach() - before
    torch.testing.assert_close(moved[:3], (payoff - payoff.mean()) / 3, atol=0.05, rtol=0)
    assert (moved[3:] == 0).all()


def test_bad_settings_are_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match="ratio: unknown 'each'; choose from joint, per_head"):
        ppo_settings(ratio="each")
    with pytest.raises(ValueError, match="8 heads need as many entropy multipliers, not 2"):
        ppo_settings(entropy_multipliers=(1.0, 2.0))
    policy = small_policy()
    with pytest.raises(ValueError, match="num_minibatches=9 is above the number of environments, 8"):
        update(policy, filled_buffer(policy), ppo_settings(num_minibatches=9))
