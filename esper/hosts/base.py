"""A host network: segments with places between them, where seed modules may stand.

``x -> segments[0] -> place 0 -> segments[1] -> place 1 -> ... -> segments[n] -> logits``
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from esper.growth.layouts import Layout, layout_of
from esper.growth.slots import sort_slot_ids
from esper.hosts.init import reset_parameters


@dataclass(frozen=True, slots=True)
class Place:
    """Where a seed module may stand.

    Attributes:
        slot_id: its name.
        channels: of the feature there.
        family: whose blueprints fit there; it says how the feature is laid out (:mod:`esper.growth.layouts`).
    """

    slot_id: str
    channels: int
    family: str = "cnn"

    @property
    def site(self) -> tuple[str, int]:
        """What decides which blueprints fit: family and channels."""
        return self.family, self.channels

    @property
    def layout(self) -> Layout:
        """Axes of the feature there."""
        return layout_of(self.family)


class SegmentedHost(nn.Module):
    """A host that runs whole or by segments, with modules at its places applied in both.

    Args:
        segments: one more than places; ordinary modules, traceable by ``torch.fx``.
        places: in canonical order, place i between segments i and i + 1.
        num_classes: logits of a sample, or of a token.

    Raises:
        ValueError: counts do not fit, or the places are not in canonical order.
    """

    family: str
    num_blocks = 0
    """Blocks or layers that a fault may name."""

    def __init__(self, segments: Sequence[nn.Module], places: Sequence[Place], num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        slot_ids = tuple(place.slot_id for place in places)
        if len(segments) != len(places) + 1:
            raise ValueError(f"{len(places)} places need {len(places) + 1} segments, not {len(segments)}")
        if len(set(slot_ids)) < len(slot_ids) or slot_ids != sort_slot_ids(slot_ids):
            raise ValueError(f"places must be distinct and in canonical order, not {', '.join(slot_ids)}")
        self.segments = nn.ModuleList(segments)
        self.places = tuple(places)
        self.slots = nn.ModuleDict()

    @property
    def slot_ids(self) -> tuple[str, ...]:
        """Slot ids of all places, in canonical order."""
        return tuple(place.slot_id for place in self.places)

    def place_index(self, slot_id: str) -> int:
        """Position of a place.

        Raises:
            ValueError: the host has no such place.
        """
        for position, place in enumerate(self.places):
            if place.slot_id == slot_id:
                return position
        raise ValueError(f"no place {slot_id!r}; this host has {', '.join(self.slot_ids) or 'none'}")

    def attach(self, slot_id: str, module: nn.Module) -> None:
        """Put a module at a place.

        Raises:
            ValueError: no such place, or it is taken.
        """
        self.place_index(slot_id)
        if slot_id in self.slots:
            raise ValueError(f"place {slot_id} is taken; detach the module there first")
        self.slots[slot_id] = module

    def detach(self, slot_id: str) -> nn.Module:
        """Take the module at a place out and return it.

        Raises:
            ValueError: no such place, or it is empty.
        """
        self.place_index(slot_id)
        if slot_id not in self.slots:
            raise ValueError(f"place {slot_id} is empty")
        return self.slots.pop(slot_id)

    def named_host_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters of the host itself, without those of attached modules."""
        return self.segments.named_parameters(prefix="segments")

    def reset(self, generator: torch.Generator) -> None:
        """Initialise the host's own parameters from ``generator`` alone."""
        reset_parameters(self.segments, generator)

    def place(self, slot_id: str) -> Place:
        """The place of that id; raises ``ValueError`` where there is none."""
        return self.places[self.place_index(slot_id)]

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, H, W] -> [B, num_classes]``, or ``int64 [B, T] -> [B, T, num_classes]``."""
        x = self.segments[0](x)
        for position in range(len(self.places)):
            x = self._step(position, x)
        return x

    def forward_to(self, slot_id: str, x: Tensor) -> Tensor:
        """The feature that arrives at a place, before the module there."""
        x = self.segments[0](x)
        for position in range(self.place_index(slot_id)):
            x = self._step(position, x)
        return x

    def forward_from(self, slot_id: str, h: Tensor) -> Tensor:
        """Logits from the feature that arrived at a place; the module there is applied."""
        for position in range(self.place_index(slot_id), len(self.places)):
            h = self._step(position, h)
        return h

    def _step(self, position: int, h: Tensor) -> Tensor:
        """From the feature that arrives at one place to the one that arrives at the next, or to the logits."""
        slot_id = self.places[position].slot_id
        if slot_id in self.slots:
            h = self.slots[slot_id](h)
        out: Tensor = self.segments[position + 1](h)
        return out
