"""Instances: fair shares of families, held-out apart from train, deterministic draws."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.envs.instances import Instance, InstancePool, instance_data
from esper.tasks import IGNORED, Split, load_task

FAMILIES = {"intact": 2.0, "starved_0": 1.0, "starved_2": 1.0, "centre_tap_12": 1.0, "few_classes": 1.0}


def pool(
    split: str = "train", count: int = 60, families: dict[str, float] = FAMILIES, base_seed: int = 0
) -> InstancePool:
    return InstancePool.build(
        families, count, split, host_family="cnn", num_blocks=3, num_classes=10, base_seed=base_seed
    )


def test_every_run_of_hosts_has_each_price_once_and_prices_change_nothing_else() -> None:
    prices = [0.5, 2.0, 8.0]
    shape = {"host_family": "cnn", "num_blocks": 3, "num_classes": 10}
    priced = InstancePool.build(FAMILIES, 20, "train", rent_weights=prices, **shape)  # type: ignore[arg-type]
    drawn = [instance.rent_weight for instance in priced]
    assert all(sorted(drawn[lap : lap + 3]) == prices for lap in range(0, 18, 3))  # type: ignore[type-var]
    assert drawn != (drawn[:3] * 7)[:20], "in another order each time"
    assert [replace(instance, rent_weight=None) for instance in priced] == list(pool(count=20))


def seeds(instances: InstancePool) -> set[int]:
    return {seed for instance in instances for seed in (instance.host_seed, instance.order_seed)}


def test_families_get_their_shares() -> None:
    assert Counter(instance.family for instance in pool()) == {
        "intact": 20,
        "starved_0": 10,
        "starved_2": 10,
        "centre_tap_12": 10,
        "few_classes": 10,
    }


def test_what_does_not_divide_goes_to_the_largest_remainders() -> None:
    """4 in proportion 5 : 3 : 1 is 2.22 : 1.33 : 0.44; the floors leave one over. Equal remainders: first come."""
    uneven = Counter(x.family for x in pool(count=4, families={"intact": 5, "starved_0": 3, "starved_1": 1}))
    assert uneven == {"intact": 2, "starved_0": 1, "starved_1": 1}
    even = Counter(x.family for x in pool(count=7, families={"intact": 1, "starved_0": 1, "starved_1": 1}))
    assert even == {"intact": 3, "starved_0": 2, "starved_1": 2}


@given(
    st.lists(st.floats(0.01, 100), min_size=1, max_size=4),
    st.integers(1, 80),
)
def test_shares_are_within_one_of_exact_and_add_up(weights: list[float], count: int) -> None:
    families = dict(zip(["intact", "starved_0", "centre_tap_all", "few_classes"], weights, strict=False))
    shares = Counter(instance.family for instance in pool(count=count, families=families))
    assert shares.total() == count
    for family, weight in families.items():
        assert abs(shares[family] - count * weight / sum(weights)) < 1


def test_a_prefix_of_the_pool_has_about_the_mix_of_the_whole() -> None:
    shares = Counter(instance.family for instance in pool().instances[:12])
    assert shares["intact"] == 4
    assert all(shares[family] == 2 for family in FAMILIES if family != "intact")


def test_train_and_held_out_share_no_seed() -> None:
    train, held_out = pool("train", 500), pool("held_out", 500)
    assert len(seeds(train)) == len(seeds(held_out)) == 1000
    assert not seeds(train) & seeds(held_out)
    assert not seeds(train) & seeds(pool("held_out", 500, base_seed=1))
    assert {seed % 2 for seed in seeds(train)} == {0}
    assert {seed % 2 for seed in seeds(held_out)} == {1}


def test_pools_are_reproducible_and_a_longer_one_of_one_family_extends_a_shorter() -> None:
    assert pool() == pool()
    assert pool() != pool(base_seed=1)
    assert pool(count=10, families={"intact": 1}).instances == pool(count=20, families={"intact": 1}).instances[:10]


def test_few_classes_draws_classes_per_instance_on_an_intact_host() -> None:
    instances = list(pool(count=20, families={"few_classes": 1}))
    for instance in instances:
        assert not instance.faults.masks_weights
        assert instance.classes is not None
        assert len(set(instance.classes)) == 3
        assert set(instance.classes) <= set(range(10))
    assert len({instance.classes for instance in instances}) > 10
    assert all(instance.classes is None for instance in pool(families={"intact": 1, "starved_1": 1}))


def test_draws_are_deterministic_and_differ_between_runs_and_episodes() -> None:
    instances = pool()

    def drawn(run_seed: int, episode: int) -> list[int]:
        return [instances.draw(run_seed, env, episode).index for env in range(16)]

    assert drawn(1, 0) == drawn(1, 0)
    assert drawn(1, 0) != drawn(2, 0)
    assert drawn(1, 0) != drawn(1, 1)


def test_environments_of_one_episode_share_an_instance_only_when_the_pool_is_used_up() -> None:
    instances = pool(count=6)
    drawn = [instances.draw(3, env, 0).index for env in range(12)]
    assert Counter(drawn) == dict.fromkeys(range(6), 2)


def test_every_instance_is_drawn_sooner_or_later() -> None:
    instances = pool()
    assert {instances.draw(0, env, episode).index for env in range(16) for episode in range(30)} == set(range(60))


def test_restriction_keeps_only_the_instance_s_classes() -> None:
    task = load_task("digits")
    instance = Instance(index=0, split="train", family="few_classes", host_seed=0, order_seed=0, classes=(2, 7))
    data = instance_data(task, instance)
    assert set(task.train.targets[data.train_pool].tolist()) == {2, 7}
    assert len(data.train_pool) == int(((task.train.targets == 2) | (task.train.targets == 7)).sum())
    for weight, split in ((data.val_weight, task.val), (data.test_weight, task.test)):
        values = torch.rand(len(split))
        mine = (split.targets == 2) | (split.targets == 7)
        torch.testing.assert_close((weight * values).sum(), values[mine].mean())


def test_without_restriction_every_sample_counts_alike() -> None:
    task = load_task("digits")
    data = instance_data(task, pool(families={"intact": 1})[0])
    assert data.train_pool.tolist() == list(range(1000))
    torch.testing.assert_close(data.val_weight, torch.full((400,), 1 / 400))
    torch.testing.assert_close(data.test_weight, torch.full((397,), 1 / 397))


def test_families_of_data_and_rate_leave_the_host_whole_and_joined_ones_have_all_of_theirs() -> None:
    families = {"few_samples": 1.0, "label_noise": 1.0, "lr_times_3": 1.0, "label_noise+few_classes+few_samples": 1.0}
    few, noisy, fast, joined = InstancePool.build(
        families, 4, "train", host_family="cnn", num_blocks=3, num_classes=10, data_fraction=0.2, label_noise_rate=0.4
    )
    assert [(x.data_fraction, x.label_noise_rate, x.faults.lr_factor) for x in (few, noisy, fast)] == [
        (0.2, 0.0, 1.0),
        (1.0, 0.4, 1.0),
        (1.0, 0.0, 3.0),
    ]
    assert (joined.data_fraction, joined.label_noise_rate) == (0.2, 0.4)
    assert joined.classes is not None
    assert not any(x.faults.masks_weights for x in (few, noisy, fast, joined))


def one_of(family: str, index: int = 0, **numbers: float) -> Instance:
    instances = InstancePool.build(
        {family: 1.0}, 3, "train", host_family="cnn", num_blocks=3, num_classes=10, **numbers
    )  # type: ignore[arg-type]
    return instances[index]


def test_few_samples_keeps_its_own_share_of_the_training_samples_and_nothing_else_changes() -> None:
    task = load_task("digits")
    data = [instance_data(task, one_of("few_samples", index, data_fraction=0.1)) for index in (0, 1, 0)]
    assert [len(each.train_pool.unique()) for each in data] == [100] * 3
    assert torch.equal(data[0].train_pool, data[2].train_pool), "the same whenever it is asked for"
    assert not torch.equal(data[0].train_pool, data[1].train_pool)
    for each in data:
        assert each.train_targets is task.train.targets
        assert each.val_weight.unique().tolist() == pytest.approx([1 / 400])
        assert each.test_weight.unique().tolist() == pytest.approx([1 / 397])
    assert len(instance_data(task, one_of("few_samples", data_fraction=1e-9)).train_pool) == 1


def test_label_noise_tells_a_fixed_share_of_wrong_training_labels() -> None:
    task = load_task("digits")
    before = [split.targets.clone() for split in (task.train, task.val, task.test)]
    data = [instance_data(task, one_of("label_noise", index, label_noise_rate=0.3)) for index in (0, 1, 0)]
    wrong = [each.train_targets != task.train.targets for each in data]
    assert [int(mask.sum()) for mask in wrong] == [300] * 3
    assert torch.equal(data[0].train_targets, data[2].train_targets), "the same whenever it is asked for"
    assert int((wrong[0] & wrong[1]).sum()) < 150, "another instance, other samples"
    shift = (data[0].train_targets - task.train.targets)[wrong[0]] % 10
    assert set(shift.tolist()) == set(range(1, 10)), "any other class"
    assert all(
        torch.equal(split.targets, old) for split, old in zip((task.train, task.val, task.test), before, strict=True)
    )
    for each in data:
        assert each.train_pool.tolist() == list(range(1000))
        assert each.val_weight.unique().tolist() == pytest.approx([1 / 400])
        assert each.test_weight.unique().tolist() == pytest.approx([1 / 397])


def test_joined_data_faults_apply_to_one_another() -> None:
    """Wrong labels are a share of the samples that are left, and name classes that are left."""
    task = load_task("digits")
    instance = one_of("few_classes+few_samples+label_noise", data_fraction=0.5, label_noise_rate=0.2)
    assert instance.classes is not None
    data = instance_data(task, instance)
    ours = int(torch.isin(task.train.targets, torch.tensor(instance.classes)).sum())
    assert len(data.train_pool) == round(0.5 * ours)
    labels, told = task.train.targets[data.train_pool], data.train_targets[data.train_pool]
    assert int((labels != told).sum()) == round(0.2 * len(data.train_pool))
    assert set(told.tolist()) == set(labels.tolist()) == set(instance.classes)


def test_noise_in_text_is_in_single_tokens() -> None:
    task = load_task("synthetic_text", max_samples=60)
    windows = task.train.targets.clone()
    windows[-1, 5:] = IGNORED
    task = replace(task, train=Split(task.train.inputs, windows))
    noisy = instance_data(task, one_of("label_noise", label_noise_rate=0.25)).train_targets
    counted = windows != IGNORED
    assert torch.equal(noisy == IGNORED, ~counted)
    wrong = (noisy != windows) & counted
    assert int(wrong.sum()) == round(0.25 * int(counted.sum()))
    assert (wrong.any(dim=1) & ~wrong.all(dim=1)).float().mean() > 0.9
    assert int(noisy[counted].min()) >= 0
    assert int(noisy[counted].max()) < task.num_classes


@pytest.mark.parametrize(
    ("families", "message"),
    [
        ({"broken": 1}, r"unknown host fault 'broken'; known: intact, starved_<block>.*few_classes"),
        ({"starved_5": 1}, r"'starved_5'.*block 5; the host has blocks 0 to 2"),
        ({"intact": -1}, r"weight of instance family 'intact' must be 0 or more, not -1"),
        ({"intact": float("nan")}, "not nan"),
        ({"intact": 0}, "no weight at all"),
        ({}, "no weight at all"),
    ],
)
def test_bad_families_are_refused(families: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pool(families=families)


def test_other_bad_values_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown instance split 'test'; known: train, held_out, validation"):
        pool("test")
    with pytest.raises(ValueError, match="at least 1 instance, not 0"):
        pool(count=0)
    with pytest.raises(ValueError, match="num_few_classes=11 must be from 2 to 10"):
        InstancePool.build(FAMILIES, 4, "train", host_family="cnn", num_blocks=3, num_classes=10, num_few_classes=11)
    without = {**FAMILIES, "few_classes": 0}
    InstancePool.build(without, 4, "train", host_family="cnn", num_blocks=3, num_classes=10, num_few_classes=11)
    with pytest.raises(ValueError, match="data_fraction=0 must be above 0 and at most 1"):
        one_of("few_samples", data_fraction=0)
    with pytest.raises(ValueError, match=r"label_noise_rate=1.5 must be above 0 and at most 1"):
        one_of("label_noise", label_noise_rate=1.5)
