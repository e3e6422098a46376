"""A policy with a shared body treats slots alike, whatever their number, and recomputes what it did."""

from __future__ import annotations

import pytest
import torch
from policy_cases import assert_legal, masks_at, open_masks, opinionated_policy, random_masks, random_view, rng
from torch import Tensor

from esper.envs.features import NUM_BASE_FEATURES, NUM_SLOT_FEATURES, feature_kinds, feature_table
from esper.growth.actions import ActionMasks, Head
from esper.policy import ActResult, Evaluation, GrowthPolicy, Hidden, Normaliser, bodies, moments
from esper.policy.bodies import relative_depth

NUM_PROBES, NUM_ENVS, NUM_STEPS = 2, 4, 6
View = tuple[Tensor, Tensor, ActionMasks]


def shared(num_slots: int = 3, **options: object) -> GrowthPolicy:
    return opinionated_policy(num_slots, NUM_PROBES, scale=10.0, body="shared", **options)


def view(num_slots: int, seed: int = 0) -> View:
    generator = rng(seed)
    shape = (NUM_ENVS, NUM_STEPS)
    features, index = random_view(*shape, num_slots=num_slots, num_probes=NUM_PROBES, generator=generator)
    return features, index, random_masks(*shape, num_slots=num_slots, generator=generator)


def reordered(seen: View, order: Tensor, missing: float = 0.0) -> View:
    """Let slot ``order[i]`` come i-th; -1 is a slot of padding, whose features are ``missing``."""
    features, index, masks = seen
    count = index.shape[-1]
    base, slots, probes = features.split((NUM_BASE_FEATURES, count * NUM_SLOT_FEATURES, count * NUM_PROBES), -1)
    padding = order < 0

    def blocks(values: Tensor) -> Tensor:
        each = values.unflatten(-1, (count, -1))[..., order, :].masked_fill(padding[:, None], missing)
        return each.flatten(-2)

    return (
        torch.cat([base, blocks(slots), blocks(probes)], -1),
        index[..., order].masked_fill(padding, -1),
        ActionMasks(
            op=masks.op,
            slot=masks.slot[..., order] & ~padding,
            blueprint=masks.blueprint[..., order, :] & ~padding[:, None],
            alpha=masks.alpha[..., order].masked_fill(padding, 0.0),
        ),
    )


def play(policy: GrowthPolicy, seen: View, ends: Tensor, start: Hidden) -> list[ActResult]:
    features, index, masks = seen
    hidden, acts, generator = start, [], rng(7)
    for step in range(NUM_STEPS):
        acts.append(policy.act(features[:, step], index[:, step], masks_at(masks, step), hidden, generator))
        running = ~ends[:, step, None]
        hidden = acts[-1].hidden[0] * running, acts[-1].hidden[1] * running
    return acts


def ends_of(share: float) -> Tensor:
    return torch.rand(NUM_ENVS, NUM_STEPS, generator=rng(3)) < share


def evaluated(policy: GrowthPolicy, seen: View, actions: Tensor) -> Evaluation:
    return policy.evaluate(*seen, actions, policy.initial_state(NUM_ENVS), ends_of(0.2))


