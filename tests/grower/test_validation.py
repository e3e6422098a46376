"""Modules are compared only where validation runs them."""

from __future__ import annotations

import pytest
import torch
from nets import Script, born
from torch import Tensor, nn

import esper
from esper.growth.actions import Blueprint


class Encoder(nn.Module):
    """Its layer computes itself in evaluation, past its own submodules."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.stem(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("fast", [True, False])
def test_a_place_that_evaluation_passes_by_is_refused_once_it_has_a_module(fast: bool) -> None:
    model, x, y = Encoder(), torch.randn(4, 3, 8), torch.randint(8, (4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss() -> Tensor:
        return model(x).square().mean()  # type: ignore[no-any-return]

    growing = esper.Grower(
        model,
        optimizer,
        slots=["stem", "layer.linear2"],
        controller=Script({0: born(1, blueprint=Blueprint.MLP)}),
        num_epochs=2,
        first_loss=loss,
    )
    loss().backward()
    growing.incubate(loss)
    optimizer.step()
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(fast)
    try:
        if fast:
            with pytest.raises(ValueError, match=r"evaluate: it ran the model without 'layer\.linear2'") as caught:
                growing.end_epoch(lambda: esper.language_score(model, [(x, y)]))
            assert "\n" not in str(caught.value)
        else:
            report = growing.end_epoch(lambda: esper.language_score(model, [(x, y)]))
            assert report.slots["layer.linear2"].preview is not None
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
