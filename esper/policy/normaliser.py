"""Running mean and standard deviation of observations.

Axis legend: D = features, ... = any leading shape.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

CLIP = 5.0
EPSILON = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Count, mean and sum of squared deviations of a batch of feature vectors, in float64.

    Attributes:
        count: ``float64 []``.
        mean: ``float64 [D]``.
        m2: ``float64 [D]``, sum of squared deviations from the mean.
    """

    count: Tensor
    mean: Tensor
    m2: Tensor

    def to(self, device: torch.device | str) -> Moments:
        """The same numbers on a device."""
        return Moments(**{item.name: getattr(self, item.name).to(device) for item in fields(self)})


def moments(features: Tensor) -> Moments:
    """Moments of ``[..., D]``, over all leading axes."""
    rows = features.detach().reshape(-1, features.shape[-1]).double()
    mean = rows.mean(0) if len(rows) else rows.new_zeros(rows.shape[1])
    count = torch.tensor(float(len(rows)), dtype=torch.float64, device=rows.device)
    return Moments(count=count, mean=mean, m2=(rows - mean).square().sum(0))


def merge_moments(a: Moments, b: Moments) -> Moments:
    """Moments of two batches together (Chan, Golub and LeVeque 1983)."""
    count = a.count + b.count
    divisor = count.clamp(min=1)
    delta = b.mean - a.mean
    return Moments(
        count=count,
        mean=a.mean + delta * b.count / divisor,
        m2=a.m2 + b.m2 + delta.square() * a.count * b.count / divisor,
    )


class Normaliser(nn.Module):
    """Shifts and scales continuous features to mean 0 and deviation 1 and clips them to +-5; others pass through.

    The identity before the first update. Statistics change in :meth:`merge` only, and are the state dict.

    Args:
        continuous: ``bool [D]``, features to normalise.
    """

    count: Tensor
    mean: Tensor
    m2: Tensor
    continuous: Tensor

    def __init__(self, continuous: Tensor) -> None:
        super().__init__()
        zeros = torch.zeros(continuous.shape[0], dtype=torch.float64, device=continuous.device)
        self.register_buffer("continuous", continuous.clone(), persistent=False)
        self.register_buffer("count", zeros.new_zeros(()))
        self.register_buffer("mean", zeros)
        self.register_buffer("m2", zeros.clone())

    def forward(self, features: Tensor) -> Tensor:
        """Normalise ``[..., D]``; returns float32 of the same shape."""
        deviation = (self.m2 / self.count.clamp(min=1) + EPSILON).sqrt()
        normalised = ((features.double() - self.mean) / deviation).clamp(-CLIP, CLIP)
        return torch.where(self.continuous & (self.count > 0), normalised, features.double()).float()

    def merge(self, new: Moments) -> None:
        """Take in the moments of a batch, for example those of each rank in rank order; they may be on any device."""
        own = Moments(count=self.count, mean=self.mean, m2=self.m2)
        merged = merge_moments(own, new.to(self.count.device))
        self.count, self.mean, self.m2 = merged.count, merged.mean, merged.m2
