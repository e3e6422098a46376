"""Scaled mix of the normalised feature: x + scale * GroupNorm(x)."""

from __future__ import annotations

from torch import nn

from esper.blueprints.residual import Residual, norm_groups


def build(channels: int) -> nn.Module:
    """Three numbers per channel."""
    return Residual(channels, nn.GroupNorm(norm_groups(channels), channels))
