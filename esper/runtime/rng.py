"""Named random streams: every use of randomness has its own seed, derived from its purpose.

Host init, module init, data order, policy sampling and probes each draw from their own stream, so that two controllers
on one instance see the same host and the same data whatever they do.
"""

from __future__ import annotations

import ctypes
import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from operator import index
from typing import Any

import numpy as np
import torch

_MASK_63 = (1 << 63) - 1

_MT19937_BYTES = 4 * (624 + 1)
"""Size of the state of numpy's default global generator: 624 words and a position."""


def derive_seed(*parts: int | str) -> int:
    """Derive a seed in [0, 2**63) from a sequence of names and numbers.

    Order and type matter: ``(1, 2)``, ``(2, 1)``, ``(12,)`` and ``("1", 2)`` are four streams. The value is the same on
    every machine and in every process.

    Raises:
        TypeError: a part is neither a string nor an integer.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        text = f"s{part}" if isinstance(part, str) else f"i{index(part)}"
        encoded = text.encode()
        # The length prefix distinguishes ("a", "b") from ("ab",).
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return int.from_bytes(digest.digest(), "big") & _MASK_63


def generator(*parts: int | str) -> torch.Generator:
    """Make a generator at the start of the stream that ``parts`` name; it is on the CPU, whatever device its draws are
    for.

    torch's CPU generator keeps the low 32 bits of a seed: among n streams, two are equal with probability n² / 2**33.
    """
    return torch.Generator().manual_seed(derive_seed(*parts))


class GlobalStreams:
    """States of the global generators of torch (CPU), numpy and Python, which users' code may draw from."""

    def __init__(self) -> None:
        self._torch = torch.default_generator.get_state()
        self._memory, self._numpy = _numpy_state()
        self._python = random.getstate()

    def moved(self) -> list[str]:
        """Return the names of the generators whose state has changed, by a draw or by seeding."""
        now = GlobalStreams()
        same = {
            "torch": torch.equal(now._torch, self._torch),
            "numpy": np.array_equal(now._numpy[1], self._numpy[1]) and now._numpy[2:] == self._numpy[2:],
            "random": now._python == self._python,
        }
        return [name for name, stayed in same.items() if not stayed]

    def restore(self) -> None:
        """Restore the states."""
        torch.default_generator.set_state(self._torch)
        # The number that randn keeps for its next call is not in the memory.
        if self._memory is None or self._numpy[3] or self._memory != _numpy_memory():
            np.random.set_state(self._numpy)  # noqa: NPY002
        random.setstate(self._python)

    @staticmethod
    def seed(seed: int) -> None:
        """Seed all global generators."""
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)


_known: tuple[bytes | None, Any] = None, None
"""Memory of numpy's global generator at the last look, and its state then."""


def _numpy_state() -> tuple[bytes | None, Any]:
    """Return memory and state of numpy's global generator, which users draw from; the same objects as long as it is
    not drawn from, because to copy a state takes longer than a small layer.
    """
    global _known
    memory = _numpy_memory()
    if memory is None or memory != _known[0] or _known[1][3]:
        _known = memory, np.random.get_state()  # noqa: NPY002
    return _known


def _numpy_memory() -> bytes | None:
    """Return the memory of numpy's global generator; ``None`` if it is not of the default kind."""
    generator: Any = np.random.get_bit_generator()  # type: ignore[attr-defined]
    if type(generator) is not np.random.MT19937:
        return None
    return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)


@contextmanager
def global_streams(seed: int | None = None) -> Iterator[GlobalStreams]:
    """Run users' code without lasting effect on the global generators.

    Args:
        seed: seed for all of them; ``None`` leaves their present state.
    """
    streams = GlobalStreams()
    try:
        if seed is not None:
            streams.seed(seed)
        yield streams
    finally:
        streams.restore()
