"""Random joins of faults: as likely as they should be, and never of two splits."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from helpers import SMALL

from esper.config import UsageError, compose
from esper.envs.instances import SPLITS, InstancePool
from esper.envs.joins import Joins, split_of
from esper.experiment.build import instance_pool
from esper.hosts.faults import check_fault, parse_faults
from esper.tasks import load_task
from esper.telemetry.statistics import crossed_bootstrap
from tests.tiers import few

HOST_FAULTS = {"intact": 1.0, "few_samples": 1.0, "label_noise": 0.0, "lr_over_3": 2.0}
JOINS = Joins(
    block_faults={"starved": 0.35, "centre_tap": 0.5}, host_faults=HOST_FAULTS, num_blocks=3, mixing_blocks=(0, 2)
)


def pool(split: str, count: int = 64, base_seed: int = 0) -> InstancePool:
    return InstancePool.build(JOINS, count, split, host_family="cnn", num_blocks=3, num_classes=10, base_seed=base_seed)


def test_faults_are_as_likely_as_they_are_said_to_be() -> None:
    stream = torch.Generator().manual_seed(0)
    drawn = [JOINS.draw(stream) for _ in range(3000)]
    faults = [parse_faults(join) for join in drawn]
    for block in range(3):
        assert sum(block in each.starved for each in faults) / 3000 == pytest.approx(0.35, abs=0.03)
        cut = sum(block in each.local for each in faults) / 3000
        assert cut == pytest.approx(0.5 if block != 1 else 0, abs=0.03), "block 1 has no kernel to cut"
    rates = Counter(each.lr_factor for each in faults)
    assert rates[1 / 3] / 3000 == pytest.approx(0.5, abs=0.03)
    assert sum(each.few_samples for each in faults) / 3000 == pytest.approx(0.25, abs=0.03)
    assert not any(each.label_noise for each in faults)
    together = sum(0 in each.starved and 2 in each.local and each.few_samples for each in faults)
    assert together / 3000 == pytest.approx(0.35 * 0.5 * 0.25, abs=0.02), "independently"
    for join in set(drawn):
        check_fault(join, "cnn", 3)


@pytest.mark.parametrize("base_seed", [0, 5])
def test_no_join_is_in_two_splits_and_all_are_drawn_anew_with_another_base_seed(base_seed: int) -> None:
    pools = [pool(split, base_seed=base_seed) for split in SPLITS]
    families = [{instance.family for instance in each} for each in pools]
    seeds = [seed for each in pools for instance in each for seed in (instance.host_seed, instance.order_seed)]
    assert all(len(each) > 15 for each in families)
    assert len(set.union(*families)) == sum(map(len, families))
    assert len(set(seeds)) == len(seeds) == 2 * 3 * 64
    assert pools[0].joined
    assert pool("validation", 9, base_seed).instances == pool("validation", 64, base_seed).instances[:9]
    assert families[0] != {instance.family for instance in pool("train", base_seed=base_seed + 1)}


def test_an_interval_over_hosts_of_random_joins_has_the_spread_of_the_joins() -> None:
    hosts = InstancePool.build(
        JOINS, 200, "held_out", host_family="cnn", num_blocks=3, num_classes=10, rent_weights=[8.0, 24.0]
    )
    assert sorted(Counter(hosts.strata()).values()) == [100, 100]
    worth = {
        join: float(value) for join, value in zip(sorted({x.family for x in hosts}), torch.randn(200), strict=False)
    }
    returns = torch.tensor([worth[host.family] for host in hosts], dtype=torch.float64)[None]
    found = crossed_bootstrap(returns, hosts.strata(), generator=torch.Generator().manual_seed(0), draws=1000)
    assert found.high - found.low == pytest.approx(2 * 1.97 * float(returns.std()) / 200**0.5, rel=0.15)


def test_families_of_fixed_shares_are_strata() -> None:
    hosts = InstancePool.build(
        {"intact": 1.0, "starved_1": 3.0}, 8, "held_out", host_family="cnn", num_blocks=3, num_classes=10
    )
    assert hosts.strata() == [host.family for host in hosts]


def test_half_of_the_joins_are_trained_on() -> None:
    names = [f"starved_{number}" for number in range(2000)]
    shares = Counter(split_of(name, 3) for name in names)
    assert shares["train"] / 2000 == pytest.approx(0.5, abs=0.03)
    assert shares["validation"] / 2000 == pytest.approx(0.25, abs=0.03)


def test_a_split_without_a_join_is_refused() -> None:
    never = Joins(block_faults={"starved": 0.0}, host_faults={}, num_blocks=3, mixing_blocks=())
    assert {never.draw(torch.Generator().manual_seed(seed)) for seed in range(9)} == {"intact"}
    split = next(split for split in SPLITS if split != split_of("intact", 0))
    with pytest.raises(ValueError, match=f"too few different hosts: none is in the split {split}"):
        never.draw_split(1, split, 0)


def test_joins_take_the_place_of_families() -> None:
    assert compose(*SMALL).instances.families
    assert compose(*SMALL, "+instances.block_faults={starved:0.5}").instances.families == {}


def test_the_preset_draws_joins_and_validation_hosts_have_their_own_number() -> None:
    config, task = compose("+preset=digits_mixed", "instances.num_validation=5"), load_task("digits")
    found = {split: instance_pool(config, task, split) for split in SPLITS}
    assert {split: len(instances) for split, instances in found.items()} == {
        "train": 56,
        "held_out": 64,
        "validation": 5,
    }
    assert {instance.rent_weight for instance in found["held_out"]} == {8.0, 12.0, 16.0, 24.0}
    assert config.instances.families == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["+instances.block_faults={starved:0.5}", "+instances.host_faults={starved_0:1}"],
            "instances.host_faults.starved_0 is a fault of blocks, which instances.block_faults draws",
        ),
        (["+instances.host_faults={intact:1}"], "which instances.block_faults must draw"),
        (["+instances.block_faults={starved:1.5}"], r"block_faults.starved must be .* got 1.5"),
        (
            ["+instances.block_faults={unmixed:0.5}"],
            "instances.block_faults.unmixed: blocks of cnn hosts can have starved, centre_tap",
        ),
        (
            ["+instances.block_faults={starved:1}", "instances.alive_channels=99"],
            "instances.alive_channels must be at most",
        ),
        (
            ["evaluation.split=validation", "instances.num_validation=1", "evaluation.num_hosts=2"],
            r"evaluation.num_hosts must be at most 1 \(instances.num_validation\)",
        ),
    ],
)
@few(3)
def test_joins_that_cannot_be_drawn_are_refused_by_their_key(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compose(*SMALL, *words)
