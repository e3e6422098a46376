"""Scaled mix of the normalised feature: x + scale * LayerNorm(x)."""

from __future__ import annotations

from torch import nn

from esper.blueprints.residual import token_residual


def build(channels: int) -> nn.Module:
    """Three numbers per channel."""
    return token_residual(channels, nn.LayerNorm(channels))
