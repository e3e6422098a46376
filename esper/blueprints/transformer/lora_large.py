"""A low-rank linear map of rank 32."""

from __future__ import annotations

from torch import nn

from esper.blueprints.transformer.lora import low_rank

RANK = 32


def build(channels: int) -> nn.Module:
    """Build a residual branch of a linear map of rank 32."""
    return low_rank(channels, RANK)
