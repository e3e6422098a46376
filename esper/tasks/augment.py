"""Augmentation of images, different for each host, batched on the device of the images.

Axis legend: E = environments, B = samples of one host's minibatch, C = channels, H = W = side of the square images.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esper.runtime.rng import generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Augmentation:
    """Random changes of training images; val and test images stay unchanged.

    Attributes:
        crop: pixels by which an image may move up, down, left or right, filled with its mirror image. 0 is off.
        flip: mirror images left to right with probability one half.
        cutout: side of a square, centred anywhere, that is blanked to the mean colour. 0 is off.
    """

    crop: int = 0
    flip: bool = False
    cutout: int = 0

    @property
    def active(self) -> bool:
        """True if any augmentation is on."""
        return bool(self.crop or self.flip or self.cutout)

    def draw(self, count: int, image_size: int, *seed_parts: int | str) -> Tensor:
        """Draw the augmentation of ``count`` images, ``int64 [count, 5]``: shift down and right, mirrored, centre of
        the square.

        Drawn on the CPU with an independent generator, so equal on every device.
        """
        stream = generator("augmentation", *seed_parts)
        shift = torch.randint(-self.crop, self.crop + 1, (count, 2), generator=stream)
        mirrored = torch.randint(2, (count, 1), generator=stream) * self.flip
        centre = torch.randint(image_size, (count, 2), generator=stream)
        return torch.cat([shift, mirrored, centre], dim=1)

    def take(self, images: Tensor, index: Tensor, draws: Tensor) -> Tensor:
        """Gather shifted and mirrored images with a single indexing operation.

        Args:
            images: ``[N, C, H, W]``, as stored.
            index: ``int64 [E, B]``.
            draws: ``int64 [E, B, 5]``, result of :meth:`draw`.

        Returns:
            ``[E, B, C, H, W]``, in the stored type.
        """
        size = images.shape[-1]
        at = torch.arange(size, device=images.device)
        down, right, mirrored = draws[..., 0:1], draws[..., 1:2], draws[..., 2:3]
        rows = _mirrored_in(at - down, size)  # (E, B, H)
        columns = _mirrored_in(at - right, size)  # (E, B, W)
        columns = torch.where(mirrored.bool(), size - 1 - columns, columns)
        taken = images.permute(0, 2, 3, 1)[index[..., None, None], rows[..., :, None], columns[..., None, :]]
        return taken.permute(0, 1, 4, 2, 3)  # (E, B, H, W, C) in memory: channels last

    def blank(self, images: Tensor, draws: Tensor) -> Tensor:
        """Set a square of each image to 0, the mean colour, unless cutout is off.

        Args:
            images: ``[E, B, C, H, W]``, standardised.
            draws: ``int64 [E, B, 5]``, result of :meth:`draw`.

        Returns:
            The images, in the same type and memory layout.
        """
        if not self.cutout:
            return images
        at = torch.arange(images.shape[-1], device=images.device)
        offset = at - draws[..., 3:5, None] + self.cutout // 2  # (E, B, 2, H)
        inside = (offset >= 0) & (offset < self.cutout)
        square = inside[..., 0, :, None] & inside[..., 1, None, :]  # (E, B, H, W)
        return images * ~square.unsqueeze(-3)  # unlike masked_fill, a product keeps the images' memory layout


def _mirrored_in(position: Tensor, size: int) -> Tensor:
    """Reflect positions beyond an edge at the edge pixel."""
    return (size - 1) - ((size - 1) - position.abs()).abs()
