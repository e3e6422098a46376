"""3x3 convolution."""

from __future__ import annotations

from torch import nn

from esper.blueprints.residual import Residual, conv_norm


def build(channels: int) -> nn.Module:
    """3x3 convolution, GroupNorm, ReLU."""
    return Residual(channels, nn.Sequential(*conv_norm(channels, channels, 3), nn.ReLU()))
