"""Parameters with ``requires_grad=False`` keep their bits, and count neither as parameters nor in rent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from helpers import undone
from torch import Tensor, nn

from esper.blueprints import blueprint_ids, register_blueprint
from esper.blueprints.residual import Residual
from esper.growth import Incubation
from esper.growth.actions import BlendAlgorithm
from esper.hosts import SegmentedHost
from esper.population import MAPPINGS, Population, build_mapping, train_epoch
from esper.population.stack import Stack
from esper.tasks.batches import TrainingSamples
from tests.population.growing import births, digits_host, nothing, orders, pool

FROZEN_HOST = ("segments.0.conv0.weight", "segments.2.conv2.weight")
NUM_FROZEN = 72 + 576


def half_frozen(channels: int) -> nn.Module:
    """Build a convolution that stays as drawn, followed by one that learns."""
    still, moving = nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, channels, 1)
    still.requires_grad_(False)
    return Residual(channels, nn.Sequential(still, nn.ReLU(), moving))


@pytest.fixture(autouse=True)
def blueprint() -> Iterator[int]:
    """Index of the half-frozen blueprint, whose registration is undone after the test."""
    with undone():
        register_blueprint("cnn", "half_frozen", half_frozen)
        yield blueprint_ids().index("half_frozen")


def frozen_host() -> SegmentedHost:
    host = digits_host()
    for name, parameter in host.named_host_parameters():
        parameter.requires_grad_(name not in FROZEN_HOST)
    return host


def grown(mapping: str, blueprint: int) -> Population:
    """Three hosts, the last two with a module that has a frozen part."""
    host = frozen_host()
    population = Population(host, host.slot_ids, 3, build_mapping(mapping))
    population.reset(range(3), *births(host, range(3)))
    for environment, algorithm in ((1, BlendAlgorithm.ADD), (2, BlendAlgorithm.GATE)):
        population.germinate(environment, 1, blueprint, algorithm, torch.Generator().manual_seed(environment))
    return population


def split(stack: Stack) -> tuple[Tensor, Tensor]:
    """Return frozen and trained parameters of all rows."""
    frozen = stack.program.layout.frozen()
    assert frozen is not None
    return stack.values.detach()[:, frozen].clone(), stack.values.detach()[:, ~frozen].clone()


@pytest.mark.parametrize("incubation", Incubation)
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_training_leaves_frozen_parameters_alone_to_the_bit(mapping: str, incubation: str, blueprint: int) -> None:
    population = grown(mapping, blueprint)
    stacks = [population.hosts, population.modules[1, blueprint]]
    before = [split(stack) for stack in stacks]
    growth = nothing(3)
    growth.developing[1, 1] = True
    growth.alpha[2, 1] = 0.5
    images, labels = pool()
    for epoch in range(3):
        order = orders(range(3), 32, epoch)
        train_epoch(
            population,
            TrainingSamples(images, labels),
            order,
            growth,
            incubation=incubation,
            num_steps=2,
            lr=0.1,
            max_grad_norm=1.0,
        )
    for stack, (still, moved) in zip(stacks, before, strict=True):
        after = split(stack)
        assert still.abs().sum() > 0
        assert torch.equal(after[0], still)
        assert (after[1] != moved).any(dim=1).all()
        assert (stack.exp_avg_sq[:, stack.program.layout.frozen()] == 0).all()


def test_frozen_gradients_are_neither_clipped_for_nor_reported(blueprint: int) -> None:
    """A norm over untrained parameters would shrink the steps of trained ones."""
    images, labels = pool()
    order = orders(range(3), 16)
    norms = []
    for freeze in (True, False):
        population = grown("loop", blueprint)
        if not freeze:
            population.hosts.frozen = None
        stats = train_epoch(
            population,
            TrainingSamples(images, labels),
            order,
            nothing(3),
            incubation="auxiliary",
            num_steps=1,
            lr=0.1,
            max_grad_norm=1,
        )
        norms.append(stats.host_norm)
    assert (norms[0] < norms[1]).all()


def test_frozen_parameters_count_neither_in_hosts_nor_in_modules(blueprint: int) -> None:
    population, host = grown("grouped", blueprint), digits_host()
    whole = Population(host, host.slot_ids, 3, build_mapping("grouped"))
    whole.reset(range(3), *births(host, range(3)))
    intact = 0
    assert int(whole.num_host_parameters()[intact] - population.num_host_parameters()[intact]) == NUM_FROZEN
    trained = 8 * 8 + 8 + 8  # the second convolution and the scale
    assert population.num_parameters()[:, 1].tolist() == [0, trained, trained + 2 * 8]


def test_frozen_parameters_are_carried_by_state_and_by_grown_networks(blueprint: int) -> None:
    population = grown("vmap", blueprint)
    other = grown("vmap", blueprint)
    other.hosts.values.detach().zero_()
    other.load_state_dict(population.state_dict())
    names = dict(population.grown(1, [0.0, 1.0, 0.0]).named_host_parameters())
    expected = population.hosts.program.layout.unflatten(other.hosts.values.detach()[1])
    for name, value in zip(FROZEN_HOST, (names[name] for name in FROZEN_HOST), strict=True):
        assert value.abs().sum() > 0
        assert torch.equal(value, expected[name.removeprefix("segments.")])
