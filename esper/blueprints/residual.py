"""What all blueprints share: a residual branch whose last factor is a scale that starts at zero."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from esper.growth.layouts import Layout


class Residual(nn.Module):
    """x + scale * body(x), with one scale per channel, zero at birth.

    Keeps the shape of x: ``[B, C, H, W]``, or ``[B, T, C]`` with ``layout=Layout.SEQUENCE``. The zero is the *last*
    factor: nothing that saturates follows it, so the module is the identity at birth and yet its scale has a gradient.
    A zero before a normalisation or a ReLU would be dead for ever.
    """

    def __init__(self, channels: int, body: nn.Module, layout: Layout = Layout.MAP) -> None:
        super().__init__()
        self.body = body
        self.scale = nn.Parameter(torch.zeros(layout.per_channel(channels)))

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Return the scale to zero; draws nothing."""
        self.scale.zero_()

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.scale * self.body(x)
        return x + change


def norm_groups(channels: int) -> int:
    """Groups of a blueprint's GroupNorm: 2 for an even number of channels from 4 on, otherwise 1."""
    return 2 if channels >= 4 and channels % 2 == 0 else 1


def conv_norm(in_channels: int, out_channels: int, kernel_size: int, groups: int = 1) -> list[nn.Module]:
    """Convolution without bias that keeps the map's size, and its GroupNorm."""
    conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2, groups=groups, bias=False)
    return [conv, nn.GroupNorm(norm_groups(out_channels), out_channels)]


def token_residual(channels: int, *layers: nn.Module) -> Residual:
    """A :class:`Residual` for sequences around some layers."""
    return Residual(channels, nn.Sequential(*layers), Layout.SEQUENCE)
