"""One 1x1 convolution, which mixes channels but not pixels."""

from __future__ import annotations

from torch import nn

from esper.blueprints.residual import Residual, conv_norm


def build(channels: int) -> nn.Module:
    """Build a residual branch of a 1x1 convolution with GroupNorm and ReLU."""
    return Residual(channels, nn.Sequential(*conv_norm(channels, channels, 1), nn.ReLU()))
