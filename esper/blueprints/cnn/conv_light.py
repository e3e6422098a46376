"""One 3x3 convolution."""

from __future__ import annotations

from torch import nn

from esper.blueprints.residual import Residual, conv_norm


def build(channels: int) -> nn.Module:
    """Build a residual branch of a 3x3 convolution with GroupNorm and ReLU."""
    return Residual(channels, nn.Sequential(*conv_norm(channels, channels, 3), nn.ReLU()))
