"""Individual learning rates and labels of hosts that share a stack."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from esper.population import MAPPINGS, Population, train_epoch
from esper.tasks.batches import TrainingSamples
from tests.population.growing import nothing, orders, pool, populate, random_growth

NUM_ENVS = 4


def trained(mapping: str, lr: float | Tensor, labels: Tensor | None = None) -> Population:
    """Two epochs of two steps, with modules of all kinds."""
    sites, growth = random_growth(3, NUM_ENVS)
    population = populate(mapping, range(NUM_ENVS), sites)
    images, own = pool()
    told = own if labels is None else labels
    samples = TrainingSamples(images, told, own_targets=told.dim() == 2)
    for epoch in range(2):
        train_epoch(
            population,
            samples,
            orders(range(NUM_ENVS), 32, epoch),
            growth,
            incubation="auxiliary",
            num_steps=2,
            lr=lr,
        )
    return population


def parameters(population: Population, environment: int) -> list[Tensor]:
    """Return all parameters of one environment's host, modules and gates."""
    return [
        stack.values.detach()[stack.row(environment)]
        for stack in population.stacks()
        if environment in stack.environments
    ]


def assert_equal(ours: list[Tensor], theirs: list[Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_rate_of_ones_own_gives_the_bits_of_a_stack_where_all_have_it(mapping: str) -> None:
    rates = torch.tensor([1.0, 3.0, 1.0, 1 / 3], dtype=torch.float64) * 0.01
    mixed = trained(mapping, rates)
    uniform = {rate: trained(mapping, rate) for rate in rates.unique().tolist()}
    for environment, rate in enumerate(rates.tolist()):
        assert_equal(parameters(mixed, environment), parameters(uniform[rate], environment))
    assert len(parameters(mixed, 1)) > 1, "modules too"
    for one, other in zip(parameters(mixed, 1), parameters(uniform[0.01], 1), strict=True):
        assert not torch.equal(one, other)


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_labels_of_ones_own_give_the_bits_of_a_stack_where_all_have_them(mapping: str) -> None:
    _, own = pool()
    other = (own + 1) % 10
    table = torch.stack([own, other, own, own])
    mixed, plain, wrong = (trained(mapping, 0.01, labels) for labels in (table, own, other))
    for environment in (0, 2, 3):
        assert_equal(parameters(mixed, environment), parameters(plain, environment))
    assert_equal(parameters(mixed, 1), parameters(wrong, 1))
    assert not torch.equal(parameters(mixed, 1)[0], parameters(plain, 1)[0])


def test_adam_s_first_step_is_as_long_as_the_rate_says() -> None:
    rates = torch.tensor([0.01, 0.03, 0.02, 0.01], dtype=torch.float64)
    born = populate("matmul", range(NUM_ENVS)).hosts.values.detach()
    population = populate("matmul", range(NUM_ENVS))
    images, labels = pool()
    order = orders(range(NUM_ENVS), 16)
    train_epoch(
        population,
        TrainingSamples(images, labels),
        order,
        nothing(NUM_ENVS),
        incubation="auxiliary",
        num_steps=1,
        lr=rates,
    )
    longest = (population.hosts.values.detach() - born).abs().amax(dim=1)
    torch.testing.assert_close(longest, rates.float(), rtol=1e-3, atol=0)
