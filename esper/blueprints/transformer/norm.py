"""Scaled mix of the normalised feature: x + scale * LayerNorm(x)."""

from __future__ import annotations

from torch import nn

from esper.blueprints.residual import layers_residual
from esper.growth.layouts import Layout


def build(channels: int) -> nn.Module:
    """Build a residual branch of a LayerNorm: three parameters per channel, with its scale."""
    return scaled_norm(channels)


def scaled_norm(channels: int, layout: Layout = Layout.SEQUENCE) -> nn.Module:
    """Build a residual branch of a LayerNorm, for features of one layout."""
    return layers_residual(channels, nn.LayerNorm(channels), layout=layout)
