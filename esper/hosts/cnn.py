"""Convolutional host: blocks of conv-GroupNorm-ReLU, some with pooling, and a linear head.

GroupNorm instead of BatchNorm: statistics per sample keep stacked environments independent and make export exact.

GroupNorm, not BatchNorm: statistics per sample keep stacked environments apart and make export exact.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from esper.hosts.base import Place, SegmentedHost
from esper.hosts.shapes import check_blocks


@dataclass(frozen=True, slots=True)
class BlockNames:
    """Names of one block's parameters in the host."""

    conv: str
    gamma: str
    beta: str


class CNNHost(SegmentedHost):
    """A convolutional host with blocks of conv ("same" padding) - GroupNorm - ReLU [place r0c{i}] (- MaxPool 2 [place
    r1c{i}]).

    ``[B, in_channels, H, W] -> [B, num_classes]``; head: global average pool, linear.

    Args:
        in_channels, image_size: channels and side of the square images.
        num_classes: number of logits.
        widths, kernel_sizes, strides, pools: an entry per block; ``pools`` is true for blocks that halve the map.
        norm_groups: groups of every GroupNorm.
        place_rows: kinds of places to offer: 0 after a block's ReLU, 1 after its pooling.

    Attributes:
        blocks: names of each block's parameters.
        head: name of the weights that read the last block.

    Raises:
        ValueError: lists of different length, an even kernel, a width that ``norm_groups`` does not divide, an unknown
            place row, or a map that would shrink below one pixel.
    """

    family = "cnn"

    def __init__(
        self,
        *,
        in_channels: int,
        image_size: int,
        num_classes: int,
        widths: Sequence[int],
        kernel_sizes: Sequence[int],
        strides: Sequence[int],
        pools: Sequence[bool],
        norm_groups: int = 2,
        place_rows: Sequence[int] = (0,),
    ) -> None:
        check_blocks(
            widths=widths,
            kernel_sizes=kernel_sizes,
            strides=strides,
            pools=pools,
            norm_groups=norm_groups,
            place_rows=place_rows,
        )
        map_sizes(image_size, strides, pools)
        segments: list[nn.Module] = []
        places: list[Place] = []
        names: list[BlockNames] = []
        layers: OrderedDict[str, nn.Module] = OrderedDict()

        def end_segment(row: int, block: int) -> None:
            nonlocal layers
            if row in place_rows:
                segments.append(nn.Sequential(layers))
                places.append(Place(f"r{row}c{block}", widths[block], "cnn"))
                layers = OrderedDict()

        channels = in_channels
        for block, width in enumerate(widths):
            kernel = kernel_sizes[block]
            prefix = f"segments.{len(segments)}"
            names.append(
                BlockNames(
                    conv=f"{prefix}.conv{block}.weight",
                    gamma=f"{prefix}.norm{block}.weight",
                    beta=f"{prefix}.norm{block}.bias",
                )
            )
            layers[f"conv{block}"] = nn.Conv2d(
                channels, width, kernel, stride=strides[block], padding=kernel // 2, bias=False
            )
            layers[f"norm{block}"] = nn.GroupNorm(norm_groups, width)
            layers[f"relu{block}"] = nn.ReLU()
            end_segment(0, block)
            if pools[block]:
                layers[f"pool{block}"] = nn.MaxPool2d(2)
                end_segment(1, block)
            channels = width
        layers["pool"] = nn.AdaptiveAvgPool2d(1)
        layers["flatten"] = nn.Flatten()
        layers["head"] = nn.Linear(channels, num_classes)
        segments.append(nn.Sequential(layers))

        super().__init__(segments, places, num_classes)
        self.blocks = tuple(names)
        self.num_blocks = len(names)
        self.head = f"segments.{len(places)}.head.weight"


def map_sizes(image_size: int, strides: Sequence[int], pools: Sequence[bool]) -> tuple[int, ...]:
    """Return the side of the square feature map after each block, its pooling included.

    Raises:
        ValueError: a pool would shrink the map below one pixel.
    """
    sizes: list[int] = []
    size = image_size
    for block, (stride, pool) in enumerate(zip(strides, pools, strict=True)):
        size = -(-size // stride)
        if pool and size < 2:
            raise ValueError(
                f"host.strides={list(strides)} and host.pools={list(pools)} are too much for images of "
                f"{image_size}x{image_size}: block {block} would pool a map of {size}x{size}"
            )
        size = size // 2 if pool else size
        sizes.append(size)
    return tuple(sizes)
