"""Host networks: segments with places between them that can hold seed modules.

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
    """A place in a host that can hold a seed module.

    Attributes:
        slot_id: name of the slot.
        channels: channels of the feature there.
        family: host family whose blueprints fit there; it determines the axes of the feature
            (:mod:`esper.growth.layouts`).
    """

    slot_id: str
    channels: int
    family: str = "cnn"

    @property
    def site(self) -> tuple[str, int]:
        """Family and channels, which decide whether a blueprint fits."""
        return self.family, self.channels

    @property
    def layout(self) -> Layout:
        """Layout of the feature's axes."""
        return layout_of(self.family)


class SegmentedHost(nn.Module):
    """A host that runs as a whole or by segments; both apply the modules at its places.

    Args:
        segments: one more than places; ordinary modules, traceable by ``torch.fx``.
        places: in canonical order, place i between segments i and i + 1.
        num_classes: number of logits of a sample, or of a token.

    Raises:
        ValueError: counts do not fit, or the places are not in canonical order.
    """

    family = "custom"
    """Kind of host, which determines its possible faults."""
    num_blocks = 0
    """Number of blocks or layers that the name of a fault may refer to."""

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
        self.attached = nn.ModuleDict()

    @property
    def slot_ids(self) -> tuple[str, ...]:
        """Slot ids of all places, in canonical order."""
        return tuple(place.slot_id for place in self.places)

    def place_index(self, slot_id: str) -> int:
        """Return the position of a place.

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
        if slot_id in self.attached:
            raise ValueError(f"place {slot_id} is taken; detach the module there first")
        self.attached[slot_id] = module

    def detach(self, slot_id: str) -> nn.Module:
        """Remove the module at a place and return it.

        Raises:
            ValueError: no such place, or it is empty.
        """
        self.place_index(slot_id)
        if slot_id not in self.attached:
            raise ValueError(f"place {slot_id} is empty")
        return self.attached.pop(slot_id)

    def named_host_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Iterate over the host's own parameters, without those of attached modules."""
        return self.segments.named_parameters(prefix="segments")

    def reset(self, generator: torch.Generator) -> None:
        """Initialise the host's own parameters from ``generator`` alone."""
        reset_parameters(self.segments, generator)

    def place(self, slot_id: str) -> Place:
        """Return the place with an id; raise ``ValueError`` if there is none."""
        return self.places[self.place_index(slot_id)]

    def forward(self, x: Tensor) -> Tensor:
        """Compute logits: ``[B, C, H, W] -> [B, num_classes]``, or ``int64 [B, T] -> [B, T, num_classes]``."""
        x = self.segments[0](x)
        for position in range(len(self.places)):
            x = self._step(position, x)
        return x

    def forward_to(self, slot_id: str, x: Tensor) -> Tensor:
        """Run the host from its input to a place; return the feature there, to which its module is not applied yet."""
        x = self.segments[0](x)
        for position in range(self.place_index(slot_id)):
            x = self._step(position, x)
        return x

    def forward_from(self, slot_id: str, h: Tensor) -> Tensor:
        """Run the host from the feature at a place, where the module is applied first; return the logits."""
        for position in range(self.place_index(slot_id), len(self.places)):
            h = self._step(position, h)
        return h

    def _step(self, position: int, h: Tensor) -> Tensor:
        """Run from the feature at one place to the feature at the next, or to the logits."""
        slot_id = self.places[position].slot_id
        if slot_id in self.attached:
            h = self.attached[slot_id](h)
        out: Tensor = self.segments[position + 1](h)
        return out
