"""Configuration of the host: one schema per kind of host, chosen by the group ``host``.

``host=cnn``, ``host=transformer``, ``host=custom`` and ``host=plugin`` are the schemas themselves with their defaults;
the YAML of the group builds on them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from omegaconf import MISSING

from esper.hosts.shapes import check_blocks, check_layers
from esper.runtime.checks import at_least, distinct, positive


@dataclass(kw_only=True, slots=True)
class HostConfig:
    """Section ``host``: fields common to all kinds of host, which are its kind and its optimizer."""

    name: str = MISSING
    """Kind of host; chosen by the group, as in host=transformer."""
    lr: float = 0.01
    """Adam learning rate of hosts and seed modules, constant over an episode."""
    max_grad_norm: float = 0.0
    """Gradient norm at which the gradient of each host and each seed module is clipped separately; 0 = off."""

    @property
    def num_blocks(self) -> int:
        """Number of blocks or layers, to which families such as ``starved_<i>`` refer by index; 0 if they cannot."""
        return 0

    @property
    def mixing_blocks(self) -> tuple[int, ...]:
        """Blocks or layers that mix pixels or tokens, and so can have the fault of not mixing them."""
        return tuple(range(self.num_blocks))

    @property
    def narrowest(self) -> tuple[str, int]:
        """Key that limits the channels which a fault may keep, for messages, and the limit."""
        return "no blocks", 0

    @property
    def users(self) -> str | None:
        """Key and name of the user's code that builds the host, ``None`` for Esper's own."""
        return None

    def families(self) -> dict[str, float]:
        """Host families to draw from, with equal weights, where none are configured."""
        return {"intact": 1.0, "few_samples": 1.0, "lr_over_3": 1.0}

    def shape(self) -> dict[str, Any]:
        """Return the keyword arguments of the host's builder, which are the fields that not all kinds share."""
        common = {item.name for item in fields(HostConfig)}
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name not in common}


def _check(host: HostConfig, name: str) -> None:
    """Check the fields common to all kinds of host."""
    if host.name != name:
        _find(host.name)
        raise ValueError(
            f"host.name is {host.name!r}, but these are the keys of {name}: choose with {chosen_by(host.name)}"
        )
    _check_optimizer(host)


def _find(name: str) -> None:
    """Refuse a kind of host that is not registered."""
    from esper.hosts import HOSTS  # not above: importing hosts means importing torch

    HOSTS.find(name, "host.name")


def _check_optimizer(host: HostConfig) -> None:
    positive("host.lr", host.lr)
    at_least("host.max_grad_norm", host.max_grad_norm, 0)


@dataclass(kw_only=True, slots=True)
class CNNConfig(HostConfig):
    """Section ``host`` of a convolutional host: blocks of convolution, GroupNorm and ReLU, for images. Lists have one
    entry per block.
    """

    name: str = "cnn"
    """Kind of host; chosen by the group, as in host=transformer."""
    widths: list[int] = field(default_factory=lambda: [8, 8, 8])
    """Output channels of each block."""
    kernel_sizes: list[int] = field(default_factory=lambda: [3, 3, 3])
    """Side of each block's convolution kernel; odd, so that "same" padding is exact."""
    strides: list[int] = field(default_factory=lambda: [2, 1, 1])
    """Stride of each block's convolution."""
    pools: list[bool] = field(default_factory=lambda: [False, True, False])
    """True for each block that halves its feature map after its activation."""
    norm_groups: int = 2
    """Groups of each block's GroupNorm; must divide every width."""
    place_rows: list[int] = field(default_factory=lambda: [0])
    """Kinds of place offered as slots: 0 after a block's activation, 1 after its pooling."""

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        return len(self.widths)

    @property
    def mixing_blocks(self) -> tuple[int, ...]:
        """Blocks whose kernels have more than a centre."""
        return tuple(block for block, size in enumerate(self.kernel_sizes) if size > 1)

    @property
    def narrowest(self) -> tuple[str, int]:
        """Expression for the width of the narrowest block, for messages, and that width."""
        return "min(host.widths)", min(self.widths)

    def families(self) -> dict[str, float]:
        """Host families to draw from by default: single starved blocks, blocks that mix no pixels, and fewer
        classes.
        """
        starved = [f"starved_{block}" for block in range(self.num_blocks)]
        return dict.fromkeys(["intact", *starved, "centre_tap_all", "few_classes"], 1.0)

    def __post_init__(self) -> None:
        _check(self, "cnn")
        check_blocks(**self.shape(), prefix="host.")


