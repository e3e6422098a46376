"""Incubation in a part of the steps: developing modules learn in these and rest in the others; nothing else changes."""

from __future__ import annotations

import pytest
import torch
from helpers import NEEDS_FP16
from torch import Tensor

from esper.growth.actions import BlendAlgorithm, Blueprint
from esper.population import PROBE_NAMES, GrowthStage, Population, train_epoch
from esper.population.epoch import EpochStats
from esper.tasks.batches import TrainingSamples
from tests.population.growing import nothing, orders, pool, populate

LIGHT, ADD, GATE = Blueprint.CONV_LIGHT, BlendAlgorithm.ADD, BlendAlgorithm.GATE
SIZE = 8


def growing(mapping: str = "loop", **kind: torch.dtype) -> tuple[Population, GrowthStage]:
    """One host with a developing module before an acting one of the same kind, one with a module each way round."""
    sites = [(0, 0, LIGHT, GATE), (0, 2, LIGHT, ADD), (1, 0, LIGHT, ADD), (1, 2, LIGHT, ADD)]
    population, stage = populate(mapping, range(2), sites, **kind), nothing(2)  # type: ignore[arg-type]
    stage.developing[0, 0] = stage.developing[1, 2] = True
    stage.alpha[0, 2] = stage.alpha[1, 0] = 0.5
    return population, stage


def train(
    population: Population, stage: GrowthStage, every: int, steps: int, incubation: str, first: int = 0
) -> EpochStats:
    order = orders(range(2), 4 * SIZE)[:, first * SIZE : (first + steps) * SIZE]
    return train_epoch(
        population,
        TrainingSamples(*pool()),
        order,
        stage,
        incubation=incubation,  # type: ignore[arg-type]
        incubate_every=every,
        num_steps=steps,
        lr=0.01,
        probes=PROBE_NAMES,
    )


def row(population: Population, slot: int, environment: int) -> list[Tensor]:
    stack = population.modules[slot, LIGHT]
    at = stack.row(environment)
    return [each[at].detach() for each in (stack.values, stack.exp_avg, stack.exp_avg_sq, stack.steps)]


def same(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("mapping", ["loop", "grouped"])
@pytest.mark.parametrize("incubation", ["auxiliary", "straight_through"])
def test_hosts_and_acting_modules_are_equal_to_the_bit_and_developing_ones_take_fewer_steps(
    mapping: str, incubation: str
) -> None:
    (always, stage), (seldom, _) = growing(mapping), growing(mapping)
    all_steps, some = (
        train(population, stage, every, 4, incubation) for population, every in ((always, 1), (seldom, 3))
    )
    assert torch.equal(always.hosts.values, seldom.hosts.values)
    assert torch.equal(all_steps.loss, some.loss)
    assert torch.equal(all_steps.host_norm, some.host_norm)
    assert all_steps.probes is not None
    assert some.probes is not None
    assert torch.equal(all_steps.probes, some.probes)
    for slot, environment in ((2, 0), (0, 1)):
        assert same(row(always, slot, environment), row(seldom, slot, environment))
    for slot, environment in ((0, 0), (2, 1)):
        assert [float(row(population, slot, environment)[-1]) for population in (always, seldom)] == [4, 2]
    assert [stack.steps.tolist() for stack in seldom.gates.values()] == [[[2]]]


@pytest.mark.parametrize("incubation", ["auxiliary", "straight_through"])
def test_a_module_that_rests_keeps_every_bit_and_its_norm_is_the_mean_over_the_others(incubation: str) -> None:
    (population, stage), (other, _) = growing(), growing()
    stats = train(population, stage, 4, 4, incubation)
    once = train(other, stage, 1, 1, incubation)
    for slot, environment in ((0, 0), (2, 1)):
        assert same(row(population, slot, environment), row(other, slot, environment))
        assert stats.module_norm[environment, slot] == once.module_norm[environment, slot]
        assert row(population, slot, environment)[1].any(), "it learned in the first step"
    assert not same(row(population, 2, 0), row(other, 2, 0)), "what acts went on"


@NEEDS_FP16
def test_resting_is_not_skipping_under_loss_scales() -> None:
    population, stage = growing(autocast_dtype=torch.float16)
    stats = train(population, stage, 2, 4, "auxiliary")
    assert stats.skipped_steps == 0
    assert float(row(population, 0, 0)[-1]) == 2
    assert stats.module_norm[0, 0].isfinite()