def same_up_to(order: Tensor, policy: GrowthPolicy, seen: View, other: GrowthPolicy, changed: View) -> None:
    """All that the heads say about actions is the same when slot ``order[i]`` comes i-th."""
    ends = ends_of(0.2)
    acts = play(policy, seen, ends, policy.initial_state(NUM_ENVS))
    actions = torch.stack([act.actions for act in acts], 1)
    new = actions.clone()
    place = (order[:, None] == torch.arange(policy.num_slots)).long().argmax(0)
    used = seen[2].slot.any(-1).gather(-1, actions[..., Head.OP, None]).squeeze(-1)
    new[..., Head.SLOT] = torch.where(used, place[actions[..., Head.SLOT]], 0)
    before, after = evaluated(policy, seen, actions), evaluated(other, changed, new)
    assert len(actions[..., Head.SLOT].unique()) == policy.num_slots
    for name in ("log_prob", "entropy", "q"):
        torch.testing.assert_close(getattr(after, name), getattr(before, name), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("order", [[2, 0, 1], [1, 0, 2]])
def test_logits_permute_with_the_slots(order: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    seen, moved = view(3), torch.tensor(order)
    policy = shared(slot_depth=False)
    same_up_to(moved, policy, seen, policy, reordered(seen, moved))
    told = shared()
    with pytest.raises(AssertionError):
        same_up_to(moved, told, seen, told, reordered(seen, moved))  # depths stay, so that places do differ
    depths = relative_depth(torch.ones(3, dtype=torch.bool))
    before = evaluated(told, seen, torch.zeros(NUM_ENVS, NUM_STEPS, 8, dtype=torch.int64)).q
    monkeypatch.setattr(bodies, "relative_depth", lambda valid: depths[moved].expand(valid.shape))
    after = evaluated(told, reordered(seen, moved), torch.zeros(NUM_ENVS, NUM_STEPS, 8, dtype=torch.int64)).q
    torch.testing.assert_close(after, before, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("order", [[0, 1, 2, -1, -1], [-1, 0, -1, 1, 2]])
@pytest.mark.parametrize("slot_depth", [True, False])
def test_padding_changes_nothing(order: list[int], slot_depth: bool) -> None:
    policy, wide = shared(slot_depth=slot_depth), shared(len(order), slot_depth=slot_depth)
    wide.load_state_dict(policy.state_dict())
    seen, moved = view(3), torch.tensor(order)
    same_up_to(moved, policy, seen, wide, reordered(seen, moved, missing=1.7))


@pytest.mark.parametrize("num_slots", range(1, 9))
@pytest.mark.parametrize("deterministic", [False, True])
def test_the_same_weights_act_on_any_number_of_slots(num_slots: int, deterministic: bool) -> None:
    policy = shared(num_slots)
    policy.load_state_dict(shared(3).state_dict())
    features, index, masks = (part[:, 0] for part in view(num_slots, seed=1))
    act = policy.act(features, index, masks, policy.initial_state(NUM_ENVS), rng(), deterministic)
    assert_legal(act.actions, masks)
    assert act.hidden[0].shape == (NUM_ENVS, policy.state_dim)
    assert policy.for_any_slots
    assert not opinionated_policy(num_slots).for_any_slots


@pytest.mark.parametrize("end_share", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("options", [{}, {"conditional_heads": False}, {"critic": "state"}, {"slot_depth": False}])
def test_an_update_recomputes_what_the_rollout_recorded(options: dict[str, object], end_share: float) -> None:
    policy, seen, ends = shared(**options), view(3), ends_of(end_share)
    start = tuple(torch.randn(NUM_ENVS, policy.state_dim, generator=rng(seed)) for seed in (4, 5))
    acts = play(policy, seen, ends, start)
    evaluation = policy.evaluate(*seen, torch.stack([act.actions for act in acts], 1), start, ends)
    for name in ("log_prob", "q"):
        recorded = torch.stack([getattr(act, name) for act in acts], 1)
        torch.testing.assert_close(getattr(evaluation, name), recorded, atol=1e-5, rtol=0)


def test_every_slot_has_a_state_of_its_own() -> None:
    """Features of slot 1 move its own state most, and those of others through mean and maximum."""
    policy = shared()
    features, index = (part[:, 0] for part in view(3)[:2])
    masks = open_masks(NUM_ENVS)
    other = features.clone()
    other[:, NUM_BASE_FEATURES + NUM_SLOT_FEATURES : NUM_BASE_FEATURES + 2 * NUM_SLOT_FEATURES] += 1.0
    first, second = (
        policy.act(each, index, masks, policy.initial_state(NUM_ENVS), rng()).hidden[0] for each in (features, other)
    )
    moved = (first - second).unflatten(-1, (3, -1)).norm(dim=-1).mean(0)
    assert moved.argmax() == 1
    assert (moved > 0).all()


def test_statistics_of_features_are_those_of_all_slots() -> None:
    kinds = feature_kinds(3, ["dead_channels"])
    table = feature_table(3, ["dead_channels"])
    continuous = torch.tensor([feature.continuous for feature in table])
    rows = torch.randn(50, len(table), generator=rng()) * 3 + torch.arange(len(table))
    normaliser = Normaliser(continuous, kinds)
    for part in rows.split((20, 30)):
        normaliser.merge(moments(part))
    columns = [feature.index for feature in table if feature.name.endswith(".dead_channels")]
    seen = rows[:, columns].double()
    kind = kinds[columns[0]]
    assert len(columns) == 3
    assert float(normaliser.mean[kind]) == pytest.approx(float(seen.mean()))
    assert float(normaliser.m2[kind] / normaliser.count) == pytest.approx(float(seen.var(correction=0)))
    expected = (seen - seen.mean()) / seen.std(correction=0)
    torch.testing.assert_close(normaliser(rows)[:, columns], expected.float().clamp(-5, 5))
    wide = Normaliser(torch.ones(len(feature_table(8, ["dead_channels"]))), feature_kinds(8, ["dead_channels"]))
    wide.load_state_dict(normaliser.state_dict())


def test_a_logit_for_each_slot_does_not_go_with_a_shared_body() -> None:
    with pytest.raises(ValueError, match="slot_head='flat' has a logit for each slot"):
        shared(slot_head="flat")


def test_depth_counts_what_is_no_padding() -> None:
    valid = torch.tensor([[True, True, True], [True, False, True], [False, True, False]])
    assert relative_depth(valid)[valid].tolist() == [-1, 0, 1, -1, 1, 0]
