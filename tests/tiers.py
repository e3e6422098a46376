"""Kinds of a property that ``make test-slow`` alone tests, because ``make test`` has one like them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
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


def few(number: int) -> pytest.MarkDecorator:
    """Let ``make test`` take so many of a test's cases, spread evenly, and ``make test-slow`` the others."""
    return pytest.mark.few(number)


def beyond_few(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the items that :func:`few` leaves to ``make test-slow``."""
    cases: dict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if (mark := item.get_closest_marker("few")) and not item.get_closest_marker("slow"):
            cases[item.nodeid.partition("[")[0], mark.args[0]].append(item)
    return [
        item
        for (_, number), some in cases.items()
        for position, item in enumerate(some)
        if position not in spread(number, len(some))
    ]


def spread(number: int, total: int) -> set[int]:
    """Return so many positions in a sequence, from the first to the last."""
    number = min(number, total)
    return {round(step * (total - 1) / max(number - 1, 1)) for step in range(number)}
