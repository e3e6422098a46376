"""Multiply-adds by hand and as run: the digits host (8x8 images, 8 channels; 4x4, 4x4 and 2x2 maps) and its modules."""

from __future__ import annotations

import pytest
import torch
from helpers import small_experiment

from esper.growth.actions import BlendAlgorithm, Blueprint
from esper.population import GrowthStage, MultiplyAdds, incubation_share, train_epoch, training_multiply_adds
from esper.population.flops import count_operations
from esper.tasks.batches import TrainingSamples
from tests.population.growing import orders, pool, populate

CONV = 8 * 8 * 9
FIRST, SECOND, THIRD, HEAD = 8 * 9 * 16, CONV * 16, CONV * 4, 80


def test_counts_are_those_of_convolutions_and_products_by_hand() -> None:
    experiment = small_experiment()
    costs = experiment.costs
    assert costs.host == FIRST + SECOND + THIRD + HEAD
    assert costs.suffix.tolist() == [SECOND + THIRD + HEAD, THIRD + HEAD, HEAD]
    assert costs.module[:, Blueprint.CONV_LIGHT].tolist() == [CONV * 16, CONV * 16, CONV * 4]
    assert costs.module[:, Blueprint.CONV_HEAVY].tolist() == [2 * CONV * 16, 2 * CONV * 16, 2 * CONV * 4]
    assert (costs.module[:, Blueprint.NORM] == 0).all(), "elementwise"
    assert not costs.module[~experiment.compatible].any()


def test_a_training_step_by_hand() -> None:
    """Host 100, of which 60 and 10 lie behind slots 0 and 1; blueprint 1 costs 7 at slot 0 and 5 at slot 1."""
    costs = MultiplyAdds(host=100, suffix=torch.tensor([60, 10]), module=torch.tensor([[0, 7], [0, 5]]))
    blueprint = torch.tensor([[-1, -1], [1, -1], [1, 1], [1, 1], [1, 1]])
    acting = torch.tensor([[0, 0], [1, 0], [0, 1], [1, 0], [0, 0]]).bool()
    developing = torch.tensor([[0, 0], [0, 0], [1, 0], [0, 1], [1, 1]]).bool()
    spent = training_multiply_adds(costs, blueprint, acting, developing, "auxiliary")
    assert spent.tolist() == [
        300,
        300 + 3 * 7,
        300 + 3 * 5 + 3 * 7 + 2 * (60 + 5),  # the pass from slot 0 on also goes through the acting module behind it
        300 + 3 * 7 + 3 * 5 + 2 * 10,  # the acting module lies before it
        300 + 3 * 7 + 3 * 5 + 2 * 60 + 2 * 10,  # developing ones leave one another out
    ]
    inside = training_multiply_adds(costs, blueprint, acting, developing, "straight_through")
    assert inside.tolist() == [300, 321, 336, 336, 336]
    assert costs.host_step == pytest.approx(300)


def test_what_rests_costs_nothing() -> None:
    """Of three steps, the first and the third when every second one counts."""
    assert [incubation_share(3, every) for every in (1, 2, 3)] == [1, 2 / 3, 1 / 3]
    costs = MultiplyAdds(host=100, suffix=torch.tensor([60, 10]), module=torch.tensor([[0, 7], [0, 5]]))
    blueprint, acting = torch.tensor([[1, 1]]), torch.tensor([[True, False]])
    for incubation, learning in (("auxiliary", 3 * 5 + 2 * 10), ("straight_through", 3 * 5)):
        spent = training_multiply_adds(costs, blueprint, acting, ~acting, incubation, 2 / 3)
        assert spent.tolist() == pytest.approx([321 + learning * 2 / 3])


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("incubation", ["auxiliary", "straight_through"])
def test_counts_are_those_of_the_operations_that_an_epoch_runs(incubation: str, every: int) -> None:
    """All of them but one: nobody needs the gradient of an image, or of a feature that a module sees detached.

    The host has conv_light acting in its last slot, and one developing in its second.
    """
    add, light, steps, size = BlendAlgorithm.ADD, Blueprint.CONV_LIGHT, 3, 4
    population = populate("loop", [0], [(0, 1, light, add), (0, 2, light, add)])
    developing = torch.tensor([[False, True, False]])
    stage = GrowthStage(alpha=torch.tensor([[0.0, 0.0, 1.0]]), developing=developing, isolated=developing & False)
    samples, order = TrainingSamples(*pool()), orders([0], steps * size)

    def epoch() -> None:
        how = {"incubation": incubation, "incubate_every": every, "num_steps": steps, "lr": 0.01}
        train_epoch(population, samples, order, stage, **how)  # type: ignore[arg-type]

    share = incubation_share(steps, every)
    spent = training_multiply_adds(
        small_experiment().costs, population.blueprint, stage.alpha > 0, developing, incubation, share
    )
    unneeded = FIRST + share * CONV * 16
    assert count_operations(epoch) == pytest.approx(2 * steps * size * (float(spent) - unneeded), abs=1e-3)
