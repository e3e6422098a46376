"""Named random streams: every use of randomness has a seed of its own, derived from what it is for.

Host init, module init, data order, policy sampling and probes each draw from their own stream, so that two
controllers on one instance see the same host and the same data whatever they do.
"""

from __future__ import annotations

import hashlib
from operator import index

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


def generator(*parts: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator at the start of the stream that ``parts`` name.

    torch's CPU generator keeps the low 32 bits of a seed: among n streams, two are alike with probability n² / 2**33.
    """
    return torch.Generator(device=device).manual_seed(derive_seed(*parts))
