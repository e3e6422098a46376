"""A rollout is stored whole, detached, and handed out as whole environments."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from cue_world import CueWorld, filled_buffer, new_buffer, small_policy


def test_minibatches_partition_the_environments_in_an_order_of_the_generator() -> None:
    buffer = new_buffer(10, 2)
    parts = buffer.minibatches(4, torch.Generator().manual_seed(0))
    assert sorted(torch.cat(parts).tolist()) == list(range(10))
    assert sorted(len(part) for part in parts) == [2, 2, 3, 3]
    again = buffer.minibatches(4, torch.Generator().manual_seed(0))
    assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))
    other = buffer.minibatches(4, torch.Generator().manual_seed(1))
    assert not torch.equal(torch.cat(parts), torch.cat(other))


def test_more_minibatches_than_environments_are_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match="num_minibatches=4 is above the number of environments, 3"):
        new_buffer(3, 2).minibatches(4, torch.Generator())


def test_a_batch_is_the_same_environments_in_every_field() -> None:
    buffer = filled_buffer(small_policy())
    envs = torch.tensor([5, 2])
    data, batch = buffer.data, buffer.data[envs]
    names = ("features", "blueprint_index", "actions", "log_prob", "value", "q", "reward", "bootstrap_value", "ends")
    for name in names:
        assert torch.equal(getattr(batch, name), getattr(data, name)[envs]), name
    for name in ("op", "slot", "blueprint", "alpha"):
        assert torch.equal(getattr(batch.masks, name), getattr(data.masks, name)[envs]), name
    assert torch.equal(batch.hidden[1], data.hidden[1][envs])
    assert torch.equal(batch.num_legal_ops, data.masks.op[envs].sum(-1))


def test_stored_tensors_are_detached_copies() -> None:
    policy, world, buffer = small_policy(), CueWorld(2), new_buffer(2, 1)
    features, index, masks = world.observe()
    act = policy.act(features, index, masks, policy.initial_state(2), torch.Generator().manual_seed(0))
    tracked = (act.value * torch.ones(2, requires_grad=True)).requires_grad_()
    buffer.start(policy.initial_state(2))
    none = torch.zeros(2, dtype=torch.bool)
    buffer.add(
        features=features,
        blueprint_index=index,
        masks=masks,
        act=replace(act, value=tracked),
        reward=torch.ones(2),
        terminated=none,
        truncated=none,
        bootstrap_value=tracked,
    )
    features.fill_(77)
    assert not buffer.data.value.requires_grad
    assert not buffer.data.bootstrap_value.requires_grad
    assert (buffer.data.features != 77).all()


def test_an_unfinished_rollout_is_not_handed_out() -> None:
    buffer = new_buffer(2, 3)
    buffer.start(small_policy().initial_state(2))
    assert not buffer.full
    with pytest.raises(AssertionError, match="0 of 3 steps"):
        _ = buffer.data
