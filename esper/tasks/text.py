"""Text as windows of tokens.

Axis legend: L = tokens of a text, N = windows, T = tokens in a window.
"""

from __future__ import annotations

import torch
from torch import Tensor

from esper.tasks.data import IGNORED, Split

START = 0
"""What stands before the first token of a text, so that this has a context too."""

NUM_BYTES = 256


def windows(tokens: Tensor, length: int) -> Split:
    """Consecutive windows of a text, in which every token is a target once.

    Targets are the inputs moved by one. What is missing from the last window is :data:`IGNORED`.

    Args:
        tokens: ``[L]``, any integers.
        length: tokens in a window (T).

    Returns:
        Inputs and targets ``[N, T]``, in ``uint8`` and ``int16`` where they fit, otherwise in ``int32``.

    Raises:
        ValueError: no tokens.
    """
    if not len(tokens) or length < 1:
        raise ValueError(f"can't cut {len(tokens)} tokens into windows of {length}")
    count, highest = -(-len(tokens) // length), int(tokens.max())
    wide = torch.int16 if highest <= torch.iinfo(torch.int16).max else torch.int32
    targets = torch.full((count * length,), IGNORED, dtype=wide)
    targets[: len(tokens)] = tokens
    inputs = torch.full((count * length,), START, dtype=torch.uint8 if highest < NUM_BYTES else wide)
    inputs[1 : len(tokens)] = tokens[:-1]
    return Split(inputs.view(count, length), targets.view(count, length))
