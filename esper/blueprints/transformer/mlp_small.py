"""LayerNorm and an MLP with a hidden layer twice as wide."""

from __future__ import annotations

from torch import nn

from esper.blueprints.transformer.mlp import norm_mlp

EXPANSION = 2


def build(channels: int) -> nn.Module:
    """Hidden layer of 2 C units."""
    return norm_mlp(channels, EXPANSION)
