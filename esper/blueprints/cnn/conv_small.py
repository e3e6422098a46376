"""1x1 convolution: mixes channels, not pixels."""

from __future__ import annotations

from torch import nn

from esper.blueprints.residual import Residual, conv_norm


def build(channels: int) -> nn.Module:
    """1x1 convolution, GroupNorm, ReLU."""
    return Residual(channels, nn.Sequential(*conv_norm(channels, channels, 1), nn.ReLU()))
