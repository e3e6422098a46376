"""Scaled mix of the normalised feature: x + scale * GroupNorm(x)."""

from __future__ import annotations

from torch import nn

from esper.blueprints.residual import Residual, norm_groups


def build(channels: int) -> nn.Module:
    """Build a residual branch of a GroupNorm: three parameters per channel, with its scale."""
    return Residual(channels, nn.GroupNorm(norm_groups(channels), channels))
