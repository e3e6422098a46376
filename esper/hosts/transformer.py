"""GPT-style host: causal blocks with norms before their branches, and one embedding for input and output.

Axis legend: B = samples, T = tokens, C = width, V = vocabulary.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.hosts.attention import CausalAttention
from esper.hosts.base import Place, SegmentedHost
from esper.hosts.init import draw_normal
from esper.hosts.shapes import check_layers
from esper.runtime.checks import at_least

EMBEDDING_STD = 0.02
"""Standard deviation of embeddings at birth, small so that a new host gives all tokens nearly equal probability."""


class Embedding(nn.Module):
    """Vectors of tokens plus positions: ``int64 [B, T] -> [B, T, C]``, T up to the context length.

    Token vectors are small because the head shares them; the stream receives them multiplied by sqrt(C) (Vaswani et al.
    2017). Otherwise the output of attention outweighs the token itself, and hosts learn slower than without attention.
    """

    def __init__(self, vocabulary_size: int, context_length: int, width: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(vocabulary_size, width))
        self.position = nn.Parameter(torch.zeros(context_length, width))
        self.scale = math.sqrt(width)

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Draw from a normal distribution with standard deviation :data:`EMBEDDING_STD`."""
        draw_normal(self.token, EMBEDDING_STD, generator)
        draw_normal(self.position, EMBEDDING_STD, generator)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.scale * F.embedding(tokens, self.token) + self.position[: tokens.shape[1]]


class TiedHead(nn.Module):
    """Logits computed with the token embedding itself (Press and Wolf 2017): ``[B, T, C] -> [B, T, V]``."""

    def __init__(self, token: nn.Parameter) -> None:
        super().__init__()
        self.token = token

    def initialise(self, generator: torch.Generator) -> None:
        """Do nothing: the embedding initialises the shared weights."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.token)


class BranchOutput(nn.Linear):
    """The last layer of a branch, scaled so that the sum of all branches is small beside a token at birth (Radford et
    al. 2019).
    """

    def __init__(self, in_features: int, out_features: int, num_branches: int) -> None:
        super().__init__(in_features, out_features, bias=False)
        self.num_branches = num_branches

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Draw from a normal distribution with standard deviation :data:`EMBEDDING_STD` / sqrt(fan_in * branches)."""
        draw_normal(self.weight, EMBEDDING_STD / math.sqrt(self.in_features * self.num_branches), generator)


class Branch(nn.Module):
    """A residual branch, x + body(x): ``[B, T, C] -> [B, T, C]``."""

    def __init__(self, **layers: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(OrderedDict(layers))

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.body(x)
        return x + change


@dataclass(frozen=True, slots=True)
class LayerNames:
    """Names of one layer's parameters in the host.

    Attributes:
        attention: prefix of all parameters of the attention branch.
        up, up_bias, down: parameters of the MLP, into and out of its hidden layer.
    """

    attention: str
    up: str
    up_bias: str
    down: str


class TransformerHost(SegmentedHost):
    """A GPT whose layers are attention [place r0c{i}] - MLP [place r1c{i}], each added to the stream; LayerNorm and
    tied head last.

    ``int64 [B, T] -> [B, T, V]``, logits of the next token. T may be anything up to the context length.

    Args:
        num_classes: size of the vocabulary, V.
        context_length: largest number of tokens.
        num_layers: number of layers.
        width: C.
        num_heads: heads of every attention.
        mlp_width: hidden units of every MLP.
        place_rows: kinds of places to offer: 0 after attention, 1 after the MLP.

    Attributes:
        layers: names of each layer's parameters.

    Raises:
        ValueError: a number below 1, a number of heads that does not divide the width, or an unknown place row.
    """

    family = "transformer"

    def __init__(
        self,
        *,
        num_classes: int,
        context_length: int,
        num_layers: int,
        width: int,
        num_heads: int,
        mlp_width: int,
        place_rows: Sequence[int] = (0, 1),
    ) -> None:
        at_least("num_classes", num_classes, 1)
        at_least("context_length", context_length, 1)
        check_layers(
            num_layers=num_layers, width=width, num_heads=num_heads, mlp_width=mlp_width, place_rows=place_rows
        )
        segments: list[nn.Module] = []
        places: list[Place] = []
        names: list[LayerNames] = []
        parts: OrderedDict[str, nn.Module] = OrderedDict()

        def end_segment(row: int, layer: int) -> None:
            nonlocal parts
            if row in place_rows:
                segments.append(nn.Sequential(parts))
                places.append(Place(f"r{row}c{layer}", width, "transformer"))
                parts = OrderedDict()

        embedding = Embedding(num_classes, context_length, width)
        parts["embedding"] = embedding
        for layer in range(num_layers):
            attention = f"segments.{len(segments)}.attention{layer}."
            parts[f"attention{layer}"] = _attention(width, num_heads, 2 * num_layers)
            end_segment(0, layer)
            mlp = f"segments.{len(segments)}.mlp{layer}.body"
            parts[f"mlp{layer}"] = _mlp(width, mlp_width, 2 * num_layers)
            names.append(LayerNames(attention, f"{mlp}.up.weight", f"{mlp}.up.bias", f"{mlp}.down.weight"))
            end_segment(1, layer)
        parts["norm"] = nn.LayerNorm(width)
        parts["head"] = TiedHead(embedding.token)
        segments.append(nn.Sequential(parts))

        super().__init__(segments, places, num_classes)
        self.layers = tuple(names)
        self.num_blocks = num_layers


def _attention(width: int, num_heads: int, num_branches: int) -> Branch:
    return Branch(
        norm=nn.LayerNorm(width),
        qkv=nn.Linear(width, 3 * width, bias=False),
        attention=CausalAttention(width, num_heads),
        out=BranchOutput(width, width, num_branches),
    )


def _mlp(width: int, hidden: int, num_branches: int) -> Branch:
    return Branch(
        norm=nn.LayerNorm(width),
        up=nn.Linear(width, hidden),
        gelu=nn.GELU(),
        down=BranchOutput(hidden, width, num_branches),
    )
