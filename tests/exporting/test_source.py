"""Source code of a network computes what the network computes, and is made of torch alone."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.blueprints import BLUEPRINTS, build_blueprint
from esper.exporting.network import results_of, trace
from esper.exporting.source import build, construction, source_of
from esper.growth.actions import BlendAlgorithm
from esper.growth.blending import BlendedModule, Gate
from esper.growth.layouts import Layout
from esper.hosts import TransformerHost
from tests.tiers import few


def scrambled(network: nn.Module) -> nn.Module:
    """The network with numbers of which none is zero or one."""
    stream = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in [*network.parameters(), *network.buffers()]:
            if value.is_floating_point():
                value.copy_(torch.rand(value.shape, generator=stream) * 0.4 + 0.1)
    return network.eval()


class Odd(nn.Module):
    """More than layers: shared weights, a layer called twice, a shape, constants, a list, two results."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.twice = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen = nn.Parameter(torch.zeros(6), requires_grad=False)
        self.register_buffer("table", torch.zeros(5, 6), persistent=False)

    def forward(self, tokens: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, None]:
        x = self.embedding(tokens) + self.table[: tokens.shape[1]]
        x = self.twice(F.gelu(self.twice(x), approximate="tanh")) * self.frozen
        x = x + 0
        x[:, 0] = 0.25  # in place, through a view
        x = torch.cat([x, x.flip(1)], dim=1).masked_fill(x.mean() < -9, float("-inf"))
        return self.head(x), F.layer_norm(x, (6,)).mean((1, 2)) - weight / 2, None


def images() -> nn.Module:
    """Layers of images, with a module blended by each algorithm."""
    blended = [
        BlendedModule(build_blueprint("cnn", "attention", 4), BlendAlgorithm.ADD, alpha=0.5),
        BlendedModule(build_blueprint("cnn", "norm", 4), BlendAlgorithm.MULTIPLY, alpha=0.7),
        BlendedModule(build_blueprint("cnn", "depthwise", 4), BlendAlgorithm.GATE, Gate(4, Layout.MAP), 1.0),
    ]
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding="same"), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), *blended),
        *(nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)),
    )


def text() -> nn.Module:
    """A transformer with every blueprint at its places."""
    host = TransformerHost(num_classes=11, context_length=5, num_layers=4, width=8, num_heads=2, mlp_width=12)
    for slot_id, name in zip(host.slot_ids, BLUEPRINTS["transformer"], strict=False):
        host.attach(slot_id, build_blueprint("transformer", name, 8))
    return host


TOKENS = torch.randint(11, (5, 5), generator=torch.Generator().manual_seed(1))
CASES = {
    "images": (images, (torch.rand(5, 2, 8, 8),)),
    "text": (text, (TOKENS,)),
    "odd": (Odd, (TOKENS, torch.rand(5))),
}


@pytest.mark.parametrize("case", CASES)
@few(2)
def test_source_computes_the_same_in_batches_of_any_size(case: str) -> None:
    make, inputs = CASES[case]
    network = scrambled(make())
    source = source_of(trace(network, inputs), network, "A network.")
    rebuilt = build(source).eval()
    assert "esper" not in source.code
    assert "promote_types" not in source.code
    for size in (1, 5):
        batch = [x[:size] for x in inputs]
        for result, wanted in zip(results_of(rebuilt, batch), results_of(network, batch), strict=True):
            torch.testing.assert_close(result, wanted, rtol=0, atol=1e-6)
    trained = [sum(p.numel() for p in net.parameters() if p.requires_grad) for net in (network, rebuilt)]
    assert trained[0] == trained[1], "shared weights are one parameter, and frozen ones stay frozen"


def test_layers_are_layers_again() -> None:
    network = scrambled(images())
    code = source_of(trace(network, CASES["images"][1]), network, "A network.").code
    assert len(re.findall(r"= nn\.(Conv2d|BatchNorm2d|Linear|MaxPool2d|Dropout)\(", code)) == 9
    assert "torch.conv2d" not in code


class Doubling(nn.Linear):
    """Computes something else than its base."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Renamed(nn.Linear):
    """Computes the same as its base."""


def test_only_what_computes_the_same_as_a_layer_of_torch_is_written_as_one() -> None:
    assert (
        construction(Renamed(2, 3))
        == construction(nn.Linear(2, 3))
        == ("nn.Linear(in_features=2, out_features=3, bias=True)")
    )
    assert construction(Doubling(2, 3)) is None
    assert construction(nn.Sequential(nn.Linear(2, 3))) is None
    assert construction(nn.Module()) is None


class Counting(nn.Module):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1.0)
        return x + self.calls


def test_a_network_that_changes_when_it_runs_is_refused() -> None:
    network, x = Counting().eval(), torch.rand(3, 2)
    with pytest.raises(ValueError, match=r"network: its forward pass changes 'b_calls'"):
        source_of(trace(network, [x]), network, "A network.")
