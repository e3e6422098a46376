"""Convolutional networks that no controller was trained on, each with its optimizer and schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR, StepLR

SLOTS = ("stem", "layer1", "layer2")


class Plain(nn.Module):
    """Three convolutions, of which the first and the last halve the map, and a linear head.

    Args:
        width: channels.
        norm: makes the normalisation behind each convolution.
    """

    def __init__(self, width: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.stem = convolution(1, width, norm, stride=2)
        self.layer1, self.layer2 = convolution(width, width, norm), convolution(width, width, norm, stride=2)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``[B, 10]`` of images ``[B, 1, H, W]``."""
        return self.head(self.layer2(self.layer1(self.stem(x))).mean((2, 3)))


class Skipping(nn.Module):
    """A convolution and two residual branches, and a linear head.

    Args:
        width: channels.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = convolution(1, width, nn.BatchNorm2d, stride=2)
        self.layer1, self.layer2 = (convolution(width, width, nn.BatchNorm2d) for _ in range(2))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``[B, 10]`` of images ``[B, 1, H, W]``."""
        x = self.stem(x)
        x = x + self.layer1(x)
        x = x + self.layer2(x)
        return self.head(x.mean((2, 3)))


class Pointwise(nn.Module):
    """Three 1x1 convolutions, which see no neighbours, and a linear head.

    Args:
        width: channels.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = convolution(1, width, two_groups, stride=2, size=1)
        self.layer1, self.layer2 = (convolution(width, width, two_groups, size=1) for _ in range(2))
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``[B, 10]`` of images ``[B, 1, H, W]``."""
        return self.head(self.layer2(self.pool(self.layer1(self.stem(x)))).mean((2, 3)))


def convolution(
    channels: int, width: int, norm: Callable[[int], nn.Module], stride: int = 1, size: int = 3
) -> nn.Sequential:
    """Build a convolution, its normalisation and a ReLU."""
    return nn.Sequential(nn.Conv2d(channels, width, size, stride, size // 2, bias=False), norm(width), nn.ReLU())


def two_groups(width: int) -> nn.Module:
    """Build a GroupNorm."""
    return nn.GroupNorm(2, width)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A network and its training.

    Attributes:
        build: builds the network.
        optimizer: makes the optimizer of its parameters.
        scheduler: makes the schedule of the learning rate, for a number of steps.
    """

    build: Callable[[], nn.Module]
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    scheduler: Callable[[torch.optim.Optimizer, int], LRScheduler]


NETWORKS = {
    "batch_norm_sgd": Recipe(
        build=lambda: Plain(4, nn.BatchNorm2d),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=5e-4),
        scheduler=lambda optimizer, steps: OneCycleLR(optimizer, max_lr=0.1, total_steps=steps),
    ),
    "group_norm_adam": Recipe(
        build=lambda: Plain(6, two_groups),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=3e-3),
        scheduler=lambda optimizer, steps: CosineAnnealingLR(optimizer, steps),
    ),
    "residual": Recipe(
        build=lambda: Skipping(4),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=5e-3, weight_decay=0.01),
        scheduler=lambda optimizer, steps: CosineAnnealingLR(optimizer, steps),
    ),
    "pointwise": Recipe(
        build=lambda: Pointwise(8),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        scheduler=lambda optimizer, steps: StepLR(optimizer, steps),
    ),
}
