"""3x3 depthwise convolution and 1x1 convolution: spatial mixing for few parameters."""

from __future__ import annotations

from torch import nn

from esper.blueprints.residual import Residual, conv_norm


def build(channels: int) -> nn.Module:
    """Depthwise 3x3, pointwise 1x1, GroupNorm, ReLU."""
    spatial = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
    return Residual(channels, nn.Sequential(spatial, *conv_norm(channels, channels, 1), nn.ReLU()))
