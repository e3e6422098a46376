"""Augmentation of images: each host's own, batched on the device where the images are.

Axis legend: E = environments, B = samples of one host's minibatch, C = channels, H = W = side of the square images.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esper.runtime.rng import generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Augmentation:
    """How training images are changed; val and test never are.

    Attributes:
        crop: pixels by which an image may move up, down, left or right; what enters is its mirror image. 0 is off.
        flip: mirror every other image, left to right.
        cutout: side of a square, centred anywhere, that is blanked to the mean colour. 0 is off.
    """

    crop: int = 0
    flip: bool = False
    cutout: int = 0

    @property
    def active(self) -> bool:
        """Whether anything is changed."""
        return bool(self.crop or self.flip or self.cutout)

    def draw(self, count: int, image_size: int, *seed_parts: int | str) -> Tensor:
        """What happens to ``count`` images, ``int64 [count, 5]``: shift down and right, mirrored, centre of the square.

        Drawn on the CPU from a stream of its own, so the same on every device.
        """
        stream = generator("augmentation", *seed_parts)
        shift = torch.randint(-self.crop, self.crop + 1, (count, 2), generator=stream)
        mirrored = torch.randint(2, (count, 1), generator=stream) * self.flip
        centre = torch.randint(image_size, (count, 2), generator=stream)
        return torch.cat([shift, mirrored, centre], dim=1)

    def take(self, images: Tensor, index: Tensor, draws: Tensor) -> Tensor:
        """Gather images, moved and mirrored: one indexing for all of it.

        Args:
            images: ``[N, C, H, W]``, as they are stored.
            index: ``int64 [E, B]``.
            draws: ``int64 [E, B, 5]`` of :meth:`draw`.

        Returns:
            ``[E, B, C, H, W]``, as they are stored.
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
        """Blank the squares of standardised images ``[E, B, C, H, W]``, whose mean colour is 0."""
        if not self.cutout:
            return images
        at = torch.arange(images.shape[-1], device=images.device)
        offset = at - draws[..., 3:5, None] + self.cutout // 2  # (E, B, 2, H)
        inside = (offset >= 0) & (offset < self.cutout)
        square = inside[..., 0, :, None] & inside[..., 1, None, :]  # (E, B, H, W)
        return images * ~square.unsqueeze(-3)  # unlike masked_fill, a product keeps the images' layout


NO_AUGMENTATION = Augmentation()


def _mirrored_in(position: Tensor, size: int) -> Tensor:
    """Positions beyond an edge, reflected at its pixel."""
    return (size - 1) - ((size - 1) - position.abs()).abs()
