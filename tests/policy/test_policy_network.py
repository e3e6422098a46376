"""The growth policy acts legally, and an update recomputes exactly what a rollout recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers import action
from policy_cases import (
    all_actions,
    assert_legal,
    masks_at,
    open_masks,
    opinionated_policy,
    random_masks,
    random_view,
    repeated_masks,
    rng,
)
from torch import Tensor

from esper.envs.features import NUM_BASE_FEATURES, NUM_SLOT_FEATURES, num_features
from esper.growth.actions import (
    HEADS,
    NUM_BLUEPRINTS,
    NUM_HEADS,
    NUM_OPS,
    OP_CULL,
    OP_HEADS,
    OP_SET_ALPHA_TARGET,
    OP_WAIT,
    Head,
    Op,
    canonical,
)
from esper.policy import GrowthPolicy
from esper.runtime.options import BodyName, SlotHead
from tests.tiers import few


def count_parameters(policy: GrowthPolicy) -> int:
    return sum(parameter.numel() for parameter in policy.parameters())


def test_parameter_counts_at_three_slots() -> None:
    plain = count_parameters(GrowthPolicy(3, 13, conditional_heads=False, slot_head="flat"))
    assert plain == pytest.approx(930_000, rel=0.05)
    assert count_parameters(GrowthPolicy(3, 13, slot_head="flat")) == pytest.approx(960_000, rel=0.05)
    state = GrowthPolicy(3, 13, conditional_heads=False, slot_head="flat", critic="state")
    assert count_parameters(state) == plain - NUM_OPS * 128


def test_a_new_policy_is_nearly_uniform() -> None:
    torch.manual_seed(0)
    policy, generator = GrowthPolicy(3, NUM_BLUEPRINTS), rng()
    features, blueprint_index = random_view(64, generator=generator)
    masks, hidden = open_masks(64), policy.initial_state(64)
    act = policy.act(features, blueprint_index, masks, hidden, generator)
    seen = features[:, None], blueprint_index[:, None], masks[torch.arange(64)[:, None]], act.actions[:, None]
    entropy = policy.evaluate(*seen, hidden, torch.ones(64, 1, dtype=torch.bool)).entropy[:, 0]
    assert (entropy[act.log_prob != 0] > 0.999).all()


@pytest.mark.parametrize("num_slots", [1, 3, 8])
@pytest.mark.parametrize("deterministic", [False, True])
def test_actions_are_legal_and_canonical(num_slots: int, deterministic: bool) -> None:
    policy, generator = opinionated_policy(num_slots, num_probes=4), rng()
    features, blueprint_index = random_view(200, num_slots=num_slots, num_probes=4, generator=generator)
    masks = random_masks(200, num_slots=num_slots, generator=generator)
    act = policy.act(features, blueprint_index, masks, policy.initial_state(200), generator, deterministic)
    assert_legal(act.actions, masks)
    assert torch.equal(act.actions, canonical(act.actions, masks.alpha))
    assert len(act.actions[:, Head.OP].unique()) > 3


def test_deterministic_takes_the_most_likely_choice_of_each_head_and_draws_nothing() -> None:
    policy, generator = opinionated_policy(), rng()
    features, blueprint_index = random_view(100, generator=generator)
    masks = random_masks(100, generator=generator)
    before = torch.get_rng_state()
    act = policy.act(features, blueprint_index, masks, policy.initial_state(100), deterministic=True)
    assert torch.equal(before, torch.get_rng_state())
    for _ in range(20):
        sample = policy.act(features, blueprint_index, masks, policy.initial_state(100), generator)
        same = torch.ones(100, dtype=torch.bool)  # the choices so far agree, so the heads' distributions do
        for head in Head:
            assert (act.log_prob[same, head] >= sample.log_prob[same, head]).all()
            same &= act.actions[:, head] == sample.actions[:, head]


def test_sampling_depends_on_the_generator_alone() -> None:
    policy = opinionated_policy()
    features, blueprint_index = random_view(50, generator=rng())
    masks, hidden = random_masks(50, generator=rng(1)), policy.initial_state(50)
    actions = [policy.act(features, blueprint_index, masks, hidden, rng(seed)).actions for seed in (7, 7, 8)]
    assert torch.equal(actions[0], actions[1])
    assert not torch.equal(actions[0], actions[2])


@pytest.mark.parametrize("conditional", [False, True])
def test_probabilities_of_all_distinct_legal_actions_sum_to_one(conditional: bool) -> None:
    policy, generator = opinionated_policy(2, conditional_heads=conditional), rng()
    features, blueprint_index = random_view(1, num_slots=2, generator=generator)
    masks = replace(random_masks(1, num_slots=2, generator=generator), alpha=torch.tensor([[0.0, 0.5]]))
    everything = all_actions(2)
    actions = canonical(everything, masks.alpha.expand(len(everything), -1)).unique(dim=0)
    op, slot, blueprint = actions[:, Head.OP], actions[:, Head.SLOT], actions[:, Head.BLUEPRINT]
    legal = masks.op[0, op] & (masks.slot[0, op, slot] | (op == OP_WAIT))
    legal &= masks.blueprint[0, slot, blueprint] | (op != Op.GERMINATE)
    actions = actions[legal]
    evaluation = policy.evaluate(
        features.expand(len(actions), 1, -1),
        blueprint_index.expand(len(actions), 1, -1),
        repeated_masks(masks, len(actions)),
        actions.unsqueeze(1),
        policy.initial_state(len(actions)),
        torch.ones(len(actions), 1, dtype=torch.bool),
    )
    assert float(evaluation.log_prob.detach().double().sum(-1).exp().sum()) == pytest.approx(1, abs=1e-5)


RELEVANT_CASES = [(op, 0.5, 1, set(OP_HEADS[op])) for op in Op] + [
    (Op.CULL, 0.0, 1, {Head.OP, Head.SLOT}),
    (Op.CULL, 0.5, 0, {Head.OP, Head.SLOT, Head.ALPHA_SPEED}),
    (Op.SET_ALPHA_TARGET, 0.5, 0, set(OP_HEADS[Op.SET_ALPHA_TARGET]) - {Head.ALPHA_CURVE}),
]


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize(("op", "alpha", "speed", "relevant"), RELEVANT_CASES)
def test_exactly_the_heads_that_matter_have_log_probability_entropy_and_gradient(
    op: Op, alpha: float, speed: int, relevant: set[Head], conditional: bool
) -> None:
    policy, generator = opinionated_policy(scale=3.0, conditional_heads=conditional), rng()
    features, blueprint_index = random_view(4, 2, generator=generator)
    actions = torch.ones(4, 2, NUM_HEADS, dtype=torch.int64)
    actions[..., Head.OP], actions[..., Head.ALPHA_SPEED] = op, speed
    masks = open_masks(4, 2, alpha=alpha)
    actions = canonical(actions, masks.alpha)
    ends = torch.zeros(4, 2, dtype=torch.bool)
    evaluation = policy.evaluate(features, blueprint_index, masks, actions, policy.initial_state(4), ends)
    (evaluation.log_prob + evaluation.entropy).sum().backward()
    for head in Head:
        gradients = [parameter.grad for parameter in policy.heads.networks[HEADS[head]].parameters()]
        moved = any(gradient is not None and bool((gradient != 0).any()) for gradient in gradients)
        assert moved == (head in relevant), head
        assert bool((evaluation.log_prob[..., head] != 0).all()) == (head in relevant)
        assert bool((evaluation.entropy[..., head] != 0).all()) == (head in relevant)
        assert bool((evaluation.num_legal[..., head] > 0).all()) == (head in relevant)
        if head not in relevant:
            assert (evaluation.log_prob[..., head] == 0).all()
            assert (evaluation.entropy[..., head] == 0).all()


@pytest.mark.parametrize("critic", ["op", "state"])
@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("slot_head", SlotHead)
@pytest.mark.parametrize("end_share", [0.0, 0.1, 1.0])
@few(8)
def test_update_recomputes_what_the_rollout_recorded(
    conditional: bool, slot_head: str, critic: str, end_share: float
) -> None:
    num_envs, num_steps, generator = 6, 12, rng()
    policy = opinionated_policy(
        scale=10.0, num_probes=2, conditional_heads=conditional, slot_head=slot_head, critic=critic
    )
    features, blueprint_index = random_view(num_envs, num_steps, num_probes=2, generator=generator)
    masks = random_masks(num_envs, num_steps, generator=generator)
    ends = torch.rand(num_envs, num_steps, generator=generator) < end_share
    start = torch.randn(num_envs, 16, generator=generator), torch.randn(num_envs, 16, generator=generator)
    hidden, acts = start, []
    for step in range(num_steps):
        acts.append(policy.act(features[:, step], blueprint_index[:, step], masks_at(masks, step), hidden, generator))
        running = ~ends[:, step, None]
        hidden = acts[-1].hidden[0] * running, acts[-1].hidden[1] * running
    actions = torch.stack([act.actions for act in acts], 1)
    evaluation = policy.evaluate(features, blueprint_index, masks, actions, start, ends)
    for name in ("log_prob", "q"):
        recorded = torch.stack([getattr(act, name) for act in acts], 1)
        torch.testing.assert_close(getattr(evaluation, name), recorded, atol=1e-5, rtol=0)
    if end_share == 0.1:
        deaf = policy.evaluate(features, blueprint_index, masks, actions, start, torch.zeros_like(ends))
        assert (deaf.log_prob - evaluation.log_prob).abs().max() > 1e-3  # so the ends above did matter


def test_the_lstm_runs_once_unless_an_episode_ends_inside_the_rollout() -> None:
    policy, generator = opinionated_policy(), rng()
    features, blueprint_index = random_view(3, 10, generator=generator)
    masks, actions = open_masks(3, 10), torch.zeros(3, 10, 8, dtype=torch.int64)
    calls: list[int] = []
    policy.lstm.register_forward_hook(lambda *_: calls.append(1))
    ends = torch.zeros(3, 10, dtype=torch.bool)
    ends[:, -1] = True
    policy.evaluate(features, blueprint_index, masks, actions, policy.initial_state(3), ends)
    assert len(calls) == 1
    ends[0, 3] = ends[1, 3] = ends[2, 6] = True
    calls.clear()
    policy.evaluate(features, blueprint_index, masks, actions, policy.initial_state(3), ends)
    assert len(calls) == 3


def test_value_is_the_mean_of_q_under_the_masked_op_distribution_and_blind_to_the_sampled_op() -> None:
    policy, generator = opinionated_policy(), rng()
    features, blueprint_index = (part.expand(40, -1) for part in random_view(1, generator=generator))
    masks = open_masks(40)
    masks.op[:, OP_CULL] = False
    act = policy.act(features, blueprint_index, masks, policy.initial_state(40), generator)
    ops = act.actions[:, Head.OP]
    assert len(ops.unique()) > 2
    assert (act.value == act.value[0]).all()
    assert len(act.q.unique()) == len(ops.unique())
    actions = torch.zeros(NUM_OPS, 1, NUM_HEADS, dtype=torch.int64)
    actions[:, 0, Head.OP] = torch.arange(NUM_OPS)
    evaluation = policy.evaluate(
        features[:NUM_OPS].unsqueeze(1),
        blueprint_index[:NUM_OPS].unsqueeze(1),
        repeated_masks(masks, len(actions)),
        actions,
        policy.initial_state(NUM_OPS),
        torch.ones(NUM_OPS, 1, dtype=torch.bool),
    )
    probabilities = evaluation.log_prob[:, 0, Head.OP].exp() * masks.op[0]
    assert float((probabilities * evaluation.q[:, 0]).sum().detach()) == pytest.approx(float(act.value[0]), abs=1e-5)


@pytest.mark.parametrize("critic", ["op", "state"])
def test_bootstrap_value_equals_the_value_of_acting_and_leaves_the_hidden_state(critic: str) -> None:
    policy, generator = opinionated_policy(critic=critic), rng()
    features, blueprint_index = random_view(5, generator=generator)
    masks = random_masks(5, generator=generator)
    hidden = torch.randn(5, 16, generator=generator), torch.randn(5, 16, generator=generator)
    kept = hidden[0].clone(), hidden[1].clone()
    value = policy.value(features, blueprint_index, masks, hidden)
    assert torch.equal(value, policy.act(features, blueprint_index, masks, hidden, generator).value)
    assert torch.equal(hidden[0], kept[0])
    assert torch.equal(hidden[1], kept[1])
    assert not torch.equal(value, policy.value(features, blueprint_index, masks, policy.initial_state(5)))


def test_a_pointer_scores_every_slot_by_the_same_weights() -> None:
    """Without the slot's number, swapping two slots swaps their logits and keeps the others."""
    policy, generator = opinionated_policy(scale=10.0, num_probes=2, slot_head="pointer"), rng()
    pointer = policy.heads.networks[HEADS[Head.SLOT]]
    with torch.no_grad():
        pointer.score[0].weight[:, 16 + NUM_OPS : 16 + NUM_OPS + 3] = 0
    slot_dim = pointer.score[0].in_features - 16 - NUM_OPS - 3
    common, slots = torch.randn(5, 16 + NUM_OPS, generator=generator), torch.randn(5, 3, slot_dim, generator=generator)
    order = torch.tensor([2, 0, 1])
    logits = pointer(common, slots)
    torch.testing.assert_close(pointer(common, slots[:, order]), logits[:, order])
    assert logits.std(-1).min() > 1e-3


