"""Images stored as published, in bytes: divided into splits, and standardised only when a host reads them.

Axis legend: N = samples, C = channels, H = W = side of the square images.
"""

from __future__ import annotations

import torch
from torch import Tensor

from esper.runtime.rng import derive_seed
from esper.tasks.data import Split, TaskData


def split_pixels(name: str, version: int, published: Split, test: Split, num_classes: int, num_val: int) -> TaskData:
    """Make a task of ``uint8`` images: val is drawn from the published training images, test is the published one.

    Args:
        name, version: name and version of the task; they alone decide which images validate. A shorter val consists of
            the first images of a longer one.
        published, test: the published splits, ``uint8 [N, C, H, W]``.
        num_classes: number of classes.
        num_val: number of validation images; the others train.

    Raises:
        ValueError: ``num_val`` leaves nothing to train on.
    """
    count = len(published)
    if not 0 < num_val < count:
        raise ValueError(f"task.num_val must be from 1 to {count - 1}, of {count} images of {name}; got {num_val}")
    # Sorted by hash, not by a library's shuffle, so that no library's version can move an image.
    order = torch.tensor(sorted(range(count), key=lambda sample: derive_seed(name, version, sample)))
    train, val = _pick(published, order[num_val:]), _pick(published, order[:num_val])
    mean, std = _mean_and_std(train.inputs)
    test = Split(test.inputs.contiguous(memory_format=torch.channels_last), test.targets)
    return TaskData(
        name=name, version=version, train=train, val=val, test=test, num_classes=num_classes, mean=mean, std=std
    )


def _pick(split: Split, samples: Tensor) -> Split:
    # Channels-last, because that is how CPU kernels read images; to gather whole images costs the same.
    images = split.inputs[samples].contiguous(memory_format=torch.channels_last)
    return Split(images, split.targets[samples])


def _mean_and_std(images: Tensor) -> tuple[Tensor, Tensor]:
    """Compute mean and standard deviation of each channel, ``float32 [C, 1, 1]``, exactly, from counts of each pixel
    value.
    """
    values = torch.arange(256, dtype=torch.float64)
    means, stds = [], []
    for channel in images.unbind(1):
        counts = channel.flatten().bincount(minlength=256).double()
        mean = (counts * values).sum() / counts.sum()
        means.append(mean)
        stds.append(((counts * (values - mean) ** 2).sum() / counts.sum()).sqrt())
    return torch.stack(means).float().view(-1, 1, 1), torch.stack(stds).float().view(-1, 1, 1)
