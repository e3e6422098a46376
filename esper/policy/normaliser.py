"""Running mean and standard deviation of observations.

Axis legend: D = features, K = kinds of features, ... = any leading shape.
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
        """Copy to a device."""
        return Moments(**{item.name: getattr(self, item.name).to(device) for item in fields(self)})


def moments(features: Tensor) -> Moments:
    """Compute the moments of ``[..., D]`` over all leading axes."""
    rows = features.detach().reshape(-1, features.shape[-1]).double()
    mean = rows.mean(0) if len(rows) else rows.new_zeros(rows.shape[1])
    count = torch.tensor(float(len(rows)), dtype=torch.float64, device=rows.device)
    return Moments(count=count, mean=mean, m2=(rows - mean).square().sum(0))


def merge_moments(a: Moments, b: Moments) -> Moments:
    """Merge the moments of two batches (Chan, Golub and LeVeque 1983)."""
    count = a.count + b.count
    divisor = count.clamp(min=1)
    delta = b.mean - a.mean
    return Moments(
        count=count,
        mean=a.mean + delta * b.count / divisor,
        m2=a.m2 + b.m2 + delta.square() * a.count * b.count / divisor,
    )


def pool_moments(each: Moments, kinds: Tensor) -> Moments:
    """Pool the moments of features of one kind, as if a row had one of them at random.

    Args:
        each: moments of D features.
        kinds: ``int64 [D]``, numbers of kinds from 0 to K - 1.

    Returns:
        Moments of K kinds, with the same count.
    """
    members = torch.bincount(kinds)

    def mean_of(values: Tensor) -> Tensor:
        return values.new_zeros(len(members)).index_add(0, kinds, values) / members

    mean = mean_of(each.mean)
    return Moments(count=each.count, mean=mean, m2=mean_of(each.m2 + each.count * (each.mean - mean[kinds]).square()))


class Normaliser(nn.Module):
    """Shift and scale continuous features to mean 0 and deviation 1 and clip them to +-5; pass others through.

    The identity before the first update. Only :meth:`merge` changes the statistics, which are the state dict.

    Args:
        continuous: ``bool [D]``, features to normalise.
        kinds: ``int64 [D]``, numbers from 0 of features that share one mean and deviation, such as one of all slots;
            ``None`` for statistics of each feature.
    """

    count: Tensor
    mean: Tensor
    m2: Tensor
    continuous: Tensor
    kinds: Tensor | None

    def __init__(self, continuous: Tensor, kinds: Tensor | None = None) -> None:
        super().__init__()
        num_kinds = len(continuous) if kinds is None else int(kinds.max()) + 1
        zeros = torch.zeros(num_kinds, dtype=torch.float64, device=continuous.device)
        self.register_buffer("continuous", continuous.clone(), persistent=False)
        self.register_buffer("kinds", None if kinds is None else kinds.clone(), persistent=False)
        self.register_buffer("count", zeros.new_zeros(()))
        self.register_buffer("mean", zeros)
        self.register_buffer("m2", zeros.clone())

    def forward(self, features: Tensor) -> Tensor:
        """Normalise ``[..., D]``; returns float32 of the same shape."""
        deviation = (self.m2 / self.count.clamp(min=1) + EPSILON).sqrt()
        mean = self.mean
        if self.kinds is not None:
            mean, deviation = mean[self.kinds], deviation[self.kinds]
        normalised = ((features.double() - mean) / deviation).clamp(-CLIP, CLIP)
        return torch.where(self.continuous & (self.count > 0), normalised, features.double()).float()

    def merge(self, new: Moments) -> None:
        """Add the moments of a batch, for example those of each rank in rank order; they may be on any device."""
        own = Moments(count=self.count, mean=self.mean, m2=self.m2)
        new = new.to(self.count.device)
        merged = merge_moments(own, new if self.kinds is None else pool_moments(new, self.kinds))
        self.count, self.mean, self.m2 = merged.count, merged.mean, merged.m2