def test_conditional_heads_see_op_slot_and_the_chosen_slots_inputs() -> None:
    """If the trunk is constant, the chosen slot's inputs change the blueprint head, and no other slot's do."""
    policy, generator = opinionated_policy(num_probes=2), rng()
    with torch.no_grad():
        policy.encoder[0].weight.zero_()
    features, blueprint_index = random_view(1, 1, num_probes=2, generator=generator)
    blueprint_index[:] = 0
    actions = action(Op.GERMINATE, slot=0, blueprint=2, style=1, tempo=1, alpha_target=1)[None, None]

    def log_prob(features: Tensor, blueprint_index: Tensor, actions: Tensor = actions) -> Tensor:
        ends, hidden = torch.ones(1, 1, dtype=torch.bool), policy.initial_state(1)
        return (
            policy.evaluate(features, blueprint_index, open_masks(1, 1), actions, hidden, ends).log_prob[0, 0].detach()
        )

    reference = log_prob(features, blueprint_index)

    def moved_by(slot: int) -> list[bool]:
        first_feature, first_probe = NUM_BASE_FEATURES + NUM_SLOT_FEATURES * slot, num_features(3) + 2 * slot
        results = []
        for at in (first_feature, first_feature + NUM_SLOT_FEATURES - 1, first_probe, first_probe + 1):
            changed = features.clone()
            changed[..., at] += 1
            results.append(log_prob(changed, blueprint_index))
        changed_index = blueprint_index.clone()
        changed_index[..., slot] = -1
        results.append(log_prob(features, changed_index))
        return [bool((result[Head.BLUEPRINT] != reference[Head.BLUEPRINT]).item()) for result in results]

    assert moved_by(slot=0) == [True] * 5
    assert moved_by(slot=1) == [False] * 5
    assert moved_by(slot=2) == [False] * 5
    cull, retarget = (actions.clone() for _ in range(2))
    cull[..., Head.OP], retarget[..., Head.OP] = OP_CULL, OP_SET_ALPHA_TARGET
    slot_of_cull = log_prob(features, blueprint_index, cull)[Head.SLOT]
    assert slot_of_cull != log_prob(features, blueprint_index, retarget)[Head.SLOT]


