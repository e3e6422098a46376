"""The Python on the first page runs as it is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import esper

BLOCKS = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text("utf-8"), re.DOTALL)


def layer(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU())


class Network(nn.Module):
    """A network with the places that the page names."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1, self.layer2, self.layer3 = layer(1, 4), layer(4, 4), layer(4, 4)
        self.head = nn.Linear(4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))
        return logits


def test_a_network_of_ones_own_grows() -> None:
    model, draws = Network(), torch.Generator().manual_seed(0)
    x, y = torch.randn(32, 1, 8, 8, generator=draws), torch.randint(10, (32,), generator=draws)
    loader = [(x[:16], y[:16]), (x[16:], y[16:])]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    known = {"esper": esper, "model": model, "optimizer": optimizer, "loader": loader, "val_loader": loader}
    known |= {"x0": x, "y0": y, "loss": lambda x, y: functional.cross_entropy(model(x), y)}
    exec(BLOCKS[1], known)
    logits = known["network"](x)  # type: ignore[operator]
    assert logits.shape == (32, 10)


@pytest.mark.slow
def test_a_run_its_controller_and_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    known: dict[str, object] = {}
    exec(BLOCKS[0], known)
    assert len(known["result"].reward) == known["env"].num_envs  # type: ignore[attr-defined]
