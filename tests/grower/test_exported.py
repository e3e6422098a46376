"""A finished network can be taken away."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from nets import QUICK, Script, born, grower, kept, net, train_epoch

from esper.exporting.check import LOADERS
from esper.exporting.formats import FORMATS, Traced
from esper.exporting.network import trace
from esper.growth.actions import Style
from tests.tiers import few


@pytest.mark.parametrize("style", list(Style))
@few(2)
def test_the_source_of_a_finished_network_computes_the_same(style: Style, tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    rules = replace(QUICK, min_training_epochs=1)
    growing = grower(model, optimizer, Script({0: born(0, style), 8: kept(0)}), rules=rules, num_epochs=11)
    for epoch in range(10):
        train_epoch(model, optimizer, None, epoch, growing, steps=1)
    network = growing.finish().eval()
    assert list(growing.sheet()["kept"]) == ["stem"]
    x = torch.randn(5, 1, 8, 8)
    FORMATS["source"].write(Traced(network=network, program=trace(network, [x]), title="A network."), tmp_path)
    (result,) = LOADERS["source"](tmp_path)([x.numpy()])
    assert abs(result - network(x).detach().numpy()).max() < 1e-6
