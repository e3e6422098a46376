"""Trial of ``torch.compile``, because not every machine has the compiler that it needs."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import shorten
from typing import Any

import torch

MAX_REASON = 160
ADVICE = "Set TORCH"
"""First words of torch's advice to its own developers, which is cut from messages."""

_able: set[tuple[str, object]] = set()
"""Kinds of device and backends with which ``torch.compile`` has succeeded in this process."""


def try_compiler(device: torch.device, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile one addition for a device, once per process; the first real use becomes faster by as much.

    Args:
        device: device that the code is to run on.
        backend: as for :func:`torch.compile`.

    Raises:
        ValueError: compilation failed, with the cause in one line.
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
        raise ValueError(f"torch.compile does not work here ({what})") from error
    _able.add((device.type, backend))
