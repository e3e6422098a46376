"""Two 3x3 convolutions."""

from __future__ import annotations

from torch import nn

from esper.blueprints.residual import Residual, conv_norm


def build(channels: int) -> nn.Module:
    """Build a residual branch of two 3x3 convolutions, each with GroupNorm and ReLU."""
    layers = [*conv_norm(channels, channels, 3), nn.ReLU(), *conv_norm(channels, channels, 3), nn.ReLU()]
    return Residual(channels, nn.Sequential(*layers))
