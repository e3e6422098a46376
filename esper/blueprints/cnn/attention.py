"""Squeeze-and-excitation (Hu et al. 2018): a small network on the channel means reweights the channels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from esper.blueprints.residual import Residual

MIN_SQUEEZE = 4
REDUCTION = 4


class SqueezeExcite(nn.Module):
    """Channel attention: multiply x by a weight in (0, 1) per sample and channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = max(MIN_SQUEEZE, channels // REDUCTION)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.squeeze = nn.Conv2d(channels, hidden, 1)
        self.excite = nn.Conv2d(hidden, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        # tanh instead of the paper's ReLU: with four hidden units on non-negative means, all of them can be dead.
        hidden = torch.tanh(self.squeeze(self.pool(x)))  # [B, hidden, 1, 1]
        return x * torch.sigmoid(self.excite(hidden))


def build(channels: int) -> nn.Module:
    """Build a residual branch of squeeze-and-excitation with max(4, C / 4) hidden units."""
    return Residual(channels, SqueezeExcite(channels))
