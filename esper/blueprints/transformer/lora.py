"""A low-rank linear map beside the host's own (Hu et al. 2021), rank 8."""

from __future__ import annotations

from torch import nn

from esper.blueprints.residual import layers_residual
from esper.growth.layouts import Layout

RANK = 8


def build(channels: int) -> nn.Module:
    """Build a residual branch of a linear map of rank 8."""
    return low_rank(channels, RANK)


def low_rank(channels: int, rank: int, layout: Layout = Layout.SEQUENCE) -> nn.Module:
    """Build a residual branch of a linear map down to ``rank`` and up again, without bias; the branch's scale replaces
    LoRA's zero matrix.
    """
    layers = nn.Linear(channels, rank, bias=False), nn.Linear(rank, channels, bias=False)
    return layers_residual(channels, *layers, layout=layout)
