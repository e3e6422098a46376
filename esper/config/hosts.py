"""The network that grows: one schema per family of hosts, chosen by the group ``host``.

``host=cnn``, ``host=transformer`` and ``host=custom`` are the schemas themselves with their defaults; the YAML of the
group builds on them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from omegaconf import MISSING

from esper.config.checks import at_least, distinct, known, positive, within


@dataclass(kw_only=True, slots=True)
class HostConfig:
    """What every host has: its family and its optimizer."""

    name: str = MISSING
    """Which family of hosts; chosen by the group, as in host=transformer."""
    lr: float = 0.01
    """Adam learning rate of hosts and seed modules, constant over an episode."""
    max_grad_norm: float = 0.0
    """Gradient norm at which each environment's host and each seed module is clipped, on its own; 0 = off."""

    @property
    def num_blocks(self) -> int:
        """Blocks or layers that a host family may name."""
        return 0

    @property
    def narrowest(self) -> tuple[str, int]:
        """What bounds the channels that a starved block keeps, and the number."""
        return "no blocks", 0

    def families(self) -> dict[str, float]:
        """Host families to draw from where none are named, each as often as the others."""
        return {"intact": 1.0, "few_samples": 1.0, "lr_over_3": 1.0}

    def shape(self) -> dict[str, Any]:
        """What the builder of the family takes."""
        common = {item.name for item in fields(HostConfig)}
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name not in common}


def _check(host: HostConfig, name: str) -> None:
    """What all families refuse."""
    known("host.name", host.name, HOST_SCHEMAS)
    if host.name != name:
        raise ValueError(f"host.name is {host.name!r}, but these are the keys of {name}: choose with host={host.name}")
    positive("host.lr", host.lr)
    at_least("host.max_grad_norm", host.max_grad_norm, 0)


def _check_rows(rows: list[int]) -> None:
    distinct("host.place_rows", rows)
    for row in rows:
        within("host.place_rows", row, 0, 1)


@dataclass(kw_only=True, slots=True)
class CNNConfig(HostConfig):
    """Blocks of convolution, GroupNorm and ReLU, for images. Lists have one entry per block."""

    name: str = "cnn"
    """Which family of hosts; chosen by the group, as in host=transformer."""
    widths: list[int] = field(default_factory=lambda: [8, 8, 8])
    """Output channels of each block."""
    kernel_sizes: list[int] = field(default_factory=lambda: [3, 3, 3])
    """Side of each block's convolution kernel; odd, so that "same" padding is exact."""
    strides: list[int] = field(default_factory=lambda: [2, 1, 1])
    """Stride of each block's convolution."""
    pools: list[bool] = field(default_factory=lambda: [False, True, False])
    """Whether each block halves its feature map after its activation."""
    norm_groups: int = 2
    """Groups of each block's GroupNorm; must divide every width."""
    place_rows: list[int] = field(default_factory=lambda: [0])
    """Kinds of place offered to slots: 0 after a block's activation, 1 after its pooling."""

    @property
    def num_blocks(self) -> int:
        """Blocks."""
        return len(self.widths)

    @property
    def narrowest(self) -> tuple[str, int]:
        """The narrowest block."""
        return "min(host.widths)", min(self.widths)

    def families(self) -> dict[str, float]:
        """Blocks that are starved, one at a time, blocks that mix no pixels, and fewer classes."""
        starved = [f"starved_{block}" for block in range(self.num_blocks)]
        return dict.fromkeys(["intact", *starved, "centre_tap_all", "few_classes"], 1.0)

    def __post_init__(self) -> None:
        _check(self, "cnn")
        if not self.widths:
            raise ValueError("host.widths must name at least one block, got []")
        for key in ("kernel_sizes", "strides", "pools"):
            values = getattr(self, key)
            if len(values) != len(self.widths):
                raise ValueError(
                    f"host.{key} must have one entry per block of host.widths ({len(self.widths)}), got {values}"
                )
        at_least("host.norm_groups", self.norm_groups, 1)
        for block, (width, kernel, stride) in enumerate(zip(self.widths, self.kernel_sizes, self.strides, strict=True)):
            at_least(f"host.widths[{block}]", width, 1)
            if width % self.norm_groups:
                raise ValueError(f"host.norm_groups={self.norm_groups} must divide host.widths[{block}]={width}")
            at_least(f"host.kernel_sizes[{block}]", kernel, 1)
            if kernel % 2 == 0:
                raise ValueError(f"host.kernel_sizes[{block}] must be odd, got {kernel}")
            at_least(f"host.strides[{block}]", stride, 1)
        _check_rows(self.place_rows)


@dataclass(kw_only=True, slots=True)
class TransformerConfig(HostConfig):
    """Layers of causal attention and MLP, for text."""

    name: str = "transformer"
    """Which family of hosts; chosen by the group, as in host=transformer."""
    num_layers: int = 2
    """Layers, each an attention and an MLP."""
    width: int = 64
    """Channels of the stream that all layers add to."""
    num_heads: int = 4
    """Heads of each attention; must divide the width."""
    mlp_width: int = 128
    """Hidden units of each MLP."""
    place_rows: list[int] = field(default_factory=lambda: [0, 1])
    """Kinds of place offered to slots: 0 after a layer's attention, 1 after its MLP."""

    @property
    def num_blocks(self) -> int:
        """Layers."""
        return self.num_layers

    @property
    def narrowest(self) -> tuple[str, int]:
        """Every MLP."""
        return "host.mlp_width", self.mlp_width

    def families(self) -> dict[str, float]:
        """Layers whose MLP is starved, one at a time, layers that mix no tokens, and less text."""
        starved = [f"starved_{layer}" for layer in range(self.num_layers)]
        return dict.fromkeys(["intact", *starved, "unmixed_all", "few_samples"], 1.0)

    def __post_init__(self) -> None:
        _check(self, "transformer")
        for key in ("num_layers", "width", "num_heads", "mlp_width"):
            at_least(f"host.{key}", getattr(self, key), 1)
        if self.width % self.num_heads:
            raise ValueError(f"host.num_heads={self.num_heads} must divide host.width={self.width}")
        _check_rows(self.place_rows)


@dataclass(kw_only=True, slots=True)
class CustomConfig(HostConfig):
    """A user's own module."""

    name: str = "custom"
    """Which family of hosts; chosen by the group, as in host=transformer."""
    target: str = MISSING
    """What builds it, as package.module:function."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of that function."""
    slots: list[str] = MISSING
    """Submodules after which to grow, by their names in named_modules()."""

    def __post_init__(self) -> None:
        _check(self, "custom")
        distinct("host.slots", self.slots)


HOST_SCHEMAS: dict[str, type[HostConfig]] = {
    "cnn": CNNConfig,
    "transformer": TransformerConfig,
    "custom": CustomConfig,
}
"""Schema of each family."""
