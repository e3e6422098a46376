"""Image classification data in memory: three disjoint splits on one device.

Axis legend: N = samples, C = channels, H = W = side of the square images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

IGNORED = -100


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Images ``float32 [N, C, H, W]``, standardised, and labels ``int64 [N]``.

    Raises:
        ValueError: wrong dtype or shape, different lengths, or no samples.
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        shape = tuple(self.images.shape)
        if self.images.dtype != torch.float32 or len(shape) != 4 or shape[2] != shape[3] or not shape[0]:
            raise ValueError(f"images must be float32 [N, C, H, H] with N > 0, not {self.images.dtype} {list(shape)}")
        if self.labels.dtype != torch.int64 or tuple(self.labels.shape) != shape[:1]:
            raise ValueError(f"labels must be int64 [{shape[0]}], not {self.labels.dtype} {list(self.labels.shape)}")

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> Split:
        """The same split on another device."""
        return Split(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskData:
    """What hosts are trained on.

    Attributes:
        train: host training.
        val: reward and observations.
        test: final scores only.
        num_classes: labels are 0 to num_classes - 1.
        version: changes whenever the same name would mean other numbers.

    Raises:
        ValueError: splits of different image shape, or a label out of range.
    """

    name: str
    version: int
    train: Split
    val: Split
    test: Split
    num_classes: int

    def __post_init__(self) -> None:
        for split_name, split in (("train", self.train), ("val", self.val), ("test", self.test)):
            if split.images.shape[1:] != self.train.images.shape[1:]:
                raise ValueError(
                    f"{self.name} {split_name} images are {list(split.images.shape[1:])}, "
                    f"train images {list(self.train.images.shape[1:])}"
                )
            low, high = int(split.labels.min()), int(split.labels.max())
            if low < 0 or high >= self.num_classes:
                raise ValueError(
                    f"{self.name} {split_name} labels run from {low} to {high}; there are {self.num_classes} classes"
                )

    @property
    def in_channels(self) -> int:
        """Channels of an image."""
        return self.train.images.shape[1]

    @property
    def image_size(self) -> int:
        """Side of an image, in pixels."""
        return self.train.images.shape[2]

    @property
    def chance_accuracy(self) -> float:
        """Accuracy, from 0 to 1, of a guess that gives every class the same probability."""
        return 1.0 / self.num_classes

    @property
    def random_loss(self) -> float:
        """Cross-entropy, in nats, of that guess."""
        return math.log(self.num_classes)

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.train.images.device

    def to(self, device: torch.device | str) -> TaskData:
        """The same data on another device."""
        return replace(self, train=self.train.to(device), val=self.val.to(device), test=self.test.to(device))


def split_and_standardise(
    name: str,
    version: int,
    images: Tensor,
    labels: Tensor,
    num_classes: int,
    order: Sequence[int],
    sizes: tuple[int, int, int],
) -> TaskData:
    """Cut data into train, val and test, and standardise all three by the training images' statistics.

    Args:
        images: ``float [N, C, H, W]``, any scale; each channel gets training mean 0 and standard deviation 1.
        labels: ``int64 [N]``.
        order: a permutation of the samples; the first ``sizes[0]`` train, then val, then test.
        sizes: of train, val and test; together all samples.

    Raises:
        ValueError: sizes and order do not use every sample once.
    """
    if sorted(order) != list(range(len(images))) or sum(sizes) != len(images) or min(sizes) < 1:
        raise ValueError(f"splits of {sizes} must use each of {len(images)} samples of {name} once")
    samples = torch.tensor(order)
    parts = (samples[: sizes[0]], samples[sizes[0] : -sizes[2]], samples[-sizes[2] :])
    train_images = images[parts[0]].double()
    mean = train_images.mean((0, 2, 3), keepdim=True)
    std = train_images.std((0, 2, 3), keepdim=True)
    standard = [((images[part] - mean) / std).float() for part in parts]
    # Channels-last, because that is how CPU kernels read images; to gather whole images costs the same.
    train, val, test = (
        Split(split.contiguous(memory_format=torch.channels_last), labels[part])
        for split, part in zip(standard, parts, strict=True)
    )
    return TaskData(name=name, version=version, train=train, val=val, test=test, num_classes=num_classes)
