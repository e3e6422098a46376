"""Value checks for configuration fields: each names the key in full, the value, and what is allowed."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence

MAX_SEED = 2**63 - 1
"""Largest seed that every generator takes."""

MAX_THREADS = 4096
"""Most threads of one rank; more than any machine has cores is a slip of the keyboard."""

MAX_BATCH = 1_000_000
"""Most samples of a minibatch: an epoch's order is drawn again and again until there are as many."""

MAX_COUNT = 10**9
"""Most of anything that is counted; machines have no room or time for more."""

MAX_HOSTS = 100_000
"""Most instances of a split; more would take days, and the memory of any machine."""


def at_least(key: str, value: float, bound: float) -> None:
    """Refuse a value below ``bound``, one that is not finite, and a whole number that nothing could be done with."""
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
    """Refuse a count that makes no sense, or that nothing could ever be done with."""
    if value < least:
        raise ValueError(f"{key} must be at least {least}, got {value}")
    if value > most:
        raise ValueError(f"{key} must be at most {most}, got {value}")


def known(key: str, value: str, choices: Iterable[str]) -> None:
    """Refuse a name that is not among ``choices``."""
    names = list(choices)
    if value not in names:
        raise ValueError(f"{key}: unknown {value!r}{suggestion(value, names)}; choose from {', '.join(names)}")


def distinct(key: str, values: Sequence[object]) -> None:
    """Refuse a list that says something twice, or nothing."""
    if not values:
        raise ValueError(f"{key} must not be empty")
    twice = sorted({str(value) for value in values if values.count(value) > 1})
    if twice:
        raise ValueError(f"{key} names {', '.join(twice)} more than once")


def suggestion(value: str, choices: Iterable[str]) -> str:
    """``" (did you mean 'x'?)"`` for a close match among ``choices``, otherwise nothing."""
    match = difflib.get_close_matches(value, list(choices), n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""
