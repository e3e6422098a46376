"""LayerNorm and an MLP with a hidden layer twice as wide."""

from __future__ import annotations

from torch import nn

from esper.blueprints.transformer.mlp import norm_mlp

EXPANSION = 2


def build(channels: int) -> nn.Module:
    """Build a residual branch of LayerNorm and an MLP with 2 C hidden units."""
    return norm_mlp(channels, EXPANSION)
