"""Named random streams: every use of randomness has a seed of its own, derived from what it is for.

Host init, module init, data order, policy sampling and probes each draw from their own stream, so that two
controllers on one instance see the same host and the same data whatever they do.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from operator import index
from typing import Any

import numpy as np
import torch

_MASK_63 = (1 << 63) - 1


def derive_seed(*parts: int | str) -> int:
    """Stable seed in [0, 2**63) of a sequence of names and numbers.

    Order and type matter: ``(1, 2)``, ``(2, 1)``, ``(12,)`` and ``("1", 2)`` are four streams. The value is the same on
    every machine and in every process.

    Raises:
        TypeError: a part is neither a string nor an integer.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        text = f"s{part}" if isinstance(part, str) else f"i{index(part)}"
        encoded = text.encode()
        # The length in front keeps ("a", "b") and ("ab",) apart.
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return int.from_bytes(digest.digest(), "big") & _MASK_63


def generator(*parts: int | str) -> torch.Generator:
    """A fresh generator at the start of the stream that ``parts`` name, on the CPU whatever device its draws are for.

    torch's CPU generator keeps the low 32 bits of a seed: among n streams, two are alike with probability n² / 2**33.
    """
    return torch.Generator().manual_seed(derive_seed(*parts))


class GlobalStreams:
    """States of torch's (CPU), numpy's and Python's global generators: users' code draws from any of them."""

    def __init__(self) -> None:
        self._torch = torch.default_generator.get_state()
        self._numpy: Any = np.random.get_state()  # noqa: NPY002  (the one that users draw from)
        self._python = random.getstate()

    def moved(self) -> list[str]:
        """Names of those whose state has changed: something was drawn, or they were seeded."""
        now = GlobalStreams()
        same = {
            "torch": torch.equal(now._torch, self._torch),
            "numpy": np.array_equal(now._numpy[1], self._numpy[1]) and now._numpy[2:] == self._numpy[2:],
            "random": now._python == self._python,
        }
        return [name for name, stayed in same.items() if not stayed]

    def restore(self) -> None:
        """Put them back."""
        torch.default_generator.set_state(self._torch)
        np.random.set_state(self._numpy)  # noqa: NPY002
        random.setstate(self._python)

    @staticmethod
    def seed(seed: int) -> None:
        """Start all of them anew."""
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)


@contextmanager
def global_streams(seed: int | None = None) -> Iterator[GlobalStreams]:
    """Run users' code so that what it draws from global generators leaves no trace outside.

    Args:
        seed: where they all start; ``None`` for where they are.
    """
    streams = GlobalStreams()
    try:
        if seed is not None:
            streams.seed(seed)
        yield streams
    finally:
        streams.restore()
