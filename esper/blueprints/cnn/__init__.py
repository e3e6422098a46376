"""Seed modules for convolutional hosts, ``[B, C, H, W] -> [B, C, H, W]``."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from esper.blueprints.cnn import attention, bottleneck, conv_heavy, conv_light, conv_small, depthwise, norm

BUILDERS: dict[str, Callable[[int], nn.Module]] = {
    "conv_light": conv_light.build,
    "attention": attention.build,
    "norm": norm.build,
    "depthwise": depthwise.build,
    "bottleneck": bottleneck.build,
    "conv_small": conv_small.build,
    "conv_heavy": conv_heavy.build,
}
