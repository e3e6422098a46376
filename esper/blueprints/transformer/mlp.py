"""LayerNorm and an MLP with a hidden layer four times as wide."""

from __future__ import annotations

from torch import nn

from esper.blueprints.residual import layers_residual
from esper.growth.layouts import Layout

EXPANSION = 4


def build(channels: int) -> nn.Module:
    """Build a residual branch of LayerNorm and an MLP with 4 C hidden units."""
    return norm_mlp(channels, EXPANSION)


def norm_mlp(channels: int, expansion: int, layout: Layout = Layout.SEQUENCE) -> nn.Module:
    """Build a residual branch of LayerNorm, linear, GELU and linear layers, with ``expansion`` x C hidden units."""
    hidden = expansion * channels
    layers = nn.LayerNorm(channels), nn.Linear(channels, hidden), nn.GELU(), nn.Linear(hidden, channels)
    return layers_residual(channels, *layers, layout=layout)