@dataclass(kw_only=True, slots=True)
class TransformerConfig(HostConfig):
    """Section ``host`` of a transformer host: layers of causal attention and MLP, for text."""

    name: str = "transformer"
    """Kind of host; chosen by the group, as in host=transformer."""
    num_layers: int = 2
    """Number of layers, each an attention and an MLP."""
    width: int = 64
    """Channels of the stream that all layers add to."""
    num_heads: int = 4
    """Heads of each attention; must divide the width."""
    mlp_width: int = 128
    """Hidden units of each MLP."""
    place_rows: list[int] = field(default_factory=lambda: [0, 1])
    """Kinds of place offered as slots: 0 after a layer's attention, 1 after its MLP."""

    @property
    def num_blocks(self) -> int:
        """Number of layers."""
        return self.num_layers

    @property
    def narrowest(self) -> tuple[str, int]:
        """Key of the width of the MLPs, for messages, and that width."""
        return "host.mlp_width", self.mlp_width

    def families(self) -> dict[str, float]:
        """Host families to draw from by default: single layers with a starved MLP, layers that mix no tokens, and less
        text.
        """
        starved = [f"starved_{layer}" for layer in range(self.num_layers)]
        return dict.fromkeys(["intact", *starved, "unmixed_all", "few_samples"], 1.0)

    def __post_init__(self) -> None:
        _check(self, "transformer")
        check_layers(**self.shape(), prefix="host.")


@dataclass(kw_only=True, slots=True)
class CustomConfig(HostConfig):
    """Section ``host`` of a host built by the user's function."""

    name: str = "custom"
    """Kind of host; chosen by the group, as in host=transformer."""
    target: str = MISSING
    """Function that builds the module, as package.module:function."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of that function."""
    slots: list[str] = MISSING
    """Submodules after which to grow, by their names in named_modules()."""

    @property
    def users(self) -> str | None:
        """Key and name of the user's function."""
        return f"host.target: {self.target}"

    def __post_init__(self) -> None:
        _check(self, "custom")
        distinct("host.slots", self.slots)


@dataclass(kw_only=True, slots=True)
class PluginConfig(HostConfig):
    """Section ``host`` of a kind of host registered by a plugin."""

    arguments: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of its builder, besides the sizes of the task."""

    def __post_init__(self) -> None:
        _find(self.name)
        if self.name in HOST_SCHEMAS:
            raise ValueError(
                f"host.name is {self.name!r}, which no plugin registers: choose with {chosen_by(self.name)}"
            )
        _check_optimizer(self)

    @property
    def users(self) -> str | None:
        """Key and name of the registered kind."""
        return f"host.name: {self.name}"

    def shape(self) -> dict[str, Any]:
        """Arguments of the builder."""
        return self.arguments


HOST_SCHEMAS: dict[str, type[HostConfig]] = {
    "cnn": CNNConfig,
    "transformer": TransformerConfig,
    "custom": CustomConfig,
}
"""Schema of each built-in kind of host."""

HOST_GROUP: dict[str, type[HostConfig]] = {**HOST_SCHEMAS, "plugin": PluginConfig}
"""Options of the group ``host`` that are plain schemas."""


def schema_of(name: str) -> type[HostConfig]:
    """Return the schema of a kind of host."""
    return HOST_SCHEMAS.get(name, PluginConfig)


def chosen_by(name: str) -> str:
    """Format the command-line arguments that choose a kind of host, for messages."""
    return f"host={name}" if name in HOST_SCHEMAS else f"host=plugin host.name={name}"
