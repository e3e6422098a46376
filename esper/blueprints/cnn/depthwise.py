"""A 3x3 depthwise and a 1x1 convolution: spatial mixing with few parameters."""

from __future__ import annotations

from torch import nn

from esper.blueprints.residual import Residual, conv_norm


def build(channels: int) -> nn.Module:
    """Build a residual branch of a depthwise 3x3 and a pointwise 1x1 convolution with GroupNorm and ReLU."""
    spatial = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
    return Residual(channels, nn.Sequential(spatial, *conv_norm(channels, channels, 1), nn.ReLU()))
