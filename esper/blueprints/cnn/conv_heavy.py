"""Two 3x3 convolutions."""

from __future__ import annotations

from torch import nn

from esper.blueprints.residual import Residual, conv_norm


def build(channels: int) -> nn.Module:
    """Twice 3x3 convolution, GroupNorm, ReLU."""
    layers = [*conv_norm(channels, channels, 3), nn.ReLU(), *conv_norm(channels, channels, 3), nn.ReLU()]
    return Residual(channels, nn.Sequential(*layers))
