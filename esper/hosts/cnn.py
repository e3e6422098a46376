"""Convolutional host: blocks of conv-GroupNorm-ReLU, some with pooling, and a linear head.

GroupNorm, not BatchNorm: statistics per sample keep stacked environments apart and make export exact.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from esper.hosts.base import Place, SegmentedHost


@dataclass(frozen=True, slots=True)
class BlockNames:
    """Names of one block's parameters in the host."""

    conv: str
    gamma: str
    beta: str


class CNNHost(SegmentedHost):
    """Blocks of conv ("same" padding) - GroupNorm - ReLU [place r0c{i}] (- MaxPool 2 [place r1c{i}]).

    ``[B, in_channels, H, W] -> [B, num_classes]``; head: global average pool, linear.

    Args:
        widths, kernel_sizes, strides, pools: one entry per block; ``pools`` says which blocks halve the map.
        norm_groups: groups of every GroupNorm.
        place_rows: kinds of places to offer: 0 after a block's ReLU, 1 after its pooling.

    Attributes:
        blocks: names of each block's parameters.
        head: name of the weights that read the last block.

    Raises:
        ValueError: lists of different length, an even kernel, a width that ``norm_groups`` does not divide, or an
            unknown place row.
    """

    family = "cnn"

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        widths: Sequence[int],
        kernel_sizes: Sequence[int],
        strides: Sequence[int],
        pools: Sequence[bool],
        norm_groups: int = 2,
        place_rows: Sequence[int] = (0,),
    ) -> None:
        _check_blocks(widths, kernel_sizes, strides, pools, norm_groups, place_rows)
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


def _check_blocks(
    widths: Sequence[int],
    kernel_sizes: Sequence[int],
    strides: Sequence[int],
    pools: Sequence[bool],
    norm_groups: int,
    place_rows: Sequence[int],
) -> None:
    lists = {"widths": widths, "kernel_sizes": kernel_sizes, "strides": strides, "pools": pools}
    if not widths or any(len(values) != len(widths) for values in lists.values()):
        raise ValueError(
            "a host needs one entry per block, at least one, in each of "
            + ", ".join(f"{name}={list(values)}" for name, values in lists.items())
        )
    for name, numbers in (("widths", widths), ("kernel_sizes", kernel_sizes), ("strides", strides)):
        if min(numbers) < 1:
            raise ValueError(f"{name}={list(numbers)} must be at least 1 everywhere")
    if any(kernel % 2 == 0 for kernel in kernel_sizes):
        raise ValueError(f"kernel_sizes={list(kernel_sizes)} must be odd: an even kernel has no centre")
    if norm_groups < 1 or any(width % norm_groups for width in widths):
        raise ValueError(f"widths={list(widths)} must all be divisible by norm_groups={norm_groups}")
    if not place_rows or not set(place_rows) <= {0, 1}:
        raise ValueError(f"place_rows={list(place_rows)} must name rows among 0 (after a block) and 1 (after its pool)")


def map_sizes(image_size: int, strides: Sequence[int], pools: Sequence[bool]) -> tuple[int, ...]:
    """Side of the square feature map after each block, its pooling included.

    Raises:
        ValueError: a pool would shrink the map below one pixel.
    """
    sizes: list[int] = []
    size = image_size
    for block, (stride, pool) in enumerate(zip(strides, pools, strict=True)):
        size = -(-size // stride)
        if pool and size < 2:
            raise ValueError(
                f"image_size={image_size} is too small: block {block} would pool a map of {size}x{size} "
                f"(strides={list(strides)}, pools={list(pools)})"
            )
        size = size // 2 if pool else size
        sizes.append(size)
    return tuple(sizes)


def build_cnn(
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
) -> CNNHost:
    """A :class:`CNNHost` for square images of a given size.

    Raises:
        ValueError: as :class:`CNNHost`, or the map would shrink below one pixel.
    """
    host = CNNHost(in_channels, num_classes, widths, kernel_sizes, strides, pools, norm_groups, place_rows)
    map_sizes(image_size, strides, pools)
    return host
