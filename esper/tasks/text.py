"""Text as windows of tokens: bytes, or those of a byte-pair encoding.

Axis legend: L = tokens of a text, N = windows, T = tokens in a window.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from esper.tasks.bpe import encode, trained_encoding
from esper.tasks.data import IGNORED, Split, TaskData

START = 0
"""Token before the first token of a text, so that the first one has a context too."""

NUM_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Three disjoint texts in bytes."""

    train: bytes
    val: bytes
    test: bytes


def text_task(name: str, version: int, texts: Texts, length: int, vocab_size: int | None) -> TaskData:
    """Make a task from texts.

    Args:
        name, version: name and version of the task.
        texts: train, val and test.
        length: tokens in a window (T).
        vocab_size: size of a byte-pair encoding trained on the training text; ``None`` for bytes.

    Raises:
        ValueError: an empty text, or the library for byte-pair encodings is not installed.
    """
    whole = (texts.train, texts.val, texts.test)
    if vocab_size is None:
        size, parts = NUM_BYTES, [torch.from_numpy(np.frombuffer(text, np.uint8).copy()) for text in whole]
    else:
        encoding = trained_encoding(name, texts.train, vocab_size)
        size, parts = encoding.get_vocab_size(), [encode(encoding, text) for text in whole]
    train, val, test = (
        replace(windows(part, length), bytes_per_token=len(text) / len(part))
        for part, text in zip(parts, whole, strict=True)
    )
    return TaskData(name=name, version=version, train=train, val=val, test=test, num_classes=size)


def windows(tokens: Tensor, length: int) -> Split:
    """Divide a text into consecutive windows in which every token is a target once.

    Targets are the inputs shifted by one. The end of the last window is filled with :data:`IGNORED`.

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
