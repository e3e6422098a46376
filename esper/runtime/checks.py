"""Checks of field values; every error names the full key, the value, and the allowed values."""

from __future__ import annotations

import math
from collections.abc import Sequence

MAX_SEED = 2**63 - 1
"""Largest seed that every generator accepts."""

MAX_THREADS = 4096
"""Largest number of threads per rank; more than any machine has cores is a typing error."""

MAX_BATCH = 1_000_000
"""Largest number of samples in a minibatch; beyond it, drawing the order of an epoch would take very long."""

MAX_COUNT = 10**9
"""Largest value of any count; no machine has room or time for more."""

MAX_HOSTS = 100_000
"""Largest number of instances in a split; more would take days and exceed the memory of any machine."""


def at_least(key: str, value: float, bound: float) -> None:
    """Refuse a value that is below ``bound`` or not finite, and a whole number above :data:`MAX_COUNT`."""
    if isinstance(value, int):
        sensible(key, value, bound, MAX_COUNT)
    elif not (math.isfinite(value) and value >= bound):
        raise ValueError(f"{key} must be at least {bound}, got {value}")


def positive(key: str, value: float) -> None:
    """Refuse a value that is not above zero and finite."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{key} must be above 0, got {value}")


def within(key: str, value: float, low: float, high: float) -> None:
    """Refuse a value outside the closed interval ``[low, high]``."""
    if not low <= value <= high:
        raise ValueError(f"{key} must be between {low} and {high}, got {value}")


def at_most(key: str, value: float, other: str, bound: float) -> None:
    """Refuse a value above that of another key."""
    if value > bound:
        raise ValueError(f"{key} must be at most {bound} ({other}), got {value}")


def sensible(key: str, value: int, least: float, most: int) -> None:
    """Refuse a count outside its useful range."""
    if value < least:
        raise ValueError(f"{key} must be at least {least}, got {value}")
    if value > most:
        raise ValueError(f"{key} must be at most {most}, got {value}")


def distinct(key: str, values: Sequence[object]) -> None:
    """Refuse a list that is empty or repeats a value."""
    if not values:
        raise ValueError(f"{key} must not be empty")
    twice = sorted({str(value) for value in values if values.count(value) > 1})
    if twice:
        raise ValueError(f"{key} names {', '.join(twice)} more than once")
