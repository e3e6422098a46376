"""Image and text data in memory: three disjoint splits on one device, stored compactly and prepared on use.

Axis legend: N = samples, C = channels, H = W = side of the square images, T = tokens in a window of text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["images", "tokens"]

IGNORED = -100
"""Target that does not count; it pads the last window of a text."""

IMAGE_DTYPES = (torch.uint8, torch.float32)
TOKEN_DTYPES = (torch.uint8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Stored samples and their targets.

    Images: inputs ``uint8`` (pixels) or ``float32`` (standardised) ``[N, C, H, W]``, targets ``int64 [N]``, classes.
    Text: inputs ``[N, T]``, windows of tokens, and targets ``[N, T]``, the next tokens or :data:`IGNORED`; both of one
    of :data:`TOKEN_DTYPES`. ``bytes_per_token`` is an average over the split's own text, because an encoding compresses
    its training text best; it makes losses of different vocabularies comparable.

    Raises:
        ValueError: wrong dtype or shape, different lengths, no samples, or a window without any target.
    """

    inputs: Tensor
    targets: Tensor
    bytes_per_token: float = 1.0

    def __post_init__(self) -> None:
        if self.kind == "tokens":
            _check_tokens(self.inputs, self.targets)
        else:
            _check_images(self.inputs, self.targets)

    @property
    def kind(self) -> Kind:
        """Kind of the samples, images or tokens."""
        return "tokens" if self.inputs.dim() == 2 else "images"

    def __len__(self) -> int:
        return len(self.targets)

    def num_targets(self) -> Tensor:
        """Number of targets of each sample that count, ``int64 [N]``: its weight in a mean over all targets."""
        if self.kind == "images":
            return torch.ones_like(self.targets)
        return (self.targets != IGNORED).sum(dim=1)

    def first(self, count: int) -> Split:
        """Return the first samples, at most ``count``."""
        return replace(self, inputs=self.inputs[:count], targets=self.targets[:count])

    def to(self, device: torch.device | str) -> Split:
        """Copy the split to another device."""
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))

    def bits_per_byte(self, loss: float) -> float | None:
        """Convert a loss in nats per token of this split to bits per byte of its text; ``None`` for images."""
        return loss / math.log(2) / self.bytes_per_token if self.kind == "tokens" else None


def _check_images(inputs: Tensor, targets: Tensor) -> None:
    shape = tuple(inputs.shape)
    if inputs.dtype not in IMAGE_DTYPES or len(shape) != 4 or shape[2] != shape[3] or not shape[0]:
        raise ValueError(
            f"inputs must be images uint8 or float32 [N, C, H, H], or tokens [N, T], N > 0, "
            f"not {inputs.dtype} {list(shape)}"
        )
    if targets.dtype != torch.int64 or tuple(targets.shape) != shape[:1]:
        raise ValueError(f"targets of images must be int64 [{shape[0]}], not {targets.dtype} {list(targets.shape)}")


