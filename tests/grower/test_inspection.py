"""Places and optimizers with which no module could run, learn or be measured are refused in one line."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import esper


class Called(nn.Module):
    """Calls its submodule in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.first, self.head, self.way = nn.Linear(6, 6), nn.Linear(6, 6), way
        self.listed = [self.first]

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "listed":
            x = self.listed[0](x)
        elif self.way == "no_grad":
            with torch.no_grad():
                x = self.first(x)
        else:
            x = checkpoint(self.first, x, use_reentrant=True)
        return self.head(x)  # type: ignore[no-any-return]


def refused(message: str, model: nn.Module, optimizer: torch.optim.Optimizer | None = None, **options: Any) -> None:
    x = torch.randn(4, 6, requires_grad=True)
    with pytest.raises(ValueError, match=message) as caught:
        esper.Grower(
            model,
            optimizer or torch.optim.SGD(model.parameters(), lr=0.1),
            slots=["first"],
            controller="never",
            num_epochs=1,
            first_loss=lambda: model(x).square().mean(),
            **options,
        )
    assert "\n" not in str(caught.value)
    assert type(model.first) is nn.Linear


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("listed", "slots: 'first' is called by another reference than its name, such as a list"),
        ("no_grad", "slots: 'first' runs without gradients, in torch.no_grad.* or a reentrant checkpoint"),
        ("reentrant", "slots: 'first' runs without gradients"),
    ],
)
def test_places_where_no_module_could_run_or_learn(way: str, message: str) -> None:
    refused(message, Called(way))


def test_optimizers_that_cannot_step_every_parameter() -> None:
    matrix = torch.optim.Muon([nn.Parameter(torch.zeros(2, 2))])
    refused("optimizer: Muon steps matrices only, and seed modules have vectors too: use one like", Called(""), matrix)
    sparse = torch.optim.SparseAdam([nn.Parameter(torch.zeros(2))])
    refused("optimizer: SparseAdam steps sparse gradients only", Called(""), sparse)
