"""Imitation: its loss by hand, what a policy learns from another's rollout, and what it leaves out."""

from __future__ import annotations

import copy

import pytest
import torch
from cue_world import CUED_BLUEPRINTS, CueWorld, new_buffer, small_policy
from schema_defaults import imitation_settings
from torch import Tensor

from esper.algorithms import Imitation, ImitationSettings, RolloutBuffer, UpdateResult
from esper.growth.actions import OP_GERMINATE, Head, Style
from esper.policy import GrowthPolicy

NUM_ENVS, NUM_STEPS = 12, 9


def right(world: CueWorld, legal: Tensor) -> Tensor:
    """Return the actions of highest reward: GERMINATE with the cue of the episode, wherever that is legal."""
    actions = torch.zeros(world.num_envs, 8, dtype=torch.int64)
    actions[:, Head.OP] = OP_GERMINATE
    actions[:, Head.SLOT], actions[:, Head.BLUEPRINT] = world.slot, CUED_BLUEPRINTS[world.kind]
    actions[:, Head.STYLE] = Style.LINEAR_ADD
    return actions * legal[:, None]


def played(policy: GrowthPolicy, seed: int = 0, forced_share: float = 0.2) -> RolloutBuffer:
    """Let the right actions be taken, while the policy looks on."""
    world, buffer = CueWorld(NUM_ENVS, forced_share=forced_share, seed=seed), new_buffer(NUM_ENVS, NUM_STEPS)
    world.age.zero_()
    hidden = policy.initial_state(NUM_ENVS)
    buffer.start(hidden)
    for _ in range(NUM_STEPS):
        features, index, masks = world.observe()
        act = policy.act(features, index, masks, hidden, given=right(world, masks.op[:, OP_GERMINATE]))
        reward, ended = world.step(act.actions)
        buffer.add(
            features=features,
            blueprint_index=index,
            masks=masks,
            act=act,
            reward=reward,
            terminated=ended,
            truncated=torch.zeros_like(ended),
            bootstrap_value=torch.zeros(NUM_ENVS),
        )
        hidden = act.hidden[0] * ~ended[:, None], act.hidden[1] * ~ended[:, None]
    return buffer


def imitation(policy: GrowthPolicy, settings: ImitationSettings | None = None) -> Imitation:
    return Imitation(policy, settings or imitation_settings(), gamma=0.9, generator=torch.Generator().manual_seed(0))


def update(policy: GrowthPolicy, buffer: RolloutBuffer) -> UpdateResult:
    return imitation(policy).update(buffer, 1)


def test_a_step_follows_the_gradient_of_cross_entropy_and_squared_error() -> None:
    policy = small_policy()
    buffer, reference = played(policy), copy.deepcopy(policy)
    settings = imitation_settings(num_minibatches=1, update_epochs=1, ent_coef=0.03, vf_coef=0.5)
    one = imitation(policy, settings)
    one.optimizer.optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    norm = one.update(buffer, 1).metrics["losses/grad_norm"]
    data = buffer.data
    returns = torch.zeros_like(data.reward)
    for step in reversed(range(NUM_STEPS)):
        following = 0 if step + 1 == NUM_STEPS else returns[:, step + 1] * ~data.terminated[:, step]
        returns[:, step] = data.reward[:, step] + 0.9 * following
    said = data.evaluate(reference)
    gain = (said.log_prob.sum(-1) + 0.03 * said.entropy.sum(-1))[data.choice].mean()
    (0.25 * (said.q - returns).square().mean() - gain).backward()
    assert float(torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)) == pytest.approx(norm, rel=1e-4)
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    for learned, expected in zip(policy.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(learned, expected, atol=1e-6, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("critic", ["op", "state"])
def test_what_is_imitated_becomes_the_greedy_choice_and_its_returns_the_values(critic: str) -> None:
    """In episodes never seen before, too, whose first step alone shows what is right in all of them."""
    policy = small_policy(critic=critic)
    algorithm = imitation(policy, imitation_settings(lr=3e-3, num_minibatches=2, update_epochs=20))
    metrics = [algorithm.update(played(policy, seed, forced_share=0), seed + 1).metrics for seed in range(8)]
    assert metrics[0]["imitation/agreement"] < 0.2
    assert metrics[-1]["imitation/agreement"] > 0.9
    assert metrics[-1]["losses/explained_variance"] > 0.7
    assert metrics[-1]["losses/cross_entropy"] < 0.3 * metrics[0]["losses/cross_entropy"]
    assert {each["imitation/left_out"] for each in metrics} == {0}


def test_actions_that_the_policy_has_not_are_left_out_and_counted_and_their_returns_learned() -> None:
    policy = small_policy(choices={Head.STYLE: [Style.SIGMOID_ADD]})
    buffer = played(policy)
    heads = {name: value.clone() for name, value in policy.heads.state_dict().items()}
    before = [value.clone() for value in policy.value_head.parameters()]
    metrics = update(policy, buffer).metrics
    assert metrics["imitation/left_out"] == 1, "all are linear"
    assert metrics["losses/cross_entropy"] == metrics["imitation/agreement"] == 0
    assert all(torch.equal(value, heads[name]) for name, value in policy.heads.state_dict().items())
    assert any(not torch.equal(*pair) for pair in zip(before, policy.value_head.parameters(), strict=True))


def test_a_head_without_meaning_for_an_op_does_not_leave_it_out() -> None:
    policy = small_policy(choices={Head.ALPHA_SPEED: [2], Head.ALPHA_CURVE: [3], Head.STYLE: [Style.LINEAR_ADD]})
    assert update(policy, played(policy)).metrics["imitation/left_out"] == 0


def test_agreement_counts_the_actions_whose_every_head_is_the_most_probable_choice() -> None:
    policy = small_policy()
    buffer = played(policy)
    data, hidden, equal = buffer.data, policy.initial_state(NUM_ENVS), []
    for step in range(NUM_STEPS):
        seen = data.features[:, step], data.blueprint_index[:, step], data.masks[:, step], hidden
        equal.append((policy.act(*seen, deterministic=True).actions == data.actions[:, step]).all(-1))
        running = ~data.terminated[:, step, None]
        hidden = tuple(part * running for part in policy.act(*seen, given=data.actions[:, step]).hidden)
    same = torch.stack(equal, 1) & data.choice
    metrics = update(policy, buffer).metrics
    assert metrics["imitation/agreement"] == pytest.approx(float(same.sum() / data.choice.sum()))
    assert metrics["imitation/agreement_acting"] == pytest.approx(metrics["imitation/agreement"]), "it always acts"


def test_a_rollout_that_is_not_finite_changes_nothing_and_is_counted() -> None:
    policy = small_policy()
    buffer, before = played(policy), [parameter.clone() for parameter in policy.parameters()]
    buffer.data.reward.fill_(torch.nan)
    metrics = update(policy, buffer).metrics
    assert metrics["losses/skipped_minibatches"] == 32
    assert metrics["losses/cross_entropy"] is None
    assert all(torch.equal(*pair) for pair in zip(before, policy.parameters(), strict=True))
