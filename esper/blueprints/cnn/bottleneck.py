"""A bottleneck of 1x1, 3x3 and 1x1 convolutions (He et al. 2016)."""

from __future__ import annotations

from torch import nn

from esper.blueprints.residual import Residual, conv_norm

MIN_WIDTH = 8
REDUCTION = 4


def build(channels: int) -> nn.Module:
    """Build a residual bottleneck of max(8, C / 4) channels; GroupNorm and ReLU follow its first two convolutions."""
    width = max(MIN_WIDTH, channels // REDUCTION)
    body = nn.Sequential(
        *conv_norm(channels, width, 1),
        nn.ReLU(),
        *conv_norm(width, width, 3),
        nn.ReLU(),
        nn.Conv2d(width, channels, 1, bias=False),
    )
    return Residual(channels, body)
