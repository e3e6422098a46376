"""Trial of ``torch.compile``: it needs a compiler, which not every machine has."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import shorten
from typing import Any

import torch

MAX_REASON = 160
ADVICE = "Set TORCH"
"""First words of what torch adds for its own developers."""

_able: set[tuple[str, object]] = set()
"""Kinds of device and backends with which something was compiled in this process."""


def try_compiler(device: torch.device, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile one addition for a device, once per process; what this costs the first real use is spared.

    Args:
        device: where the code is to run.
        backend: as :func:`torch.compile` takes it.

    Raises:
        ValueError: it failed. One line: of what.
    """
    if (device.type, backend) in _able:
        return

    def add(numbers: torch.Tensor) -> torch.Tensor:
        return numbers + 1

    try:
        torch.compile(add, fullgraph=True, backend=backend)(torch.ones(2, device=device))
    except Exception as error:  # compilers and drivers raise errors of all kinds
        said = str(error).partition(ADVICE)[0].strip() or type(error).__name__
        what = shorten(said, MAX_REASON, placeholder=" …")
        raise ValueError(f"torch.compile cannot make machine code here ({what})") from error
    _able.add((device.type, backend))
