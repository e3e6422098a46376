"""Data order: which samples a host sees in an epoch, from its own stream and nothing else."""

from __future__ import annotations

import torch
from torch import Tensor

from esper.runtime.rng import generator


def epoch_indices(pool: Tensor, count: int, *seed_parts: int | str) -> Tensor:
    """The samples of one epoch: permutations of the pool, one after the other, cut at ``count``.

    Args:
        pool: ``int64 [M]``, samples this host may see.
        count: samples in the epoch (steps times batch size); may exceed M, then every sample recurs evenly.
        seed_parts: names the stream, for example ``order_seed, epoch``.

    Returns:
        ``int64 [count]`` on the pool's device. Drawn on the CPU, so the same on every device.

    Raises:
        ValueError: an empty pool or a negative count.
    """
    size = len(pool)
    if size == 0 or count < 0:
        raise ValueError(f"can't draw {count} samples from a pool of {size}")
    stream = generator("order", *seed_parts)
    passes = [torch.randperm(size, generator=stream) for _ in range(-(-count // size))]
    picks = torch.cat(passes)[:count] if passes else torch.empty(0, dtype=torch.int64)
    return pool[picks.to(pool.device)]
