"""LayerNorm and an MLP with a hidden layer four times as wide."""

from __future__ import annotations

from torch import nn

from esper.blueprints.residual import token_residual

EXPANSION = 4


def build(channels: int) -> nn.Module:
    """Hidden layer of 4 C units."""
    return norm_mlp(channels, EXPANSION)


def norm_mlp(channels: int, expansion: int) -> nn.Module:
    """LayerNorm, linear, GELU, linear."""
    hidden = expansion * channels
    layers = nn.LayerNorm(channels), nn.Linear(channels, hidden), nn.GELU(), nn.Linear(hidden, channels)
    return token_residual(channels, *layers)
