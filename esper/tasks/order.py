"""Data order: the samples of a host's epoch, determined by its own random stream alone."""

from __future__ import annotations

import torch
from torch import Tensor

from esper.runtime.rng import generator


def epoch_indices(pool: Tensor, count: int, *seed_parts: int | str) -> Tensor:
    """Return the samples of one epoch: permutations of the pool, one after the other, cut at ``count``.

    Args:
        pool: ``int64 [M]``, samples of this host, on the CPU.
        count: samples in the epoch (steps times batch size); if it exceeds M, every sample recurs evenly.
        seed_parts: name of the random stream, for example ``order_seed, epoch``.

    Returns:
        ``int64 [count]``, drawn on the CPU, so that it is the same for every device.

    Raises:
        ValueError: an empty pool or a negative count.
    """
    size = len(pool)
    if size == 0 or count < 0:
        raise ValueError(f"can't draw {count} samples from a pool of {size}")
    stream = generator("order", *seed_parts)
    passes = [torch.randperm(size, generator=stream) for _ in range(-(-count // size))]
    picks = torch.cat(passes)[:count] if passes else torch.empty(0, dtype=torch.int64)
    return pool[picks]
