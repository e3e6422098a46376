"""Kinds of a property that ``make test-slow`` alone tests, because ``make test`` has one like them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
import torch

HALF_PRECISION = frozenset(("fp16", "bf16", torch.float16, torch.bfloat16))


def slowly(*values: object) -> Any:
    """Values of one kind that a fast test of the same property resembles."""
    return pytest.param(*values, marks=pytest.mark.slow)


def resembles_a_fast_one(values: Collection[object]) -> bool:
    """Tell whether a test that is made with every mapping has a fast one beside it that shows nearly as much.

    ``vmap`` is seldom the fastest mapping; in half precision ``matmul``, which ``auto`` takes on CPUs, stands for all.
    """
    plain = {value for value in values if isinstance(value, str | torch.dtype)}
    return "vmap" in plain or (not plain.isdisjoint(("loop", "grouped")) and not plain.isdisjoint(HALF_PRECISION))
