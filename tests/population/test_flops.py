"""Multiply-adds by hand: the digits host (8x8 images, 8 channels; 4x4, 4x4 and 2x2 maps) and its modules."""

from __future__ import annotations

import pytest
import torch
from helpers import small_laboratory

from esper.growth.actions import Blueprint
from esper.population import MultiplyAdds, training_multiply_adds

CONV = 8 * 8 * 9
FIRST, SECOND, THIRD, HEAD = 8 * 9 * 16, CONV * 16, CONV * 4, 80


def test_counts_are_those_of_convolutions_and_products_by_hand() -> None:
    laboratory = small_laboratory()
    costs = laboratory.costs
    assert costs.host == FIRST + SECOND + THIRD + HEAD
    assert costs.suffix.tolist() == [SECOND + THIRD + HEAD, THIRD + HEAD, HEAD]
    assert costs.module[:, Blueprint.CONV_LIGHT].tolist() == [CONV * 16, CONV * 16, CONV * 4]
    assert costs.module[:, Blueprint.CONV_HEAVY].tolist() == [2 * CONV * 16, 2 * CONV * 16, 2 * CONV * 4]
    assert (costs.module[:, Blueprint.NORM] == 0).all(), "elementwise"
    assert not costs.module[~laboratory.compatible].any()


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
