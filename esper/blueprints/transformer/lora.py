"""A low-rank linear map beside the host's own (Hu et al. 2021), rank 8."""

from __future__ import annotations

from torch import nn

from esper.blueprints.residual import token_residual

RANK = 8


def build(channels: int) -> nn.Module:
    """Rank 8."""
    return low_rank(channels, RANK)


def low_rank(channels: int, rank: int) -> nn.Module:
    """Down to ``rank`` and up again, no bias; the zero that LoRA keeps in its second matrix is the residual's scale."""
    return token_residual(channels, nn.Linear(channels, rank, bias=False), nn.Linear(rank, channels, bias=False))
