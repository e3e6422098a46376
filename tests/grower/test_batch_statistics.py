"""Contributions in a network with batch norm use statistics of the compared network."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from nets import QUICK, Script, born, grower, net, train_epoch
from torch import Tensor, nn

from esper.grower.statistics import RecentBatches

EPOCHS, STEPS = 9, 12


def contributions(statistics_batches: int) -> Tensor:
    """Return contributions of a blended module, by epoch."""
    model = net(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    growing = grower(
        model, optimizer, Script({0: born(0), 1: born(1)}), rules=QUICK, statistics_batches=statistics_batches
    )
    found = []
    for epoch in range(EPOCHS):
        report = train_epoch(model, optimizer, None, epoch, growing, steps=STEPS)
        found.append([slot.contribution for slot in report.slots.values() if slot.contribution is not None])
    return torch.tensor([points for points in found if len(points) == 2])


@pytest.mark.slow
def test_contributions_are_within_two_points_of_those_under_statistics_of_a_whole_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, some = contributions(STEPS), contributions(8)
    assert len(whole) >= 4
    assert (whole - some).abs().max() < 2
    monkeypatch.setattr(RecentBatches, "reestimate", lambda self: None)
    assert (whole - contributions(8)).abs().max() > 3, "the statistics of another network mislead"


class Frozen(nn.Module):
    """A batch norm that trains and one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm1d(3), nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x))
        return out


def test_statistics_are_means_over_recent_batches_and_frozen_norms_keep_theirs() -> None:
    model = Frozen()
    recent = RecentBatches(model, 2)
    batches = [torch.randn(5, 3) * scale + 1 for scale in (9.0, 1.0, 2.0)]
    model.second.eval()
    for x in batches:
        model(x)
    with torch.no_grad():
        model(100 * batches[0])
    model.eval()
    model(100 * batches[0])
    frozen = model.second.running_mean.clone()
    recent.reestimate()
    torch.testing.assert_close(model.first.running_mean, torch.stack([x.mean(0) for x in batches[1:]]).mean(0))
    torch.testing.assert_close(model.first.running_var, torch.stack([x.var(0) for x in batches[1:]]).mean(0))
    assert torch.equal(model.second.running_mean, frozen)
    assert model.first.momentum == 0.1


def test_a_copied_or_pickled_model_has_nothing_of_the_grower_in_it() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    growing = grower(model, optimizer, Script({0: born(0)}))
    train_epoch(model, optimizer, None, 0, growing)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        x = torch.randn(4, 1, 8, 8)
        before = growing.state_dict()["births"]
        other.train()(x).sum().backward()
        model.train()
        torch.manual_seed(0)
        expected = model(x)
        torch.manual_seed(0)
        assert other.state_dict().keys() == model.state_dict().keys()
        assert torch.equal(copy.deepcopy(model).eval()(x), model.eval()(x))
        model.train()
        assert expected.shape == (4, 5)
        assert growing.state_dict()["births"] == before
        shared = {id(p) for p in model.parameters()} & {id(p) for p in other.parameters()}
        assert not shared