@pytest.mark.parametrize("body", BodyName)
def test_the_price_is_seen_by_the_encoder_and_is_no_feature_of_a_slot(body: str) -> None:
    policy = opinionated_policy(num_probes=2, price=True, body=body)
    features, blueprint_index = random_view(4, num_probes=2, generator=rng())
    priced = torch.cat([features, torch.ones(4, 1)], dim=1)
    moved = priced + torch.eye(priced.shape[1])[-1]
    first, second = (policy._seen(each, blueprint_index, open_masks(4)) for each in (priced, moved))
    assert torch.equal(first.slots, second.slots)
    rows = [policy._body.rows(seen) for seen in (first, second)]
    assert ((rows[0] != rows[1]).sum(-1) == 1).all()


def test_compiled_parts_give_the_same_results_and_the_same_state_dict() -> None:
    policy, generator = opinionated_policy(), rng()
    features, blueprint_index = random_view(4, generator=generator)
    masks, hidden = random_masks(4, generator=generator), policy.initial_state(4)
    before, keys = policy.act(features, blueprint_index, masks, hidden, rng()), list(policy.state_dict())
    policy.compile(backend="eager")
    after = policy.act(features, blueprint_index, masks, hidden, rng())
    assert torch.equal(before.actions, after.actions)
    torch.testing.assert_close(before.log_prob, after.log_prob)
    assert list(policy.state_dict()) == keys


def test_bad_shapes_and_names_are_refused_with_the_numbers() -> None:
    with pytest.raises(ValueError, match="critic: unknown 'q'; choose from op, state"):
        GrowthPolicy(3, NUM_BLUEPRINTS, critic="q")
    policy = opinionated_policy()
    with pytest.raises(ValueError, match=f"takes {num_features(3)} features, the observation has 91"):
        policy.act(torch.zeros(1, 91), torch.zeros(1, 3, dtype=torch.int64), open_masks(1), policy.initial_state(1))


def test_a_mask_without_a_legal_slot_raises_with_the_stage_summary() -> None:
    policy, masks = opinionated_policy(), open_masks(3)
    masks.op[:, OP_WAIT] = False
    masks.slot[2] = False
    features, blueprint_index = random_view(3, generator=rng())
    with pytest.raises(ValueError, match=r"head 'slot' has no legal choice in environment 2 \(all DORMANT\)"):
        policy.act(
            features,
            blueprint_index,
            masks,
            policy.initial_state(3),
            rng(),
            describe_row=lambda row: "all DORMANT",
        )
