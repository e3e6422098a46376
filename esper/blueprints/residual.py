"""The common part of all blueprints: a residual branch whose last factor is a scale that starts at zero."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from esper.growth.actions import BlendAlgorithm
from esper.growth.blending import BlendedModule
from esper.growth.layouts import Layout


class Residual(nn.Module):
    """A residual branch, x + scale * body(x), with one scale per channel, zero at birth.

    Keeps the shape of x, which is laid out as ``layout`` says. The zero is the *last* factor: nothing saturating
    follows it, so the module is the identity at birth and yet its scale has a gradient. A zero before a normalisation
    or a ReLU would never receive a gradient.
    """

    def __init__(self, channels: int, body: nn.Module, layout: Layout = Layout.MAP) -> None:
        super().__init__()
        self.body = body
        self.scale = nn.Parameter(torch.zeros(layout.per_channel(channels)))

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Set the scale to zero; draw no random numbers."""
        self.scale.zero_()

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.scale * self.body(x)
        return x + change


def norm_groups(channels: int) -> int:
    """Return the groups of a blueprint's GroupNorm: 2 for an even number of channels from 4 on, otherwise 1."""
    return 2 if channels >= 4 and channels % 2 == 0 else 1


def conv_norm(in_channels: int, out_channels: int, kernel_size: int, groups: int = 1) -> list[nn.Module]:
    """Return a convolution without bias that keeps the map's size, and its GroupNorm."""
    conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2, groups=groups, bias=False)
    return [conv, nn.GroupNorm(norm_groups(out_channels), out_channels)]


def layers_residual(channels: int, *layers: nn.Module, layout: Layout = Layout.SEQUENCE) -> Residual:
    """Wrap layers that act on the last axis in a :class:`Residual`."""
    return Residual(channels, nn.Sequential(*layers), layout)


@torch.no_grad()
def settle(module: BlendedModule) -> nn.Module:
    """Make a kept module an ordinary layer by multiplying its alpha into its scale where possible.

    This is possible under ADD and GATE; under MULTIPLY, which saturates, and for a module without a residual's scale,
    alpha stays a constant. Parameters stay the same objects.

    Returns:
        The module's body where nothing else is left to do, otherwise the module.
    """
    alpha, body = float(module.alpha), module.body
    if isinstance(body, Residual) and module.algorithm is not BlendAlgorithm.MULTIPLY:
        body.scale.mul_(alpha)
        module.alpha.fill_(1.0)
        alpha = 1.0
    return body if module.algorithm is BlendAlgorithm.ADD and alpha == 1.0 else module
