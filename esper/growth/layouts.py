"""Layouts of a feature's axes, which decide the blueprints that fit a place.

Axis legend: B = samples, C = channels, H, W = space, T = tokens.
"""

from __future__ import annotations

from enum import Enum


class Layout(Enum):
    """Axes of the feature of a single host."""

    MAP = "[B, C, H, W]"
    SEQUENCE = "[B, T, C]"
    VECTOR = "[B, C]"

    @property
    def num_axes(self) -> int:
        """Number of axes of a feature, samples included."""
        return self.value.count(",") + 1

    def per_channel(self, channels: int) -> tuple[int, ...]:
        """Shape of a parameter with one number per channel, so that it broadcasts against one sample."""
        return {Layout.MAP: (channels, 1, 1), Layout.SEQUENCE: (1, channels), Layout.VECTOR: (channels,)}[self]

    def probe(self, channels: int, size: int) -> tuple[int, ...]:
        """Shape of a small feature: two samples, ``size`` pixels a side or ``size`` tokens."""
        sample = {Layout.MAP: (channels, size, size), Layout.SEQUENCE: (size, channels), Layout.VECTOR: (channels,)}
        return 2, *sample[self]


FAMILY_LAYOUTS: dict[str, Layout] = {"cnn": Layout.MAP, "transformer": Layout.SEQUENCE, "mlp": Layout.VECTOR}
"""Layout of the features that each family of blueprints serves."""


def layout_of(family: str) -> Layout:
    """Layout of the features of a family of blueprints.

    Raises:
        ValueError: unknown family.
    """
    if family not in FAMILY_LAYOUTS:
        raise ValueError(f"no blueprints for host family {family!r}; known families: {', '.join(FAMILY_LAYOUTS)}")
    return FAMILY_LAYOUTS[family]
