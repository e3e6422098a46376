"""How a feature at a place is laid out, which decides what may grow there.

Axis legend: B = samples, C = channels, H, W = space, T = tokens.
"""

from __future__ import annotations

from enum import Enum


class Layout(Enum):
    """Axes of a feature of one copy of a host."""

    MAP = "[B, C, H, W]"
    SEQUENCE = "[B, T, C]"

    @property
    def num_axes(self) -> int:
        """Axes of a feature, samples included."""
        return 4 if self is Layout.MAP else 3

    def per_channel(self, channels: int) -> tuple[int, ...]:
        """Shape of a parameter with one number per channel, so that it broadcasts against one sample."""
        return (channels, 1, 1) if self is Layout.MAP else (1, channels)

    def probe(self, channels: int, size: int) -> tuple[int, ...]:
        """Shape of a small feature: two samples, ``size`` pixels a side or ``size`` tokens."""
        return (2, channels, size, size) if self is Layout.MAP else (2, size, channels)


FAMILY_LAYOUTS: dict[str, Layout] = {"cnn": Layout.MAP, "transformer": Layout.SEQUENCE}
"""Layout of the features that each family of blueprints serves."""


def layout_of(family: str) -> Layout:
    """Layout of the features of a family of blueprints.

    Raises:
        ValueError: unknown family.
    """
    if family not in FAMILY_LAYOUTS:
        raise ValueError(f"no blueprints for host family {family!r}; known families: {', '.join(FAMILY_LAYOUTS)}")
    return FAMILY_LAYOUTS[family]