def _check_tokens(inputs: Tensor, targets: Tensor) -> None:
    for name, tokens in (("inputs", inputs), ("targets", targets)):
        if tokens.dtype not in TOKEN_DTYPES or tokens.shape != inputs.shape or not tokens.numel():
            raise ValueError(
                f"{name} of text must be integers {list(inputs.shape)}, N and T > 0, "
                f"not {tokens.dtype} {list(tokens.shape)}"
            )
    if not (targets != IGNORED).any(dim=1).all():
        raise ValueError("every window of text must have a target")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskData:
    """Data of a task: three splits with the properties that they share.

    Attributes:
        train: data for training hosts.
        val: data for reward and observations.
        test: data for final scores only.
        num_classes: targets are 0 to num_classes - 1; for text the size of the vocabulary. At least 2: with one class
            every guess is right.
        version: changes whenever the same name would mean other numbers.
        mean, std: statistics of the training pixels, ``float32 [C, 1, 1]``, for ``uint8`` images; ``None`` for others.

    Raises:
        ValueError: splits of different kind or shape, fewer than two classes, a target out of range, pixels without
            mean and deviation, or a number that is not finite.
    """

    name: str
    version: int
    train: Split
    val: Split
    test: Split
    num_classes: int
    mean: Tensor | None = None
    std: Tensor | None = None

    def __post_init__(self) -> None:
        if self.num_classes < 2:
            raise ValueError(
                f"task {self.name} has num_classes={self.num_classes}: there is nothing to learn; a "
                "task needs at least 2 classes"
            )
        for split_name, split in self.splits().items():
            if split.inputs.shape[1:] != self.train.inputs.shape[1:] or split.inputs.dtype != self.train.inputs.dtype:
                raise ValueError(
                    f"{self.name} {split_name} inputs are {split.inputs.dtype} {list(split.inputs.shape[1:])}, "
                    f"train inputs {self.train.inputs.dtype} {list(self.train.inputs.shape[1:])}"
                )
            counted = split.targets[split.targets != IGNORED] if self.kind == "tokens" else split.targets
            low, high = int(counted.min()), int(counted.max())
            if low < 0 or high >= self.num_classes:
                raise ValueError(
                    f"{self.name} {split_name} targets run from {low} to {high}; there are {self.num_classes} classes"
                )
        pixels = self.kind == "images" and self.train.inputs.dtype == torch.uint8
        if pixels != (self.mean is not None) or pixels != (self.std is not None):
            raise ValueError(f"{self.name}: mean and std belong to uint8 images, and only to them")
        self._check_finite()

    def _check_finite(self) -> None:
        """Refuse numbers that are not finite, which would end every host's first epoch."""
        for split_name, split in self.splits().items() if self.train.inputs.is_floating_point() else ():
            broken = (~split.inputs.flatten(1).isfinite()).any(dim=1).nonzero().flatten().tolist()
            if broken:
                raise ValueError(
                    f"task {self.name}: {len(broken)} of {len(split)} {split_name} images have pixels that are not "
                    f"finite, the first is number {broken[0]}: leave them out, or correct their source"
                )
        if self.mean is None or self.std is None:
            return
        if not self.mean.isfinite().all() or not self.std.isfinite().all() or not (self.std > 0).all():
            raise ValueError(
                f"task {self.name}: mean and std must be finite and std above 0 in every channel, got "
                f"{self.mean.flatten().tolist()} and {self.std.flatten().tolist()}"
            )

    def splits(self) -> dict[str, Split]:
        """All three splits by name."""
        return {"train": self.train, "val": self.val, "test": self.test}

    @property
    def kind(self) -> Kind:
        """Kind of the samples, images or tokens."""
        return self.train.kind

    @property
    def in_channels(self) -> int:
        """Channels of an image; ``ValueError`` of text."""
        return self._image_shape()[0]

    @property
    def image_size(self) -> int:
        """Side of an image, in pixels; ``ValueError`` of text."""
        return self._image_shape()[1]

    def _image_shape(self) -> torch.Size:
        if self.kind != "images":
            raise ValueError(f"task {self.name} has no images but {self.kind}")
        return self.train.inputs.shape[1:]

    @property
    def context_length(self) -> int:
        """Tokens in a window; ``ValueError`` of images."""
        if self.kind != "tokens":
            raise ValueError(f"task {self.name} has no text but {self.kind}")
        return self.train.inputs.shape[1]

    @property
    def chance_accuracy(self) -> float:
        """Accuracy, from 0 to 1, of a guess that gives every class the same probability."""
        return 1.0 / self.num_classes

    @property
    def random_loss(self) -> float:
        """Cross-entropy, in nats, of a guess that gives every class the same probability."""
        return math.log(self.num_classes)

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return self.train.inputs.device

    def prepare(self, inputs: Tensor) -> Tensor:
        """Convert stored inputs to the inputs of hosts, on the same device.

        Args:
            inputs: samples of any split with any leading axes, ``[..., C, H, W]`` or ``[..., T]``.

        Returns:
            Images ``float32``, standardised by the training images; those that are ``float32`` already, unchanged.
            Tokens ``int64``.
        """
        if self.kind == "tokens":
            return inputs.long()
        if self.mean is None or self.std is None:
            return inputs
        return (inputs - self.mean) / self.std  # uint8 minus float32 is float32

    def first(self, count: int) -> TaskData:
        """Return at most ``count`` samples of each split."""
        return replace(self, train=self.train.first(count), val=self.val.first(count), test=self.test.first(count))

    def to(self, device: torch.device | str) -> TaskData:
        """Copy the data to another device."""
        return replace(
            self,
            train=self.train.to(device),
            val=self.val.to(device),
            test=self.test.to(device),
            mean=None if self.mean is None else self.mean.to(device),
            std=None if self.std is None else self.std.to(device),
        )


def split_and_standardise(
    name: str,
    version: int,
    images: Tensor,
    labels: Tensor,
    num_classes: int,
    order: Sequence[int],
    sizes: tuple[int, int, int],
) -> TaskData:
    """Divide data into train, val and test, and standardise all three by the training images' statistics.

    Args:
        images: ``float [N, C, H, W]``, any scale; each channel gets training mean 0 and standard deviation 1.
        labels: ``int64 [N]``.
        order: a permutation of the samples; the first ``sizes[0]`` train, then val, then test.
        sizes: sizes of train, val and test; together all samples.

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
