"""Arrival of classes: until an epoch of its own a host trains, and is validated, on some of its classes only.

When to grow can depend on that epoch, which no observation reveals before the classes are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from esper.runtime.rng import generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Distribution of first classes and of the epoch in which the others arrive.

    Attributes:
        num_first: classes that are there from the start.
        earliest, latest: first and last possible epoch of arrival, counted from 0; all between are equally likely.
    """

    num_first: int
    earliest: int
    latest: int

    def draw(self, classes: Sequence[int], *stream: int | str) -> tuple[tuple[int, ...], int]:
        """Draw the first of some classes, sorted, and the first epoch with all of them, from a named random stream.

        Raises:
            ValueError: there are no more classes than the first ones.
        """
        if self.num_first >= len(classes):
            raise ValueError(
                f"instances.arrival.classes={self.num_first} leaves none of {len(classes)} classes to arrive: choose "
                f"at most {len(classes) - 1}"
            )
        epochs, picks = generator(*stream, "epoch"), generator(*stream, "classes")
        first = torch.randperm(len(classes), generator=picks)[: self.num_first].tolist()
        epoch = int(torch.randint(self.earliest, self.latest + 1, (), generator=epochs))
        return tuple(sorted(classes[position] for position in first)), epoch
